"""How far are landmarks of a breathing lung from their partners, beside the registrations that are good at it?

Inhale to exhale of one patient (`popi_lung` of REGWEAVE_DATA), whole images, no mask. Peers run with their own defaults
in a Python of their own (--peers PYTHON), with the voxels that --peers-mm names;
the better of both counts. Intervals are drawn over landmarks. A finished registration is a line of ROWS.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from _common import ROOT, Claim, parser, write
from _pairs import mean_interval
from regweave import notices, register
from regweave.io import read_image, read_points, write_image
from regweave.spatial.warp import warp_image, warp_points
from regweave.types import Field, Float64Array, Geometry, Transform, Volume

PEERS = ("greedy_ncc", "convex_adam")
MOST_MM = 1.10


def ours(images: Sequence[Path], preset: str, threads: int) -> tuple[Transform, dict[str, Any]]:
    """Map of a preset or of settings in a file, and its folds."""
    with notices.muted():
        words = {"config" if preset.endswith(".toml") else "preset": preset}
        result = register(*images, threads=threads, progress=False, **words)
    return result.transform, {"folding": result.regularity["folding_fraction"]}


def peer(
    images: Sequence[Path], adapter: str, python: str, mm: float, threads: int
) -> tuple[Transform, dict[str, Any]]:
    """Map of a peer, on the images as they are or with voxels of so many millimetres, and its seconds."""
    with TemporaryDirectory() as folder:
        paths = [str(path) for path in images]
        if mm:
            paths = [str(Path(folder, f"{n}.nii.gz")) for n in range(len(images))]
            for path, image in zip(paths, map(read_image, images), strict=True):
                write_image(Path(path), resampled(image, mm))
        job, field = Path(folder, "job.json"), Path(folder, "field.npy")
        names = ("fixed_path", "moving_path", "out_field_path")
        words = {**dict(zip(names, (*paths, str(field)), strict=True)), "setting": {}, "threads": threads}
        if adapter == "greedy_ncc":
            words["setting"] = {"steps": [100, 50, 10], "words": ""}
        job.write_text(json.dumps(words), encoding="utf-8")
        script = ROOT / "benchmark" / "peers" / "_worker.py"
        env = {**os.environ, "OMP_NUM_THREADS": str(threads)}
        subprocess.run([python, str(script), adapter, str(job)], check=True, env=env)
        answer = json.loads(job.with_suffix(".answer").read_text(encoding="utf-8"))
        if answer["error"]:
            raise SystemExit(f"{adapter}: {answer['error']}")
        return Transform(Field(np.load(field, allow_pickle=False), read_image(paths[0]).geometry)), answer


def resampled(image: Volume, mm: float) -> Volume:
    """The image on a grid with voxels of so many millimetres."""
    step = mm / image.geometry.spacing_mm
    affine = image.geometry.affine.copy()
    affine[:3, :3] *= step
    grid = Geometry(tuple(int(n) for n in (np.array(image.geometry.shape) - 1) // step + 1), affine)
    return warp_image(image, Transform(Field.zero(grid)), fill=float(image.data.min()))


def rows_of(name: str, errors: Float64Array, labels: Sequence[str], seed: int) -> dict[str, Any]:
    """Errors with their mean and its interval over landmarks."""
    return {"method": name, "errors_mm": errors.tolist(), "mean_mm": mean_interval(errors.tolist(), labels, seed)}


def claims(rows: Mapping[str, Mapping[str, Any]], method: str, labels: Sequence[str], seed: int) -> list[Claim]:
    """Our mean, and how far it is ahead of the better run of each peer."""
    own = rows[method]
    at = own["mean_mm"]
    what = f"{method}: mean error of {at['n']} landmarks (95 % {at['low']:.2f} to {at['high']:.2f})"
    out = [Claim(what, at["mean"], ".3f", " mm", MOST_MM, "at most")]
    out.append(Claim(f"{method}: voxels folded", own["folding"], ".2%", "", 0.0, "at most"))
    for adapter in PEERS:
        some = [row for name, row in rows.items() if name.startswith(adapter)]
        if some:
            best = min(some, key=lambda row: row["mean_mm"]["mean"])
            less = mean_interval(np.subtract(best["errors_mm"], own["errors_mm"]).tolist(), labels, seed)
            what = f"{best['method']}: mean error more (95 % {less['low']:+.2f} to {less['high']:+.2f})"
            out.append(Claim(f"{best['method']}: mean error", best["mean_mm"]["mean"], ".3f", " mm"))
            out.append(Claim(what, less["mean"], "+.3f", " mm", 0.0))
    return out


def main() -> None:
    """Run what is missing, and print."""
    options = parser(__doc__ or "", output="lung")
    options.add_argument("--preset", default="default", help="a preset, or settings in a TOML file")
    options.add_argument("--peers", help="Python that has picsl_greedy and convexAdam")
    options.add_argument("--peers-mm", type=float, nargs="+", default=[0.0], help="voxels for peers; 0: as they are")
    options.add_argument("--threads", type=int, default=1)
    options.add_argument("--rows", type=Path, default=Path("lung.jsonl"), help="file of finished registrations")
    given = options.parse_args()
    folders = [Path(os.environ["REGWEAVE_DATA"]) / "popi_lung" / phase for phase in ("t00", "t50")]
    images, (fixed, labels) = [folder / "image.nii.gz" for folder in folders], read_points(folders[0] / "landmarks.csv")
    moving = read_points(folders[1] / "landmarks.csv")[0]
    lines = given.rows.read_text(encoding="utf-8").splitlines() if given.rows.exists() else []
    rows = {row["method"]: row for row in map(json.loads, lines)}
    runs: dict[str, Any] = {given.preset: lambda: ours(images, given.preset, given.threads)}
    for adapter in PEERS if given.peers else ():
        for mm in given.peers_mm:
            run = lambda a=adapter, mm=mm: peer(images, a, given.peers, mm, given.threads)  # noqa: E731
            runs[f"{adapter}, {mm:g} mm" if mm else adapter] = run
    for name, run in runs.items():
        if name not in rows:
            began = time.process_time()
            transform, more = run()
            errors = np.linalg.norm(warp_points(fixed, transform) - moving, axis=1)
            rows[name] = {**rows_of(name, errors, labels, given.seed), "cpu_s": time.process_time() - began, **more}
            with given.rows.open("a", encoding="utf-8") as file:
                file.write(json.dumps(rows[name]) + "\n")
            print(name, round(float(errors.mean()), 3), flush=True)
    found = {name: rows[name] for name in runs}
    write(given.output, given.seed, {"rows": list(found.values())}, claims(found, given.preset, labels, given.seed))


if __name__ == "__main__":
    main()
