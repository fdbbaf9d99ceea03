"""Propagated contours against simulated follow-ups with known truth, beside other programs: accuracy, time, judge.

``--cases`` holds a folder for each case with a series, ``ct/`` or ``mr/``, and ``rtstruct.dcm``; ``--tools`` holds
make_dicom_followup.py and check_rtstruct.py. Structures made from a dose are left out of all rows, as the program
leaves them out.
Ours is judged by its contours, plastimatch by the masks that it writes; elastix and ANTs, run by ``--peer-python`` with
itk-elastix and antspyx, by masks that plastimatch drew of the planning contours and they warped.
"""

import itertools
import json
import sys
from argparse import Namespace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import SimpleITK as sitk  # noqa: N813

from _common import Rows, Run, claim, parser, regweave_command, run, write
from _pairs import mean_of
from regweave.clinic.structures import is_of_dose
from regweave.measures.scores import dice
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


NIFTI = ("--prefix-format", "nii.gz")


def series_of(case: Path) -> Path:
    """Folder of the series of a case."""
    return next(path for path in sorted(case.iterdir()) if path.is_dir())


def ours(case: Path, rtstruct: Path, today: Path, out: Path, given: Namespace) -> list[Run]:
    """Run ``regweave contours``."""
    words = (series_of(case), today, "-o", out / "result", "--rtstruct", rtstruct, "--quiet")
    threads = ("--threads", given.threads) if given.threads else ()
    done = regweave_command("contours", *words, *threads, threads=given.threads or 2, check=False)
    (out / "result" / "rtstruct.dcm").rename(out / "rtstruct.dcm")
    return [done]


def plastimatch(case: Path, rtstruct: Path, today: Path, out: Path, _: Namespace) -> list[Run]:
    """Run plastimatch: translation, then B-splines of 40 and 20 mm, then its own warping of the structures to masks."""
    plan, steps = series_of(case), out / "steps.txt"
    steps.write_text(PLASTIMATCH.format(today=today, plan=plan, out=out))
    first = run("plastimatch", "register", steps)
    # The folder of a DICOM series is no --fixed for it; the warped image has the same grid.
    words = ("--xf", out / "field.nii.gz", "--fixed", out / "warped.nii.gz", "--output-prefix", out / "masks", *NIFTI)
    return [first, run("plastimatch", "warp", "--input", rtstruct, "--referenced-ct", plan, *words)]


def through_files(name: str, case: Path, rtstruct: Path, today: Path, out: Path, given: Namespace) -> list[Run]:
    """Run elastix or ANTs on NIfTI files; drawing masks and converting is part of the way and of its time."""
    plan, images = series_of(case), (out / "today.nii.gz", out / "plan.nii.gz")
    convert = partial(run, "plastimatch", "convert", "--input")
    done = [convert(rtstruct, "--referenced-ct", plan, "--output-prefix", out / "drawn", *NIFTI)]
    done += [convert(one, "--output-img", to) for one, to in zip((today, plan), images, strict=True)]
    (out / "masks").mkdir()
    script = Path(__file__).with_name("_clinic_peer.py")
    return [*done, run(given.peer_python, script, name, *images, out / "drawn", out / "masks")]


METHODS = {
    "regweave": ours,
    "plastimatch": plastimatch,
    "elastix": partial(through_files, "elastix"),
    "ants": partial(through_files, "ants"),
}


def judged(tools: Path, out: Path, rtstruct: Path, followup: Path) -> dict[str, Any]:
    """Let the judge compare a structure set with the truth."""
    words = ("--source", rtstruct, "--truth", followup / "truth", "--json", out / "r.json")
    run(sys.executable, tools / "check_rtstruct.py", out / "rtstruct.dcm", followup / "ct", *words, check=False)
    found = json.loads((out / "r.json").read_text())
    rows = {name: row for name, row in found["structures"].items() if not is_of_dose(Structure(0, name))}
    return {
        "fails": sum(mark == "FAIL" for mark, *_ in found["checks"]),
        "mean_distance_mm": mean_of(row["mda"] for row in rows.values()),
        "dice": {name: row["dice"] for name, row in rows.items()},
    }


