"""Scans of an experiment: those of the data folder, and those simulated from them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np

from regweave.datasets.simulate import second_time_point
from regweave.errors import RegweaveError
from regweave.io import atomic_path, read_image, read_labels, sha256, write_displacement, write_image, write_labels
from regweave.io.disk.files import is_folder
from regweave.jobs.store import content_hash
from regweave.study.reproduce.protocols import Protocol, Scan

IMAGE, LABELS, TRUTH, MADE = "image.nii.gz", "labels.nii.gz", "truth.nii.gz", "made.json"


def find_scans(protocol: Protocol, data: Path) -> list[Scan]:
    """Return the cases of a data set, in the order of their names.

    Raises
    ------
    RegweaveError
        E137 where the folder lacks the set, or has too few cases.
    """
    folder = data / protocol.data_set
    images = folder.glob(f"*/{IMAGE}") if is_folder(folder) else ()
    cases = sorted(p.parent for p in images if (p.parent / LABELS).is_file())
    if len(cases) < protocol.least_cases:
        found = f"{len(cases)} cases" if is_folder(folder) else "no such folder"
        raise RegweaveError(
            "E137",
            f"{protocol.title} needs at least {protocol.least_cases} cases in '{folder}', found {found}",
            f"put each case there as CASE/{IMAGE} and CASE/{LABELS}; docs/reproduce.md says where the data come from",
        )
    return [Scan(p.name, p.name, p / IMAGE, p / LABELS) for p in cases]


def all_scans(protocol: Protocol, data: Path, store: Path, seed: int, tell: Callable[[str], None]) -> list[Scan]:
    """Return the scans of an experiment, simulated ones included; those that exist already are kept.

    Parameters
    ----------
    protocol : Protocol
        The experiment.
    data : path
        Data folder.
    store : path
        Folder for simulated scans, with the true deformation of each.
    seed : int
        Chooses the patients of a larger set, and the simulations.
    tell : callable
        Called with a line for each simulated scan.
    """
    cases = protocol.first(find_scans(protocol, data), seed)
    out = list(cases)
    for number, case in enumerate(cases):
        for t in range(1, protocol.time_points + 1):
            name, patient = protocol.later(case, t)
            scan = Scan(name, patient, store / name / IMAGE, store / name / LABELS)
            if _simulate(case, scan, protocol, [seed, number, t]):
                tell(f"simulated {name}")
            out.append(scan)
    return out


def _simulate(source: Scan, target: Scan, protocol: Protocol, seed: list[int]) -> bool:
    """Write a simulated scan, its labels and its true deformation; False where the same is there already."""
    assert protocol.plan is not None
    folder = target.image.parent
    key = content_hash([sha256(source.image), sha256(source.labels), protocol.plan, seed])
    mark = folder / MADE
    if mark.is_file() and json.loads(mark.read_text(encoding="utf-8"))["key"] == key:
        return False
    folder.mkdir(parents=True, exist_ok=True)
    image = read_image(source.image)
    number = int(np.random.SeedSequence(seed).generate_state(1)[0])
    made = second_time_point(image, read_labels(source.labels), protocol.plan, number)
    write_image(target.image, made.image, np.int16)
    write_labels(target.labels, made.labels)
    write_displacement(folder / TRUTH, made.field)
    with atomic_path(mark) as part:
        part.write_text(json.dumps({"key": key, "seed": number, "strength": made.strength}) + "\n", encoding="utf-8")
    return True
