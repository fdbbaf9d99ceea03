"""Joint label fusion against that of ANTsPy, on the same warps, and against the best single atlas.

Atlases are registered to people that are left out, once; every way of fusing gets these warped images and labels. Both
programs use one thread. ANTsPy runs with its defaults, with the parameters of the paper, with patches compared by
correlation and with normalised images; its best mean counts. `max_lab_plus_one` lets it choose the background. With
--whole it also registers the same images with its own transforms of these kinds, and fuses what they warp. WORK keeps
warps and finished rows.
"""

import random
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

import regweave as rw
from _common import Rows, claim, parser, with_python, write
from _pairs import cases_of, data_root, image_file, mean_of, read_case, subject_of
from regweave.io import read_image, read_labels
from regweave.jobs.atlas import Atlas, _estimates
from regweave.measures.scores import dice
from regweave.run.fusion import fuse
from regweave.threads import kernel_threads

SETS = {"msd_hippocampus": 3, "openkbp_head_neck": 3, "ibsr18_64_affine": 3, "lpba40_80": 2, "btcv_abdomen": 2}
ATLASES = 7
RIVALS: dict[str, dict[str, Any]] = {
    "ants": {}, "ants_paper": {"beta": 2, "rho": 0.1}, "ants_correlation": {"usecor": True},
    "ants_normalised": {"normalised": True},
}  # fmt: skip
REGISTER = """
import ants
kind, target, rows = given
fixed, start = ants.image_read(target), time.process_time()
for image, labels, folder in rows:
    found = ants.registration(fixed, ants.image_read(image), kind, random_seed=1)
    ants.image_write(found["warpedmovout"], folder + "/warped.nii.gz")
    carried = ants.apply_transforms(fixed, ants.image_read(labels), found["fwdtransforms"], "genericLabel")
    ants.image_write(carried, folder + "/warped_labels.nii.gz")
print(time.process_time() - start)
"""
FUSE = """
import ants
target, folders, words, out = given
image, *images = [ants.image_read(f) for f in [target, *(f + "/warped.nii.gz" for f in folders)]]
if words.pop("normalised", False):
    image, *images = [ants.iMath(one, "Normalize") for one in [image, *images]]
labels = [ants.image_read(f + "/warped_labels.nii.gz") for f in folders]
union = sum((one.numpy() > 0).astype("float32") for one in labels) > 0
mask = image.new_image_like(union.astype("float32"))
start = time.process_time()
found = ants.joint_label_fusion(image, mask, images, label_list=labels, max_lab_plus_one=True, **words)
seconds = time.process_time() - start
ants.image_write(found["segmentation"], out)
print(seconds)
"""


def warps(work: Path, name: str, targets: int) -> dict[str, list[str]]:
    """Register atlases to the people that are left out, each in a seeded order; return the atlases of each."""
    names = list({subject_of(case): case for case in reversed(cases_of(name))}.values())[::-1]
    random.Random(0).shuffle(names)
    left, pairs = names[:targets], {}
    for one in left:
        others = [other for other in names if other != one and (other not in left or len(names) < targets + ATLASES)]
        pairs[one] = others[:ATLASES]
    rows = []
    for one, other in ((one, other) for one, listed in pairs.items() for other in listed):
        fixed, moving = image_file(name, one), image_file(name, other)
        files = {"fixed": fixed, "moving": moving, "moving_labels": moving.with_name("labels.nii.gz")}
        rows.append({"id": f"{one}--{other}", "init": "affine", **files})
    folder = work / "warps" / name
    if not all((folder / row["id"] / "result.json").is_file() for row in rows):
        found = rw.batch(rows, folder, workers=1, write=["warped", "labels", "inverse"], resume=folder.exists())
        assert not found.failures, found.failures
    return pairs


def of_ants(peers: str, name: str, one: str, folders: list[Path], out: Path) -> dict[str, list[float]]:
    """Fuse with ANTsPy in each way; return the mean Dice and the seconds of the processor."""
    truth, found = read_case(name, one).labels, {}
    for rival, words in RIVALS.items():
        seconds = with_python(peers, FUSE, image_file(name, one), folders, words, out)
        scores = dice(np.rint(read_image(out).data).astype(int), truth.data, truth.values())
        found[rival] = [mean_of(scores.values()), seconds]
    return found


def whole(work: Path, name: str, one: str, others: list[str], peers: str, kind: str) -> dict[str, Any]:
    """Register and fuse with ANTsPy alone; mean Dice and seconds, of the registrations too, by way of fusing."""
    folders, rows = [work / kind / name / f"{one}--{other}" for other in others], []
    for folder, other in zip(folders, others, strict=True):
        folder.mkdir(parents=True, exist_ok=True)
        image = image_file(name, other)
        rows.append((image, image.with_name("labels.nii.gz"), folder))
    spent = with_python(peers, REGISTER, kind, image_file(name, one), rows)
    fused = of_ants(peers, name, one, folders, work / "ants.nii.gz")
    ways = {f"{kind} {rival}": [score, spent + more] for rival, (score, more) in fused.items()}
    return {"set": name, "person": one, "whole": ways}


