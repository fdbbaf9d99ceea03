"""How long does a registration take on a quiet machine, from files to files, at three sizes?

Each size runs in a fresh process: two brains of 64³ and of 256×128×256 (`register` in Python), and two CTs brought to
512×512×300 (`regweave register`, all files and the page). SETS are folders as those of REGWEAVE_DATA,
CASE/image.nii.gz; the first two cases of each are registered. Wall and processor seconds, seconds for a million voxels,
and the most memory are printed; the faster of some repetitions counts. With several numbers of ``--threads`` the brains
are registered with each: displacements must have the same bits, and the speed-up of levels and refinement is printed.
"""

import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from scipy import ndimage

from _common import claim, parser, regweave_command, run, write
from regweave.io import read_image, write_image
from regweave.types import Geometry, Volume

LARGE_CT = (512, 512, 300)
NOISE_HU = 8.0
"""Spread of the noise that is added to enlarged CTs: smooth files would be packed faster than real ones."""
WANTED_S = {"64": 0.8, "native": 9.0, "ct": 90.0}
WANTED_GB = {"ct": 4.0}
WANTED_SPEED_UP = {8: 4.5, 16: 7.0}
ONCE = """
import hashlib, json, resource, sys, time
import numpy as np
from regweave import register
from regweave.types import Geometry, Volume
fixed, moving, init, threads = sys.argv[1:]
words = {"threads": int(threads), "progress": False}
grid = Geometry((16, 16, 16), np.diag([4.0, 4.0, 4.0, 1.0]))
rng = np.random.default_rng(0)
small = (Volume(rng.random(grid.shape, dtype=np.float32), grid) for _ in range(2))
register(*small, init="none", **words)  # loads all code
start, busy = time.perf_counter(), time.process_time()
found = register(fixed, moving, init=init, **words)
print(json.dumps({
    "wall": time.perf_counter() - start, "cpu": time.process_time() - busy,
    "gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024**2, "voxels": found.warped.data.size,
    "displacement": hashlib.sha256(found.transform.field.data.tobytes()).hexdigest()[:16],
    "stages": dict(found.seconds),
}))
"""


def cases(folder: Path) -> list[Path]:
    """Images of the first two cases."""
    found = sorted(folder.glob("*/image.nii.gz"))[:2]
    if len(found) < 2:
        raise SystemExit(f"'{folder}' has no two cases; it should hold CASE/image.nii.gz")
    return found


def enlarged(path: Path, target: Path, seed: int) -> Path:
    """Write a CT on the large grid, with noise."""
    image = read_image(path)
    factors, affine = np.array(LARGE_CT) / image.geometry.shape, image.geometry.affine.copy()
    data = ndimage.zoom(image.data, factors, order=1, grid_mode=True, mode="nearest")
    data += np.random.default_rng(seed).normal(0, NOISE_HU, LARGE_CT).astype(np.float32)
    affine[:3, :3] /= factors
    affine[:3, 3] = image.geometry.points((1 / factors - 1) / 2)
    write_image(target, Volume(np.rint(data), Geometry(LARGE_CT, affine), "ct"), np.int16)
    return target


def claims_of(name: str, row: dict[str, Any], threads: int) -> list[dict[str, Any]]:
    """Times, their growth with the voxels, and memory."""
    where, wanted = f"{name}, {threads} threads", WANTED_S[name] if threads == 2 else None
    return [
        claim(f"wall seconds, {where}", row["wall"], ".2f s", most=wanted),
        claim(f"processor seconds, {where}", row["cpu"], ".2f s"),
        claim(f"wall seconds for a million voxels, {where}", 1e6 * row["wall"] / row["voxels"], ".2f s"),
        claim(f"most memory, {where}", row["gb"], ".2f GB", most=WANTED_GB.get(name)),
    ]


def thread_claims(name: str, rows: dict[int, dict[str, Any]]) -> list[dict[str, Any]]:
    """Whether all numbers of threads gave the same bits, and how much quicker more of them are."""
    first, *others = (rows[n] for n in sorted(rows))
    same = all(row["displacement"] == first["displacement"] for row in others)
    out = [claim(f"displacements with the same bits, {name}", float(same), ".0f", least=1.0)]
    for n, row in zip(sorted(rows)[1:], others, strict=True):
        before, after = (sum(of["stages"][stage] for stage in ("levels", "refine")) for of in (first, row))
        wanted, where = WANTED_SPEED_UP.get(n) if name == "native" else None, f"{n} threads, {name}"
        out.append(claim(f"speed-up of levels and refinement, {where}", before / after, ".2f×", least=wanted))
        out.append(claim(f"speed-up of the whole, {where}", first["wall"] / row["wall"], ".2f×"))
    return out


def main() -> None:
    """Measure the sizes whose sets are given, print and write the numbers."""
    options = parser(__doc__, seed=0, repetitions=3, output="quiet")
    for name in WANTED_S:
        options.add_argument(f"--{name}", type=Path, metavar="SET", help="folder of cases")
    options.add_argument("--threads", type=int, nargs="+", default=[2], help="threads to try")
    args = vars(options.parse_args())
    content: dict[str, Any] = {}
    claims: list[dict[str, Any]] = []
    for name, init in (("64", "none"), ("native", "affine")):
        rows: dict[int, dict[str, Any]] = {}
        for n in sorted(args["threads"]) * args["repetitions"] if args[name] is not None else ():
            row = json.loads(
                run(sys.executable, "-c", ONCE, *cases(args[name]), init, n, threads=n).text.splitlines()[-1]
            )
            rows[n] = min(row, rows.get(n, row), key=lambda r: r["wall"])
            print(name, n, row, flush=True)
        for n, row in rows.items():
            claims += claims_of(name, row, n)
        claims += thread_claims(name, rows) if len(rows) > 1 else []
        content |= {f"{name}, {n} threads": row for n, row in rows.items()}
    if args["ct"] is not None:
        n = max(args["threads"])
        with TemporaryDirectory() as folder:
            found = [enlarged(c, Path(folder, f"{i}.nii.gz"), i) for i, c in enumerate(cases(args["ct"]))]
            words = ("-o", Path(folder, "result"), "--quiet", "--threads", n)
            done = regweave_command("register", *found, *words, threads=n)
        content["ct"] = {"wall": done.wall, "cpu": done.cpu, "gb": done.gb, "voxels": int(np.prod(LARGE_CT))}
        claims += claims_of("ct", content["ct"], n)
    write(args["output"], args["seed"], {"sizes": content}, claims)


if __name__ == "__main__":
    main()
