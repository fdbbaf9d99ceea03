"""How long does a registration take on a quiet machine, from files to files, at three sizes?

Each size runs in a fresh process: two brains of 64³ and of 256×128×256 (`register` in Python), and two CTs brought to
512×512×300 (`regweave register`, all files and the page). SETS are folders as those of REGWEAVE_DATA,
CASE/image.nii.gz; the first two cases of each are registered. Wall and processor seconds, seconds for a million voxels,
and the most memory are printed; the faster of some repetitions counts. With several numbers of ``--threads`` the brains
are registered with each: displacements must have the same bits, and the speed-up of levels and refinement is printed.
"""

import hashlib
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from scipy import ndimage

from _common import Claim, parser, write
from regweave import register
from regweave.io import read_image, write_image
from regweave.types import Geometry, Volume

LARGE_CT = (512, 512, 300)
NOISE_HU = 8.0
"""Spread of the noise that is added to enlarged CTs: smooth files would be packed faster than real ones."""
WANTED_S = {"64": 0.8, "native": 9.0, "ct": 90.0}
WANTED_GB = {"ct": 4.0}
WANTED_SPEED_UP = {8: 4.5, 16: 7.0}


def cases(folder: Path) -> list[Path]:
    """Images of the first two cases."""
    found = sorted(folder.glob("*/image.nii.gz"))[:2]
    if len(found) < 2:
        raise SystemExit(f"'{folder}' has no two cases; it should hold CASE/image.nii.gz")
    return found


def enlarged(path: Path, target: Path, seed: int) -> Path:
    """Write a CT on the large grid, with noise."""
    image = read_image(path)
    factors = np.array(LARGE_CT) / image.geometry.shape
    data = ndimage.zoom(image.data, factors, order=1, grid_mode=True, mode="nearest")
    data += np.random.default_rng(seed).normal(0, NOISE_HU, LARGE_CT).astype(np.float32)
    affine = image.geometry.affine.copy()
    affine[:3, :3] /= factors
    affine[:3, 3] = image.geometry.points((1 / factors - 1) / 2)
    write_image(target, Volume(np.rint(data), Geometry(LARGE_CT, affine), "ct"), np.int16)
    return target


def measured(fixed: str, moving: str, init: str, threads: int) -> None:
    """Register in this process, after a small registration has loaded all code, and print the numbers as JSON."""
    register(*_small(), threads=threads, init="none")
    start, busy = time.perf_counter(), time.process_time()
    result = register(fixed, moving, threads=threads, init=init)
    wall, used = time.perf_counter() - start, time.process_time() - busy
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024**2
    voxels = int(np.prod(result.warped.data.shape))
    digest = hashlib.sha256(result.transform.field.data.tobytes()).hexdigest()[:16]
    row = {"wall": wall, "cpu": used, "gb": peak, "voxels": voxels, "displacement": digest}
    print(json.dumps({**row, "stages": dict(result.seconds)}))


def _small() -> list[Any]:
    grid = Geometry((16, 16, 16), np.diag([4.0, 4.0, 4.0, 1.0]))
    rng = np.random.default_rng(0)
    return [Volume(rng.random(grid.shape, dtype=np.float32), grid) for _ in range(2)]


def in_memory(images: Sequence[Path], init: str, threads: int) -> dict[str, Any]:
    """`measured` in a process of its own."""
    words = [sys.executable, __file__, "--once", *map(str, images), init, str(threads)]
    text = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    row: dict[str, Any] = json.loads(text.splitlines()[-1])
    return row


def by_command(images: Sequence[Path], folder: Path, threads: int) -> dict[str, Any]:
    """`regweave register` with all its files, from start to end of the process."""
    start = time.perf_counter()
    call = "from regweave.cli import main; raise SystemExit(main())"
    words = [sys.executable, "-c", call, "register", *map(str, images), "-o", str(folder), "--quiet"]
    process = subprocess.Popen([*words, "--threads", str(threads)])
    _, status, used = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"regweave register ended with status {status}")
    wall, voxels = time.perf_counter() - start, int(np.prod(LARGE_CT))
    return {"wall": wall, "cpu": used.ru_utime + used.ru_stime, "gb": used.ru_maxrss / 1024**2, "voxels": voxels}


def claims_of(name: str, row: dict[str, Any], threads: int) -> list[Claim]:
    """Times, their growth with the voxels, and memory."""
    where, wanted = f"{name}, {threads} threads", WANTED_S[name] if threads == 2 else None
    return [
        Claim(f"wall seconds, {where}", row["wall"], ".2f", " s", wanted, "at most"),
        Claim(f"processor seconds, {where}", row["cpu"], ".2f", " s"),
        Claim(f"wall seconds for a million voxels, {where}", 1e6 * row["wall"] / row["voxels"], ".2f", " s"),
        Claim(f"most memory, {where}", row["gb"], ".2f", " GB", WANTED_GB.get(name), "at most"),
    ]


def thread_claims(name: str, rows: dict[int, dict[str, Any]]) -> list[Claim]:
    """Whether all numbers of threads gave the same bits, and how much quicker more of them are."""
    first, same = rows[min(rows)], len({row["displacement"] for row in rows.values()}) == 1
    out = [Claim(f"displacements with the same bits, {name}", float(same), ".0f", "", 1.0)]
    for n in sorted(rows)[1:]:
        of = [row["stages"]["levels"] + row["stages"]["refine"] for row in (first, rows[n])]
        what = f"speed-up of levels and refinement, {n} threads, {name}"
        out.append(Claim(what, of[0] / of[1], ".2f", "×", WANTED_SPEED_UP.get(n) if name == "native" else None))
        out.append(
            Claim(what.replace("levels and refinement", "the whole"), first["wall"] / rows[n]["wall"], ".2f", "×")
        )
    return out


def main(words: Sequence[str] | None = None) -> None:
    """Measure the sizes whose sets are given, print and write the numbers."""
    options = parser(__doc__ or "", output="quiet")
    for name in WANTED_S:
        options.add_argument(f"--{name}", type=Path, metavar="SET", help="folder of cases")
    options.add_argument("--threads", type=int, nargs="+", default=[2])
    options.add_argument("--repetitions", type=int, default=3, help="of the two smaller sizes")
    args = vars(options.parse_args(words))
    content: dict[str, Any] = {}
    claims: list[Claim] = []
    for name, init in (("64", "none"), ("native", "affine")):
        rows: dict[int, dict[str, Any]] = {}
        for n in sorted(args["threads"]) * args["repetitions"] if args[name] is not None else ():
            row = in_memory(cases(args[name]), init, n)
            rows[n] = min(row, rows.get(n, row), key=lambda r: r["wall"])
            print(name, n, row, flush=True)
        for n, row in rows.items():
            claims += claims_of(name, row, n)
        claims += thread_claims(name, rows) if len(rows) > 1 else []
        content |= {f"{name}, {n} threads": row for n, row in rows.items()}
    if args["ct"] is not None:
        n = max(args["threads"])
        with TemporaryDirectory() as folder:
            names = [Path(folder, f"{side}.nii.gz") for side in ("fixed", "moving")]
            images = [enlarged(c, f, i) for i, (c, f) in enumerate(zip(cases(args["ct"]), names, strict=True))]
            content["ct"] = by_command(images, Path(folder, "result"), n)
        claims += claims_of("ct", content["ct"], n)
    write(args["output"], args["seed"], {"sizes": content}, claims)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--once"]:
        measured(*sys.argv[2:5], int(sys.argv[5]))
    else:
        main()