def judged_masks(out: Path, followup: Path) -> dict[str, Any]:
    """Compare masks with the true masks; a structure without a mask counts 0."""
    truth, found = json.loads((followup / "truth" / "truth.json").read_text())["structures"], {}
    for name, one in truth.items():
        if not is_of_dose(Structure(0, name)):
            true, path = _mask(followup / "truth" / "masks" / one["mask"]), out / "masks" / f"{name}.nii.gz"
            found[name] = dice(true, _mask(path) if path.exists() else 0 * true, [1])[1]
    return {"dice": found}


def _mask(path: Path) -> Any:
    return (sitk.GetArrayFromImage(sitk.ReadImage(str(path))) != 0).astype(int)


def measured(given: Namespace, seed: int, method: str) -> dict[str, Any]:
    """Make a follow-up, run a method on it, and compare."""
    case, tools = given.cases / given.case, given.tools
    rtstruct = case / given.rtstruct
    with TemporaryDirectory() as folder:
        followup, out = Path(folder, "followup"), Path(folder, method)
        make = (tools / "make_dicom_followup.py", series_of(case), rtstruct, followup)
        run(sys.executable, *make, "--seed", seed)
        out.mkdir()
        done = METHODS[method](case, rtstruct, followup / "ct", out, given)
        found = judged(tools, out, rtstruct, followup) if method == "regweave" else judged_masks(out, followup)
    scores = found["dice"].values()
    return {
        "case": given.case, "seed": seed, "method": method, "seconds": sum(one.wall for one in done),
        "cpu_seconds": sum(one.cpu for one in done), "mean_dice": mean_of(scores), "least_dice": min(scores), **found,
    }  # fmt: skip


def claims(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return what must hold of all rows: our overlap, our lowest structure, and our lead over each peer."""
    own = {(row["case"], row["seed"]): row for row in rows if row["method"] == "regweave"}
    found = [
        claim("lowest mean Dice of a follow-up", min(row["mean_dice"] for row in own.values()), least=0.95),
        claim("lowest Dice of a structure", min(row["least_dice"] for row in own.values()), least=0.88),
    ]
    for peer in sorted({row["method"] for row in rows} - {"regweave"}):
        lead = [own[row["case"], row["seed"]]["mean_dice"] - row["mean_dice"] for row in rows if row["method"] == peer]
        found.append(claim(f"smallest lead in mean Dice over {peer}", min(lead), "+.3f", least=0.0))
    return found


def main() -> None:
    """Run all seeds of a case, and report all rows of the file."""
    options = parser(__doc__, threads=None)
    options.add_argument("--cases", type=Path, required=True, help="folder of cases")
    options.add_argument("--tools", type=Path, required=True, help="folder of the simulator and the judge")
    options.add_argument("--case", default="eclipse_ent", help="name of the case")
    options.add_argument("--rtstruct", default="rtstruct.dcm", help="name in the folder of the case")
    options.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3], help="follow-ups")
    options.add_argument("--peers", nargs="*", choices=list(METHODS)[1:], default=[], help="other programs")
    options.add_argument("--peer-python", default=sys.executable, help="interpreter with itk-elastix and antspyx")
    options.add_argument("--output", type=Path, default=Path("clinic.json"), help="file of finished rows")
    options.add_argument("--name", default="clinic", help="name of the result")
    given = options.parse_args()
    kept = Rows(given.output)
    for seed, method in itertools.product(given.seeds, ("regweave", *given.peers)):
        kept.get([given.case, seed, method], partial(measured, given, seed, method))
    rows = kept.all()
    write(given.name, given.seeds[0], {"rows": rows}, claims(rows))


if __name__ == "__main__":
    main()
