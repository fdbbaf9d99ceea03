"""Joint label fusion against that of ANTsPy, on the same warps, and against the best single atlas.

Atlases are registered to people that are left out, once; every way of fusing gets these warped images and labels. Both
programs use one thread. ANTsPy runs with its defaults and with the parameters of the paper; its better mean counts.

    python benchmark/atlas.py WORK --peers PYTHON [SET=TARGETS …]

WORK keeps warps and a line of JSON for each person; what is there is not run again. PYTHON has antspyx.
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
RIVALS = {"ants": {}, "ants_paper": {"beta": 2, "rho": 0.1}}
ASKED = {"over_ants": 0.01, "over_single": 0.03, "time": 0.2, "rho": 0.6}
FUSE = """
import json, sys, time, ants, numpy as np
target, folders, words, out = json.loads(sys.argv[1])
image = ants.image_read(target)
images = [ants.image_read(f + "/warped.nii.gz") for f in folders]
labels = [ants.image_read(f + "/warped_labels.nii.gz") for f in folders]
union = sum((one.numpy() > 0).astype("float32") for one in labels) > 0
mask = image.new_image_like(union.astype("float32"))
start = time.process_time()
found = ants.joint_label_fusion(image, mask, images, label_list=labels, **words)
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


def of_ants(peers: str, target: Path, folders: list[Path], words: dict[str, Any], out: Path) -> tuple[Any, float]:
    """Fuse with ANTsPy on one thread; return the labels and the seconds of the processor."""
    given = json.dumps([str(target), [str(folder) for folder in folders], words, str(out)])
    environment = os.environ | {"ITK_GLOBAL_DEFAULT_NUMBER_OF_THREADS": "1"}
    run = subprocess.run([peers, "-c", FUSE, given], capture_output=True, text=True, env=environment, check=True)
    return np.rint(read_image(out).data).astype(int), float(run.stdout.splitlines()[-1])


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
    for rival, words in RIVALS.items():
        found, seconds = of_ants(peers, target, folders, words, work / "ants.nii.gz")
        row |= {rival: mean(found), f"{rival}_s": seconds}
    return row


def report(rows: list[dict[str, Any]]) -> None:
    """Print asked and measured values of each set."""
    from scipy import stats

    claims = []
    print("set                 people  joint  vote   staple ants   single | over ants, time of ants, over single | rho")
    for name in dict.fromkeys(row["set"] for row in rows):
        mine = [row for row in rows if row["set"] == name]

        def mean(key: str, mine: list[dict[str, Any]] = mine) -> float:
            return float(np.mean([row[key] for row in mine]))

        rival = max(RIVALS, key=mean)
        best = float(np.mean([max(row["single"]) for row in mine]))
        pairs = np.array([pair for row in mine for pair in row["pairs"]]).T
        means = " ".join(f"{value:.3f} " for value in (mean("joint"), mean("vote"), mean("staple"), mean(rival), best))
        share = mean("joint_s") / mean(f"{rival}_s")
        over = f"{mean('joint') - mean(rival):+.3f} {share:.3f} {mean('joint') - best:+.3f}"
        rho = float(stats.spearmanr(*pairs).statistic)
        print(f"{name:<20}{len(mine):<8}{means}| {over} | {rho:.2f} ({rival})")
        head, gains = f"{name}, {len(mine)} people", (mean("joint") - mean(rival), mean("joint") - best)
        claims += [
            _common.Claim(f"{head}: joint fusion, mean Dice", mean("joint"), ".3f"),
            _common.Claim(f"{head}: over ANTsPy on the same warps", gains[0], "+.3f", "", ASKED["over_ants"]),
            _common.Claim(f"{head}: over the best single atlas", gains[1], "+.3f", "", ASKED["over_single"]),
            _common.Claim(f"{head}: processor time, of that of ANTsPy", share, ".2f", "", ASKED["time"], "at most"),
            _common.Claim(f"{head}: estimated and true Dice, rank correlation", rho, ".2f", "", ASKED["rho"]),
        ]
    _common.write("atlas", 0, {"rows": rows}, claims)


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("work", type=Path)
    words.add_argument("--peers", default=sys.executable)
    words.add_argument("sets", nargs="*", metavar="SET=TARGETS")
    given = words.parse_intermixed_args()
    data, ledger = Path(os.environ["REGWEAVE_DATA"]), given.work / "atlas.jsonl"
    given.work.mkdir(parents=True, exist_ok=True)
    rows = [json.loads(line) for line in ledger.read_text().splitlines()] if ledger.exists() else []
    chosen = {text.partition("=")[0]: int(text.partition("=")[2]) for text in given.sets} or SETS
    for name, targets in chosen.items():
        for one, others in warps(data, given.work, name, targets).items():
            if not any((row["set"], row["person"]) == (name, one) for row in rows):
                rows.append(measure(data, given.work, name, one, others, given.peers))
                with ledger.open("a") as stream:
                    stream.write(json.dumps(rows[-1]) + "\n")
    report(rows)


if __name__ == "__main__":
    main()
