"""Propagated contours against simulated follow-ups with known truth, beside other programs: accuracy, time, judge.

    python benchmark/clinic.py --cases FOLDER --tools FOLDER [--case eclipse_ent] [--seeds 1 2 3] [--peers plastimatch]
        [--peer-python PYTHON] [--threads 1]

``--cases`` holds a folder for each case with a series, ``ct/`` or ``mr/``, and ``rtstruct.dcm``; ``--tools`` holds
make_dicom_followup.py and check_rtstruct.py. Structures made from a dose are left out of all rows, as the program
leaves them out.
Ours is judged by its contours, plastimatch by the masks that it writes; elastix and ANTs, run by ``--peer-python`` with
itk-elastix and antspyx, by masks that plastimatch drew of the planning contours and they warped.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import SimpleITK as sitk  # noqa: N813

from _common import Claim, write
from regweave.clinic.structures import is_of_dose
from regweave.types import Structure

PLASTIMATCH = """[GLOBAL]
fixed={today}
moving={plan}
img_out={out}/warped.nii.gz
vf_out={out}/field.nii.gz
[STAGE]
xform=translation
optim=rsg
max_its=50
res=4 4 2
[STAGE]
xform=bspline
metric=mse
max_its=60
grid_spac=40 40 40
res=4 4 2
[STAGE]
max_its=60
grid_spac=20 20 20
res=2 2 1
"""


@dataclass(frozen=True)
class Task:
    """A planning case with its structure set, today's series, a folder for results, interpreter of peers, threads."""

    case: Path
    rtstruct: Path
    today: Path
    out: Path
    python: str
    threads: list[str]

    @property
    def plan(self) -> Path:
        """Folder of the planning series."""
        return series_of(self.case)


def series_of(case: Path) -> Path:
    """Folder of the series of a case."""
    return next(path for path in sorted(case.iterdir()) if path.is_dir())


def timed(words: list[str], log: Path) -> dict[str, float]:
    """Run a program; return its wall and processor seconds."""
    before, start = os.times(), time.perf_counter()
    with log.open("w") as stream:
        subprocess.run(words, check=True, stdout=stream, stderr=subprocess.STDOUT)
    after = os.times()
    used = after.children_user + after.children_system - before.children_user - before.children_system
    return {"seconds": time.perf_counter() - start, "cpu_seconds": used}


def ours(task: Task) -> dict[str, float]:
    """Run ``regweave contours``."""
    rtstruct, today, out = task.rtstruct, task.today, task.out
    words = [sys.executable, "-m", "regweave", "contours", str(task.plan), str(today), "-o", str(out / "result")]
    words += task.threads
    spent = timed([*words, "--rtstruct", str(rtstruct), "--quiet"], out / "log.txt")
    (out / "result" / "rtstruct.dcm").rename(out / "rtstruct.dcm")
    return spent


def plastimatch(task: Task) -> dict[str, float]:
    """Run plastimatch: translation, then B-splines of 40 and 20 mm, then its own warping of the structures to masks."""
    rtstruct, today, out = task.rtstruct, task.today, task.out
    (out / "steps.txt").write_text(PLASTIMATCH.format(today=today, plan=task.plan, out=out))
    spent = timed(["plastimatch", "register", str(out / "steps.txt")], out / "log.txt")
    # The folder of a DICOM series is no --fixed for it; the warped image has the same grid.
    words = ["plastimatch", "warp", "--input", str(rtstruct), "--referenced-ct", str(task.plan)]
    words += ["--xf", str(out / "field.nii.gz"), "--fixed", str(out / "warped.nii.gz")]
    more = timed([*words, "--output-prefix", str(out / "masks"), "--prefix-format", "nii.gz"], out / "log2.txt")
    return {key: spent[key] + more[key] for key in spent}


def through_files(name: str, task: Task) -> dict[str, float]:
    """Run elastix or ANTs on NIfTI files; drawing masks and converting is part of the way and of its time."""
    rtstruct, today, out = task.rtstruct, task.today, task.out
    words = ["plastimatch", "convert", "--input", str(rtstruct), "--referenced-ct", str(task.plan)]
    words += ["--output-prefix", str(out / "drawn"), "--prefix-format", "nii.gz"]
    first = timed(words, out / "log.txt")
    for series, target in ((today, "today"), (task.plan, "plan")):
        convert = ["plastimatch", "convert", "--input", str(series), "--output-img", str(out / f"{target}.nii.gz")]
        more = timed(convert, out / "log.txt")
        first = {key: first[key] + more[key] for key in first}
    (out / "masks").mkdir()
    script = Path(__file__).with_name("_clinic_peer.py")
    images = [str(out / f"{target}.nii.gz") for target in ("today", "plan")]
    run = timed([task.python, str(script), name, *images, str(out / "drawn"), str(out / "masks")], out / "log2.txt")
    return {key: first[key] + run[key] for key in first}


METHODS = {
    "regweave": ours,
    "plastimatch": plastimatch,
    "elastix": partial(through_files, "elastix"),
    "ants": partial(through_files, "ants"),
}
PEERS = sorted(set(METHODS) - {"regweave"})


