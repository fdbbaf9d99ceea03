"""Joint label fusion against that of ANTsPy, on the same warps, and against the best single atlas.

Atlases are registered to people that are left out, once; every way of fusing gets these warped images and labels. Both
programs use one thread. ANTsPy runs with its defaults, with the parameters of the paper, with patches compared by
correlation and with normalised images; its best mean counts. `max_lab_plus_one` lets it choose the background.

    python benchmark/atlas.py WORK --peers PYTHON [--whole KIND,KIND] [SET=TARGETS …]

WORK keeps warps and a line of JSON for each person; what is there is not run again. PYTHON has antspyx. With --whole it
also registers the same images with its own transforms of these kinds, and fuses what they warp.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import _common
import regweave as rw
from regweave.io.images import read_image, read_labels
from regweave.jobs.atlas import Atlas, _estimates
from regweave.measures.overlap import dice
from regweave.run.fusion import fuse
from regweave.threads import kernel_threads

SETS = {"msd_hippocampus": 3, "openkbp_head_neck": 3, "ibsr18_64_affine": 3, "lpba40_80": 2, "btcv_abdomen": 2}
ATLASES = 7
RIVALS: dict[str, dict[str, Any]] = {
    "ants": {}, "ants_paper": {"beta": 2, "rho": 0.1}, "ants_correlation": {"usecor": True},
    "ants_normalised": {"normalised": True},
}  # fmt: skip
ASKED = {"over_ants": 0.01, "over_whole": 0.03, "over_single": 0.03, "time": 0.2, "rho": 0.6}
REGISTER = """
import json, sys, time, ants
kind, target, rows = json.loads(sys.argv[1])
fixed, start = ants.image_read(target), time.process_time()
for image, labels, folder in rows:
    found = ants.registration(fixed, ants.image_read(image), kind, random_seed=1)
    ants.image_write(found["warpedmovout"], folder + "/warped.nii.gz")
    carried = ants.apply_transforms(fixed, ants.image_read(labels), found["fwdtransforms"], "genericLabel")
    ants.image_write(carried, folder + "/warped_labels.nii.gz")
print(json.dumps(time.process_time() - start))
"""
FUSE = """
import json, sys, time, ants, numpy as np
target, folders, words, out = json.loads(sys.argv[1])
image, *images = [ants.image_read(f) for f in [target, *(f + "/warped.nii.gz" for f in folders)]]
if words.pop("normalised", False):
    image, *images = [ants.iMath(one, "Normalize") for one in [image, *images]]
