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
from _pairs import folds_of, image_file
from regweave import predictors
from regweave.io import sha256
from regweave.io.geometry import Orientation
from regweave.registry import FOLDERS
from regweave.run.read import Reading


def map_folder(set_name: str, archive: Path, folder: Path) -> Path:
    """Write the folder unless it is there, return it, and let this program and its workers use it."""
    plugins = str(ROOT / "benchmark" / "plugins")
    os.environ.update({FOLDERS: plugins, "REGWEAVE_STORED_MAPS": str(folder.absolute())})
    source, about = sha256(archive), folder / "about.json"
    if about.exists() and json.loads(about.read_text(encoding="utf-8"))["source"] == source:
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    key: Any = vars(predictors.get("stored_maps"))["image_key"]
    with np.load(archive, allow_pickle=False) as found:
        classes = [0, *(int(c) for c in found["classes"] if c)]
        for case, fold in folds_of(set_name).items():
            if case not in found or int(found.get(f"fold_{case}", -1)) != fold:
                raise SystemExit(f"{archive.name} has no maps of {case}, or maps of another fold than {fold}")
            volume, maps = Reading().image(image_file(set_name, case)), found[case]
            if maps.shape != (len(classes) - 1, *volume.data.shape) or maps.dtype != np.uint8:
                raise SystemExit(f"{archive.name}: maps of {case} are {maps.dtype} {maps.shape}")
            np.save(folder / f"{key(volume)}.npy", Orientation.of(volume.geometry).to_canonical(maps))
    about.write_text(json.dumps({"set": set_name, "source": source, "classes": classes}) + "\n", encoding="utf-8")
    return folder