def judged(tools: Path, out: Path, rtstruct: Path, followup: Path) -> dict[str, Any]:
    """Let the judge compare a structure set with the truth."""
    words = [sys.executable, str(tools / "check_rtstruct.py"), str(out / "rtstruct.dcm"), str(followup / "ct")]
    words += ["--source", str(rtstruct), "--truth", str(followup / "truth"), "--json", str(out / "r.json")]
    subprocess.run(words, check=False, stdout=subprocess.DEVNULL)
    found = json.loads((out / "r.json").read_text())
    rows = {name: row for name, row in found["structures"].items() if not is_of_dose(Structure(0, name))}
    distances = [row["mda"] for row in rows.values()]
    return {
        "fails": sum(mark == "FAIL" for mark, *_ in found["checks"]),
        "mean_distance_mm": sum(distances) / len(distances),
        **summary({name: row["dice"] for name, row in rows.items()}),
    }


def judged_masks(out: Path, followup: Path) -> dict[str, Any]:
    """Compare masks with the true masks; a structure without a mask counts 0."""
    truth, dice = json.loads((followup / "truth" / "truth.json").read_text())["structures"], {}
    for name, one in truth.items():
        if is_of_dose(Structure(0, name)):
            continue
        true = _mask(followup / "truth" / "masks" / one["mask"])
        path = out / "masks" / f"{name}.nii.gz"
        found = _mask(path) if path.exists() else np.zeros_like(true)
        dice[name] = float(2 * (true & found).sum() / (true.sum() + found.sum()))
    return summary(dice)


def summary(dice: dict[str, float]) -> dict[str, Any]:
    """Return the mean and the lowest Dice with all of them."""
    return {"mean_dice": sum(dice.values()) / len(dice), "least_dice": min(dice.values()), "dice": dice}


def _mask(path: Path) -> np.ndarray:
    return sitk.GetArrayFromImage(sitk.ReadImage(str(path))) != 0


def main() -> None:
    """Run all seeds of a case."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=Path, required=True)
    parser.add_argument("--tools", type=Path, required=True)
    parser.add_argument("--case", default="eclipse_ent")
    parser.add_argument("--rtstruct", default="rtstruct.dcm", help="name in the folder of the case")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--peers", nargs="*", choices=PEERS, default=[])
    parser.add_argument("--peer-python", default=sys.executable, help="interpreter with itk-elastix and antspyx")
    parser.add_argument("--threads", type=int, help="of ours")
    rows_of = "rows; those that are there are not run again"
    parser.add_argument("--output", type=Path, default=Path("clinic.json"), help=rows_of)
    parser.add_argument("--name", default="clinic", help="of the result")
    given = parser.parse_args()
    rows = _earlier(given.output)
    for seed in given.seeds:
        done = {row["method"] for row in rows if (row["case"], row["seed"]) == (given.case, seed)}
        if missing := [method for method in ("regweave", *given.peers) if method not in done]:
            rows += one_seed(given, seed, missing)
            given.output.write_text(json.dumps(rows, indent=1) + "\n")
    write(given.name, given.seeds[0], {"rows": rows}, claims(rows))


def claims(rows: list[dict[str, Any]]) -> list[Claim]:
    """Return what must hold of all rows: our overlap, our lowest structure, and our lead over each peer."""
    own = {(row["case"], row["seed"]): row for row in rows if row["method"] == "regweave"}
    found = [
        Claim("lowest mean Dice of a follow-up", min(row["mean_dice"] for row in own.values()), target=0.95),
        Claim("lowest Dice of a structure", min(row["least_dice"] for row in own.values()), target=0.88),
    ]
    for peer in sorted({row["method"] for row in rows} - {"regweave"}):
        lead = [own[r["case"], r["seed"]]["mean_dice"] - r["mean_dice"] for r in rows if r["method"] == peer]
        found.append(Claim(f"smallest lead in mean Dice over {peer}", min(lead), "+.3f", target=0.0))
    return found


def one_seed(given: argparse.Namespace, seed: int, methods: list[str]) -> list[dict[str, Any]]:
    """Make a follow-up, run methods on it, print and return their rows."""
    case, rows = given.cases / given.case, []
    rtstruct = case / given.rtstruct
    threads = ["--threads", str(given.threads)] if given.threads else []
    with tempfile.TemporaryDirectory() as folder:
        followup = Path(folder) / "followup"
        make = [sys.executable, str(given.tools / "make_dicom_followup.py"), str(series_of(case)), str(rtstruct)]
        subprocess.run([*make, str(followup), "--seed", str(seed)], check=True)
        for method in methods:
            out = Path(folder) / method
            out.mkdir()
            spent = METHODS[method](Task(case, rtstruct, followup / "ct", out, given.peer_python, threads))
            ours_here = method == "regweave"
            found = judged(given.tools, out, rtstruct, followup) if ours_here else judged_masks(out, followup)
            rows.append({"case": given.case, "seed": seed, "method": method, **spent, **found})
            row = rows[-1]
            dice = f"Dice mean {row['mean_dice']:.3f} least {row['least_dice']:.3f}"
            print(f"{given.case} {seed} {method:<12}{dice} {row['cpu_seconds']:.0f} CPU s", flush=True)
    return rows


def _earlier(path: Path) -> list[dict[str, Any]]:
    return json.loads(path.read_text()) if path.exists() else []


if __name__ == "__main__":
    main()
