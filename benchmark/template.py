"""Template of several images: processor time, bias, the same bits in any order, and sharpness beside ANTsPy.

    python benchmark/template.py WORK --peers PYTHON [--set SET] [--people N] [--rounds N]

Images are brought to one scale first. Both programs use one thread, equal rounds, and begin with the same images. The
sharpness is the mean squared gradient inside the mean mask, of images whose mean there is one.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np

import _common
import regweave as rw
from regweave.io import read_image, write_image
from regweave.types import Float32Array, Volume

TEMPLATE = """
import json, sys, time, ants
images, rounds, out = json.loads(sys.argv[1])
images = [ants.image_read(path) for path in images]
start = time.process_time()
found = ants.build_template(initial_template=None, image_list=images, iterations=rounds, type_of_transform="SyN")
print(json.dumps(time.process_time() - start))
ants.image_write(found, out)
"""


def spent() -> float:
    """Processor seconds of this process and of those that it started."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def scaled(data: Path, name: str, people: int, folder: Path) -> list[Path]:
    """Write the first people of a set with a 99th percentile of 1000; return the files."""
    folder.mkdir(parents=True, exist_ok=True)
    found = []
    for path in sorted((data / name).glob("*/image.nii.gz"))[:people]:
        image = read_image(path)
        inside = image.data[image.data > 0.02 * image.data.max()]
        share = np.maximum(image.data, 0) * np.float32(1000 / np.percentile(inside, 99))
        found.append(folder / f"{path.parent.name}.nii.gz")
        write_image(found[-1], Volume(share.astype(np.float32), image.geometry, image.modality))
    return found


def gradient_energy(image: Volume, mask: Float32Array) -> float:
    """Mean squared gradient inside a mask, where the image has the mean one."""
    data = image.data / image.data[mask].mean()
    slope = sum(part**2 for part in np.gradient(data, *image.geometry.spacing_mm))
    return float(slope[mask].mean())


def built(files: list[Path], folder: Path, rounds: int) -> tuple[dict[str, float], float]:
    """Build a template with one worker; return its last round and the processor seconds."""
    if folder.exists():
        shutil.rmtree(folder)
    began = spent()
    rows = [{"id": path.name.partition(".")[0], "image": path} for path in files]
    found = rw.build_template(rows, folder, rounds=rounds, workers=1)
    return found["rounds"][-1], spent() - began


def main() -> None:
    """Build the templates and write what was found."""
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("work", type=Path)
    words.add_argument("--peers", default="")
    words.add_argument("--set", default="lpba40_80")
    words.add_argument("--people", type=int, default=26)
    words.add_argument("--rounds", type=int, default=4)
    words.add_argument("--orders", type=int, default=1)
    given = words.parse_args()
    files = scaled(Path(os.environ["REGWEAVE_DATA"]), given.set, given.people, given.work / "images")
    orders = [[files[k] for k in np.random.default_rng(n).permutation(len(files))] for n in range(given.orders)]
    last, seconds = {}, []
    for n, order in enumerate(orders):
        last, cost = built(order, given.work / f"ours{n}", given.rounds)
        seconds.append(cost)
    bytes_of = {(given.work / f"ours{n}" / "template.nii.gz").read_bytes() for n in range(given.orders)}
    head = f"{given.set}, {len(files)} people, {given.rounds} rounds"
    claims = [
        _common.Claim(f"{head}: processor time", float(np.mean(seconds)) / 60, ".1f", " min"),
        _common.Claim(f"{head}: mean field", last["bias"], ".3f", " voxels", 0.05, "at most"),
    ]
    if given.orders > 1:
        claims.append(_common.Claim(f"{head}: different files in {given.orders} orders", len(bytes_of), ".0f", "", 1,
                                    "at most"))  # fmt: skip
    if given.peers:
        out = given.work / "ants.nii.gz"
        content = json.dumps([[str(path) for path in files], given.rounds, str(out)])
        environment = os.environ | {"ITK_GLOBAL_DEFAULT_NUMBER_OF_THREADS": "1"}
        run = subprocess.run([given.peers, "-c", TEMPLATE, content], capture_output=True, text=True, env=environment,
                             check=True)  # fmt: skip
        images = [read_image(path) for path in (given.work / "ours0" / "template.nii.gz", out)]
        ours, theirs = (gradient_energy(one, one.data > 0.3 * np.percentile(one.data, 99)) for one in images)
        claims += [
            _common.Claim(f"{head}: gradient energy, times that of ANTsPy", ours / theirs, ".2f", "", 1.0),
            _common.Claim(f"{head}: processor time of ANTsPy", float(run.stdout.splitlines()[-1]) / 60, ".1f", " min"),
        ]
    _common.write(f"template-{given.set}-{len(files)}", 0, {}, claims)


if __name__ == "__main__":
    sys.exit(main())
