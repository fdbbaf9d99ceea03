"""Template of several images: processor time, bias, the same bits in any order, and sharpness beside ANTsPy.

Images are brought to one scale first. Both programs use one thread, equal rounds, and begin with the same images. The
sharpness is the mean squared gradient inside the mean mask, of images whose mean there is one. WORK keeps the files.
"""

import os
import shutil
from pathlib import Path

import numpy as np

import regweave as rw
from _common import claim, parser, with_python, write
from _pairs import cases_of, image_file
from regweave.io import read_image, write_image
from regweave.types import Volume

TEMPLATE = """
import ants
files, rounds, out = given
images = list(map(ants.image_read, files))
start = time.process_time()
found = ants.build_template(initial_template=None, image_list=images, iterations=rounds, type_of_transform="SyN")
seconds = time.process_time() - start
ants.image_write(found, out)
print(seconds)
"""


def scaled(name: str, people: int, folder: Path) -> list[Path]:
    """Write the first people of a set with a 99th percentile of 1000; return the files."""
    folder.mkdir(parents=True, exist_ok=True)
    found = []
    for case in cases_of(name)[:people]:
        image = read_image(image_file(name, case))
        inside = image.data[image.data > 0.02 * image.data.max()]
        share = np.maximum(image.data, 0) * np.float32(1000 / np.percentile(inside, 99))
        found.append(folder / f"{case}.nii.gz")
        write_image(found[-1], Volume(share.astype(np.float32), image.geometry, image.modality))
    return found


def gradient_energy(path: Path) -> float:
    """Mean squared gradient inside the head, where the image has the mean one."""
    image = read_image(path)
    mask = image.data > 0.3 * np.percentile(image.data, 99)
    slopes = np.gradient(image.data / image.data[mask].mean(), *image.geometry.spacing_mm)
    return float(sum(part**2 for part in slopes)[mask].mean())


def main() -> None:
    """Build the templates and write what was found."""
    options = parser(__doc__, set="lpba40_80", peers="")
    options.add_argument("work", type=Path, help="folder for images and templates")
    options.add_argument("--people", type=int, default=26, help="images, the first of the set")
    options.add_argument("--rounds", type=int, default=4, help="rounds of averaging")
    options.add_argument("--orders", type=int, default=1, help="orders of the images to try")
    given = options.parse_args()
    files, bits, seconds = scaled(given.set, given.people, given.work / "images"), set(), []
    for n in range(given.orders):
        folder, before = given.work / f"ours{n}", os.times()[:4]
        shutil.rmtree(folder, ignore_errors=True)
        order = [files[k] for k in np.random.default_rng(n).permutation(len(files))]
        rows = [{"id": path.name.partition(".")[0], "image": path} for path in order]
        last = rw.build_template(rows, folder, rounds=given.rounds, workers=1)["rounds"][-1]
        seconds.append(sum(os.times()[:4]) - sum(before))
        bits.add((folder / "template.nii.gz").read_bytes())
    head = f"{given.set}, {len(files)} people, {given.rounds} rounds"
    claims = [
        claim(f"{head}: processor time", float(np.mean(seconds)) / 60, ".1f min"),
        claim(f"{head}: mean field", last["bias"], ".3f voxels", most=0.05),
    ]
    if given.orders > 1:
        claims.append(claim(f"{head}: different files in {given.orders} orders", len(bits), ".0f", most=1))
    if given.peers:
        out = given.work / "ants.nii.gz"
        spent = with_python(given.peers, TEMPLATE, files, given.rounds, out)
        ours, theirs = map(gradient_energy, (given.work / "ours0" / "template.nii.gz", out))
        claims += [
            claim(f"{head}: gradient energy, times that of ANTsPy", ours / theirs, ".2f", least=1.0),
            claim(f"{head}: processor time of ANTsPy", spent / 60, ".1f min"),
        ]
    write(f"template-{given.set}-{len(files)}", 0, {}, claims)


if __name__ == "__main__":
    main()