labels = [ants.image_read(f + "/warped_labels.nii.gz") for f in folders]
union = sum((one.numpy() > 0).astype("float32") for one in labels) > 0
mask = image.new_image_like(union.astype("float32"))
start = time.process_time()
found = ants.joint_label_fusion(image, mask, images, label_list=labels, max_lab_plus_one=True, **words)
print(json.dumps(time.process_time() - start))
ants.image_write(found["segmentation"], out)
"""


def people(folder: Path) -> list[str]:
    """Cases of a set in a seeded order; of the two sides of a hippocampus one."""
    names = sorted(path.name for path in folder.iterdir() if path.is_dir())
    if folder.name == "msd_hippocampus":
        names = list({(int(name.split("_")[1]) + 1) // 2: name for name in reversed(names)}.values())[::-1]
    random.Random(0).shuffle(names)
    return names


def warps(data: Path, work: Path, name: str, targets: int) -> dict[str, list[str]]:
    """Register atlases to the people that are left out; return the atlases of each."""
    names = people(data / name)
    left = names[:targets]
    pairs = {}
    for one in left:
        others = [other for other in names if other != one and (other not in left or len(names) < targets + ATLASES)]
        pairs[one] = others[:ATLASES]
    rows = [
        {
            "id": f"{one}--{other}", "fixed": data / name / one / "image.nii.gz", "init": "affine",
            "moving": data / name / other / "image.nii.gz", "moving_labels": data / name / other / "labels.nii.gz",
        }
        for one, listed in pairs.items()
        for other in listed
    ]  # fmt: skip
    folder = work / "warps" / name
    if not all((folder / row["id"] / "result.json").is_file() for row in rows):
        found = rw.batch(rows, folder, workers=1, write=["warped", "labels", "inverse"], resume=folder.exists())
        assert not found.failures, found.failures
    return pairs


def run_ants(peers: str, script: str, given: Any) -> float:
    """Run ANTsPy on one thread; return the seconds of the processor."""
    environment = os.environ | {"ITK_GLOBAL_DEFAULT_NUMBER_OF_THREADS": "1"}
    command = [peers, "-c", script, json.dumps(given)]
    run = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    return float(run.stdout.splitlines()[-1])


def of_ants(peers: str, case: Path, folders: list[Path], out: Path) -> dict[str, list[float]]:
    """Fuse with ANTsPy in each way; return the mean Dice and the seconds of the processor."""
    truth, found = read_labels(case / "labels.nii.gz"), {}
    for rival, words in RIVALS.items():
        seconds = run_ants(peers, FUSE, [str(case / "image.nii.gz"), list(map(str, folders)), words, str(out)])
        scores = dice(np.rint(read_image(out).data).astype(int), truth.data, truth.values())
        found[rival] = [float(np.mean(list(scores.values()))), seconds]
    return found


def whole(
    data: Path, work: Path, name: str, one: str, others: list[str], peers: str, kind: str
) -> dict[str, list[float]]:
    """Register and fuse with ANTsPy alone; mean Dice and seconds, of the registrations too, by way of fusing."""
    folders = [work / kind / name / f"{one}--{other}" for other in others]
    kept, rows = work / kind / name / f"{one}.json", []
    for folder, other in zip(folders, others, strict=True):
        folder.mkdir(parents=True, exist_ok=True)
        case = data / name / other
        rows.append([str(case / "image.nii.gz"), str(case / "labels.nii.gz"), str(folder)])
    if not kept.exists():
        kept.write_text(json.dumps(run_ants(peers, REGISTER, [kind, str(data / name / one / "image.nii.gz"), rows])))
    seconds = json.loads(kept.read_text())
    fused = of_ants(peers, data / name / one, folders, work / "ants.nii.gz")
    return {f"{kind} {rival}": [score, seconds + more] for rival, (score, more) in fused.items()}


def measure(data: Path, work: Path, name: str, one: str, others: list[str], peers: str) -> dict[str, Any]:
    """Fuse the warps of one person in every way; mean Dice and seconds of each."""
    target = data / name / one / "image.nii.gz"
    folders = [work / "warps" / name / f"{one}--{other}" for other in others]
    image, truth = read_image(target), read_labels(data / name / one / "labels.nii.gz")
    images = [read_image(folder / "warped.nii.gz") for folder in folders]
    labels = [read_labels(folder / "warped_labels.nii.gz") for folder in folders]

    def mean(found: Any) -> float:
        return float(np.mean(list(dice(found, truth.data, truth.values()).values())))

    row: dict[str, Any] = {"set": name, "person": one, "single": [mean(found.data) for found in labels]}
    for way in ("joint", "vote", "staple"):
        with kernel_threads(1):
            start = time.process_time()
            fused = fuse(image, images, labels, way)
        row |= {way: mean(fused.labels.data), f"{way}_s": time.process_time() - start}
        if way == "joint":
            scores = dice(fused.labels, truth, truth.values())
            rows = tuple({"id": other, "group": other} for other in others)
            atlas = Atlas.model_construct(rows=rows, names={}, folder=work / "atlases" / name)
            for other in others:
                link = atlas.folder / other
                link.parent.mkdir(parents=True, exist_ok=True)
                if not link.exists():
                    link.symlink_to(data / name / other)
            estimates = _estimates(atlas, others, folders, fused.labels)
            row["pairs"] = [[estimates[v], score] for v, score in scores.items() if v in estimates]
    row["ants"] = of_ants(peers, target.parent, folders, work / "ants.nii.gz")
    return row


def best_of(rows: list[dict[str, Any]], key: str) -> tuple[str, float, float]:
    """Way of ANTsPy with the highest mean Dice over people; its Dice and seconds."""
    ways = set.intersection(*(set(row[key]) for row in rows))
    means = {way: np.mean([row[key][way] for row in rows], axis=0) for way in sorted(ways)}
    way = max(means, key=lambda one: means[one][0])
    return way, float(means[way][0]), float(means[way][1])


def report(rows: list[dict[str, Any]]) -> None:
    """Print asked and measured values of each set."""
    from scipy import stats

    claims = []
    print("set                 people  joint  vote   staple ants   single | over ants, time of ants, over single | rho")
    for name in dict.fromkeys(row["set"] for row in rows):
        mine = [row for row in rows if row["set"] == name]

        def mean(key: str, mine: list[dict[str, Any]] = mine) -> float:
            return float(np.mean([row[key] for row in mine]))

        rival, theirs, their_s = best_of(mine, "ants")
        best = float(np.mean([max(row["single"]) for row in mine]))
        pairs = np.array([pair for row in mine for pair in row["pairs"]]).T
        means = " ".join(f"{value:.3f} " for value in (mean("joint"), mean("vote"), mean("staple"), theirs, best))
        share = mean("joint_s") / their_s
        over = f"{mean('joint') - theirs:+.3f} {share:.3f} {mean('joint') - best:+.3f}"
        rho = float(stats.spearmanr(*pairs).statistic)
        print(f"{name:<20}{len(mine):<8}{means}| {over} | {rho:.2f} ({rival})")
        head, gains = f"{name}, {len(mine)} people", (mean("joint") - theirs, mean("joint") - best)
        claims += [
            _common.Claim(f"{head}: joint fusion, mean Dice", mean("joint"), ".3f"),
            _common.Claim(f"{head}: over ANTsPy on the same warps", gains[0], "+.3f", "", ASKED["over_ants"]),
            _common.Claim(f"{head}: over the best single atlas", gains[1], "+.3f", "", ASKED["over_single"]),
            _common.Claim(f"{head}: processor time, of that of ANTsPy", share, ".2f", "", ASKED["time"], "at most"),
            _common.Claim(f"{head}: estimated and true Dice, rank correlation", rho, ".2f", "", ASKED["rho"]),
        ]
        if some := [row for row in mine if "whole" in row]:
            way, theirs, their_s = best_of(some, "whole")
            gain = float(np.mean([row["joint"] for row in some])) - theirs
            print(f"{'':<20}{len(some)} people, ANTsPy end to end ({way}): {theirs:.3f} | {gain:+.3f}, {their_s:.0f} s")
            what = f"{name}, {len(some)} people: over ANTsPy end to end ({way})"
            claims.append(_common.Claim(what, gain, "+.3f", "", ASKED["over_whole"]))
    _common.write("atlas", 0, {"rows": rows}, claims)


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("work", type=Path)
    words.add_argument("--peers", default=sys.executable)
    words.add_argument("--whole", default="", metavar="KIND,KIND", help="such as SyN: register with ANTsPy too")
    words.add_argument("sets", nargs="*", metavar="SET=TARGETS")
    given = words.parse_intermixed_args()
    data, ledger = Path(os.environ["REGWEAVE_DATA"]), given.work / "atlas.jsonl"
    given.work.mkdir(parents=True, exist_ok=True)
    rows = [json.loads(line) for line in ledger.read_text().splitlines()] if ledger.exists() else []
    chosen = {text.partition("=")[0]: int(text.partition("=")[2]) for text in given.sets} or SETS
    for name, targets in chosen.items():
        for one, others in warps(data, given.work, name, targets).items():
            row = next((row for row in rows if (row["set"], row["person"]) == (name, one)), None)
            if row is None:
                row = measure(data, given.work, name, one, others, given.peers)
                rows.append(row)
            for kind in filter(None, given.whole.split(",")):
                if not any(way.startswith(f"{kind} ") for way in row.get("whole", {})):
                    found = whole(data, given.work, name, one, others, given.peers, kind)
                    row["whole"] = row.get("whole", {}) | found
            ledger.write_text("".join(json.dumps(one) + "\n" for one in rows))
    report(rows)


if __name__ == "__main__":
    main()
