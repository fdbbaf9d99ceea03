"""Golden results: what the presets and the shipped models give on generated pairs.

``python tests/golden/make.py`` writes ``numbers.json`` again and says what changed; `test_golden` compares.
"""

from __future__ import annotations

import hashlib
import json
import platform
import re
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import scipy

from regweave import register
from regweave.io.model import read_model, shipped_models
from regweave.types import ImagePair, LabelMap, Volume
from regweave.workflows.phantom import make_phantom
from regweave.workflows.result import Result

NUMBERS = Path(__file__).with_name("numbers.json")
PRESETS = ("paper@1", "default@5")
SAMPLES = 24
"""Voxels whose displacement is kept, evenly through the grid."""
Case = Callable[[], Result]


def pair(modality: str) -> ImagePair:
    """Return a small pair; the CT one has air below and numbers on the Hounsfield scale."""
    found = make_phantom(seed=5, shape=(26, 24, 22), spacing_mm=(8.0, 8.0, 9.0)).pair
    if modality == "mr":
        return found
    bright = np.percentile(found.moving.data, 99)
    hounsfield = [(1400 * v.data / bright - 1000).astype(np.float32) for v in (found.fixed, found.moving)]
    images = [Volume(d, v.geometry) for d, v in zip(hounsfield, (found.fixed, found.moving), strict=True)]
    return ImagePair(*images, found.fixed_labels, found.moving_labels)


def _known(labels: LabelMap | None, classes: tuple[int, ...]) -> LabelMap:
    assert labels is not None
    return LabelMap(np.where(np.isin(labels.data, classes), labels.data, 0), labels.geometry)


def cases() -> dict[str, Case]:
    """Return a registration for each name."""
    return dict(_cases())


def _cases() -> Iterator[tuple[str, Case]]:
    for preset in PRESETS:
        for modality in ("mr", "ct"):
            yield f"{preset} on {modality}", lambda p=preset, m=modality: _register(pair(m), preset=p)
    for name in shipped_models():
        model = read_model(name)
        given = pair(model.modality)
        labels = [_known(label_map, model.weights.classes) for label_map in (given.fixed_labels, given.moving_labels)]
        masked = ImagePair(given.fixed, given.moving, *labels)
        yield f"{name} with masks", lambda n=name, p=masked: _register(p, model=n)
        blind = ImagePair(given.fixed, given.moving, labels[0])
        yield f"{name} without moving mask", lambda n=name, p=blind: _register(p, model=n)


def _register(given: ImagePair, **options: Any) -> Result:
    labels = {"fixed_labels": given.fixed_labels, "moving_labels": given.moving_labels}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # models meet images that they were not made for
        return register(given.fixed, given.moving, **labels, **options)


def numbers(result: Result) -> dict[str, Any]:
    """Return what is kept of a result: its bits, and numbers that another processor gives as well."""
    field = result.transform.field.data
    places = np.linspace(0, field[0].size - 1, SAMPLES + 2).astype(int)[1:-1]
    return {
        "sha256": hashlib.sha256(field.tobytes()).hexdigest(),
        "displacement_mm": [[round(float(x), 3) for x in field.reshape(3, -1)[:, v]] for v in places],
        "mean_length_mm": round(float(np.sqrt((field.astype(np.float64) ** 2).sum(axis=0)).mean()), 4),
        "dice": {str(k): round(float(row["after"]), 4) for k, row in result.dice.items()},
        "energies": [float(f"{step.energy:.6g}") for step in result.steps],
        "modality": result.modality,
    }


def machine() -> str:
    """Name what bits depend on: the processor and the libraries that compute."""
    info = Path("/proc/cpuinfo")
    text = info.read_text(encoding="utf-8").split("\n\n")[0] if info.exists() else platform.processor()
    told = re.findall(r"^(?:vendor_id|cpu family|model|stepping|flags)\s*: (.*)$", text, flags=re.MULTILINE)
    kind = hashlib.sha256("\n".join(told or [text]).encode()).hexdigest()[:12]
    return f"{platform.machine()} processor {kind}, numpy {np.__version__}, scipy {scipy.__version__}"


def differences(old: dict[str, Any], new: dict[str, Any], *, same_machine: bool) -> list[str]:
    """Say in what two sets of numbers of one case differ by more than the machine may account for."""
    found = []
    if old["modality"] != new["modality"]:
        found.append(f"modality {old['modality']} -> {new['modality']}")
    for key, places, tolerance in (("displacement_mm", "mm", 0.05), ("mean_length_mm", "mm", 0.01)):
        change = float(np.abs(np.array(old[key]) - np.array(new[key])).max())
        if change > tolerance:
            found.append(f"{key} by {change:.3f} {places}")
    for label in sorted({*old["dice"], *new["dice"]}):
        a, b = (d["dice"].get(label, float("nan")) for d in (old, new))
        if not (abs(a - b) <= 0.003 or (np.isnan(a) and np.isnan(b))):
            found.append(f"Dice of {label} {a} -> {b}")
    if len(old["energies"]) != len(new["energies"]) or not np.allclose(old["energies"], new["energies"], rtol=1e-3):
        found.append(f"energies {old['energies']} -> {new['energies']}")
    if same_machine and old["sha256"] != new["sha256"] and not found:
        found.append("the last bits of the field")
    return found


def main() -> None:
    """Write the numbers of this machine and tell what changed."""
    before = json.loads(NUMBERS.read_text(encoding="utf-8")) if NUMBERS.exists() else {"machine": "", "cases": {}}
    after: dict[str, Any] = {"machine": machine(), "cases": {}}
    for name, case in cases().items():
        after["cases"][name] = numbers(case())
        if name not in before["cases"]:
            print(f"{name}: new")
            continue
        same = before["machine"] == after["machine"]
        changed = differences(before["cases"][name], after["cases"][name], same_machine=same)
        print(f"{name}: {'; '.join(changed) or 'unchanged'}")
    text = json.dumps(after, indent=1, allow_nan=True)
    # One line for each vector: a difference of two versions is then easy to read.
    NUMBERS.write_text(_flat(text) + "\n", encoding="utf-8")


def _flat(text: str) -> str:
    return re.sub(r"\[\s+([-\d.eE+,\s]+?)\s+\]", lambda m: "[" + " ".join(m[1].split()) + "]", text)


if __name__ == "__main__":
    main()