def measured(work: Path, name: str, one: str, others: list[str], peers: str) -> dict[str, Any]:
    """Fuse the warps of one person in every way; mean Dice and seconds of each."""
    folders = [work / "warps" / name / f"{one}--{other}" for other in others]
    image = read_case(name, one)
    images = [read_image(folder / "warped.nii.gz") for folder in folders]
    labels = [read_labels(folder / "warped_labels.nii.gz") for folder in folders]

    def scores(found: Any) -> dict[int, float]:
        return dice(found, image.labels, image.labels.values())

    row: dict[str, Any] = {"set": name, "person": one, "single": [mean_of(scores(of).values()) for of in labels]}
    for way in ("joint", "vote", "staple"):
        with kernel_threads(1):
            start = time.process_time()
            fused = fuse(image, images, labels, way)
        row |= {way: mean_of(scores(fused.labels).values()), f"{way}_s": time.process_time() - start}
        if way == "joint":
            rows = tuple({"id": other, "group": other} for other in others)
            atlas = Atlas.model_construct(rows=rows, names={}, folder=data_root() / name)
            estimates = _estimates(atlas, others, folders, fused.labels)
            row["pairs"] = [[estimates[v], score] for v, score in scores(fused.labels).items() if v in estimates]
    return {**row, "ants": of_ants(peers, name, one, folders, work / "ants.nii.gz")}


def best_of(rows: list[dict[str, Any]], key: str) -> tuple[str, float, float]:
    """Way of ANTsPy with the highest mean Dice over people; its Dice and seconds."""
    ways = set.intersection(*(set(row[key]) for row in rows))
    means = {way: np.mean([row[key][way] for row in rows], axis=0) for way in sorted(ways)}
    way = max(means, key=lambda one: means[one][0])
    return way, float(means[way][0]), float(means[way][1])


def claims_of(name: str, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Print and return asked and measured values of a set."""
    ours, vote, staple, ours_s = (mean_of(row[key] for row in rows) for key in ("joint", "vote", "staple", "joint_s"))
    rival, theirs, their_s = best_of(rows, "ants")
    single, head = mean_of(max(row["single"]) for row in rows), f"{name}, {len(rows)} people"
    rho = float(stats.spearmanr(*np.array([pair for row in rows for pair in row["pairs"]]).T).statistic)
    print(f"{head}: vote {vote:.3f}, STAPLE {staple:.3f}, ANTsPy {theirs:.3f} ({rival}), single {single:.3f}")
    claims = [
        claim(f"{head}: joint fusion, mean Dice", ours),
        claim(f"{head}: over ANTsPy on the same warps", ours - theirs, "+.3f", least=0.01),
        claim(f"{head}: over the best single atlas", ours - single, "+.3f", least=0.03),
        claim(f"{head}: processor time, of that of ANTsPy", ours_s / their_s, ".2f", most=0.2),
        claim(f"{head}: estimated and true Dice, rank correlation", rho, ".2f", least=0.6),
    ]
    if some := [row for row in rows if "whole" in row]:
        way, theirs, their_s = best_of(some, "whole")
        what = f"{name}, {len(some)} people: over ANTsPy end to end ({way})"
        claims.append(claim(what, mean_of(row["joint"] for row in some) - theirs, "+.3f", least=0.03))
    return claims


def main() -> None:
    """Fuse what is missing, and report all rows of WORK."""
    options = parser(__doc__, peers=sys.executable)
    options.add_argument("work", type=Path, help="folder for warps and rows")
    options.add_argument("--whole", default="", metavar="KIND,KIND", help="such as SyN: register with ANTsPy too")
    options.add_argument("sets", nargs="*", metavar="SET=TARGETS", help="sets, with the number of people left out")
    given = options.parse_intermixed_args()
    given.work.mkdir(parents=True, exist_ok=True)
    kept = Rows(given.work / "rows.jsonl")
    for name, targets in dict(text.split("=") for text in given.sets).items() or SETS.items():
        for one, others in warps(given.work, name, int(targets)).items():
            how = (given.work, name, one, others, given.peers)
            kept.get((name, one, "fused"), partial(measured, *how))
            for kind in filter(None, given.whole.split(",")):
                kept.get((name, one, kind), partial(whole, *how, kind))
    rows = [row for row in kept.all() if "joint" in row]
    for more in (row for row in kept.all() if "joint" not in row):
        row = next(row for row in rows if (row["set"], row["person"]) == (more["set"], more["person"]))
        row["whole"] = row.get("whole", {}) | more["whole"]
    claims = []
    for name in dict.fromkeys(row["set"] for row in rows):
        claims += claims_of(name, [row for row in rows if row["set"] == name])
    write("atlas", 0, {"rows": rows}, claims)


if __name__ == "__main__":
    main()
