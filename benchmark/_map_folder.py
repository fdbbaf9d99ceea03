"""Folder of structure maps for the predictor `stored_maps`, from the archive that the networks of a set left.

The archive has for each case an array of 8-bit probabilities (structures, X, Y, Z) along the axes of the file,
``fold_CASE`` with the fold of the person, ``classes`` with the label values. It is refused unless every case's maps
come from the network of its own fold: one that has not seen the person.
"""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from _common import ROOT
from _pairs import PairName, cases_of, files, folds_of, subject_of
from regweave import predictors
from regweave.io import sha256
from regweave.io.geometry import Orientation
from regweave.registry import FOLDERS
from regweave.run.read import Reading

PLUGINS = ROOT / "benchmark" / "plugins"


def map_folder(set_name: str, archive: Path, folder: Path) -> Path:
    """Write the folder unless it is there, return it, and let this program and its workers use it."""
    os.environ.update({FOLDERS: str(PLUGINS), "REGWEAVE_STORED_MAPS": str(folder.absolute())})
    source = sha256(archive)
    about = folder / "about.json"
    if about.exists() and json.loads(about.read_text(encoding="utf-8"))["source"] == source:
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    folds, reading = folds_of(set_name), Reading()
    key: Any = vars(predictors.get("stored_maps"))["image_key"]
    with np.load(archive, allow_pickle=False) as found:
        classes = _classes(found)
        check(set_name, found, folds)
        for case in cases_of(set_name):
            volume = reading.image(files(PairName(set_name, case, case, subject_of(case)))["fixed"])
            maps = found[case]
            if maps.shape != (len(classes) - 1, *volume.data.shape) or maps.dtype != np.uint8:
                raise SystemExit(f"{archive.name}: maps of {case} are {maps.dtype} {maps.shape}")
            np.save(folder / f"{key(volume)}.npy", Orientation.of(volume.geometry).to_canonical(maps))
    about.write_text(json.dumps({"set": set_name, "source": source, "classes": classes}) + "\n", encoding="utf-8")
    return folder


def check(set_name: str, found: Any, folds: dict[str, int]) -> None:
    """Refuse an archive that lacks a case, or has one of another fold than `folds_of` deals it to."""
    missing = [case for case in folds if case not in found]
    wrong = [case for case, fold in folds.items() if f"fold_{case}" in found and int(found[f"fold_{case}"]) != fold]
    unsaid = [case for case in folds if f"fold_{case}" not in found]
    for what, which in (
        ("has no maps of", missing),
        ("has maps of another fold of", wrong),
        ("has no fold of", unsaid),
    ):
        if which:
            raise SystemExit(f"the archive of {set_name} {what} {', '.join(which[:5])} ({len(which)} cases)")


def _classes(found: Any) -> list[int]:
    listed = [int(c) for c in found["classes"]]
    return listed if listed[0] == 0 else [0, *listed]
