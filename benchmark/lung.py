"""How far are landmarks of a breathing lung from their partners, beside the registrations that are good at it?

Inhale to exhale of one patient (`popi_lung` of REGWEAVE_DATA), whole images, no mask. Peers run with their own defaults
in a Python of their own (--peers PYTHON), with the voxels that --peers-mm names; the better run of each counts.
Intervals are drawn over landmarks. Finished registrations are kept.
"""

from collections.abc import Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from _common import Rows, claim, parser, write
from _pairs import image_file, mean_interval, registered, with_settings
from peers import run_adapter
from regweave.io import read_image, read_points, write_image
from regweave.spatial.warp import warp_image, warp_points
from regweave.types import Field, Float64Array, Geometry, Transform, Volume

PEERS = {"greedy_ncc": {"steps": [100, 50, 10], "words": ""}, "convex_adam": {}}
MOST_MM = 1.10


@cache
def lung() -> tuple[list[Path], list[Float64Array], Sequence[str]]:
    """Files of both phases, their landmarks, and the names of these."""
    paths = [image_file("popi_lung", phase) for phase in ("t00", "t50")]
    points = [read_points(path.with_name("landmarks.csv")) for path in paths]
    return paths, [of[0] for of in points], points[0][1]


def with_errors(transform: Transform, row: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """A row with the errors of all landmarks, and their mean with its interval over landmarks."""
    _, (fixed, moving), names = lung()
    errors = np.linalg.norm(warp_points(fixed, transform) - moving, axis=1).tolist()
    return {**row, "errors_mm": errors, "mean_mm": mean_interval(errors, names, seed)}


def ours(preset: str, threads: int, seed: int) -> dict[str, Any]:
    """Errors and folds of a preset or of settings in a file."""
    result, row = registered(*lung()[0], threads=threads, **with_settings(preset))
    return with_errors(result.transform, row, seed)


def peer(adapter: str, python: str, mm: float, threads: int, seed: int) -> dict[str, Any]:
    """Errors of a peer, on the images as they are or with voxels of so many millimetres."""
    with TemporaryDirectory() as folder:
        paths, field = list(lung()[0]), Path(folder, "field.npy")
        for n, image in enumerate(map(read_image, paths) if mm else ()):
            paths[n] = Path(folder, f"{n}.nii.gz")
            write_image(paths[n], resampled(image, mm))
        row = run_adapter(python, f"adapters.{adapter}", *paths, field, PEERS[adapter], threads)
        if row["error"] is not None:
            raise SystemExit(f"{adapter}: {row['error']}")
        grid = read_image(paths[0]).geometry
        return with_errors(Transform(Field(np.load(field, allow_pickle=False), grid)), row, seed)


def resampled(image: Volume, mm: float) -> Volume:
    """The image on a grid with voxels of so many millimetres."""
    step, affine = mm / image.geometry.spacing_mm, image.geometry.affine.copy()
    affine[:3, :3] *= step
    grid = Geometry(tuple(int(n) for n in (np.array(image.geometry.shape) - 1) // step + 1), affine)
    return warp_image(image, Transform(Field.zero(grid)), fill=float(image.data.min()))


def claims(rows: Mapping[str, Mapping[str, Any]], method: str, seed: int) -> list[dict[str, Any]]:
    """Our mean, and how far it is ahead of the better run of each peer."""
    own, at = rows[method], rows[method]["mean_mm"]
    what = f"{method}: mean error of {at['n']} landmarks (95 % {at['low']:.2f} to {at['high']:.2f})"
    out = [claim(what, at["mean"], ".3f mm", most=MOST_MM)]
    out.append(claim(f"{method}: voxels folded", own["folds"], ".2%", most=0.0))
    for adapter in PEERS:
        if some := [name for name in rows if name.startswith(adapter)]:
            best = min(some, key=lambda name: rows[name]["mean_mm"]["mean"])
            less = mean_interval(np.subtract(rows[best]["errors_mm"], own["errors_mm"]).tolist(), lung()[2], seed)
            out.append(claim(f"{best}: mean error", rows[best]["mean_mm"]["mean"], ".3f mm"))
            what = f"{best}: mean error more (95 % {less['low']:+.2f} to {less['high']:+.2f})"
            out.append(claim(what, less["mean"], "+.3f mm", least=0.0))
    return out


def main() -> None:
    """Run what is missing, and print."""
    options = parser(__doc__, preset="default", seed=0, threads=1, peers=None, rows=Path("lung.jsonl"), output="lung")
    options.add_argument("--peers-mm", type=float, nargs="+", default=[0.0], help="voxels for peers; 0: as they are")
    given = options.parse_args()
    kept, how = Rows(given.rows), (given.threads, given.seed)
    runs = {given.preset: partial(ours, given.preset, *how)}
    for adapter in PEERS if given.peers else ():
        for mm in given.peers_mm:
            runs[f"{adapter}, {mm:g} mm" if mm else adapter] = partial(peer, adapter, given.peers, mm, *how)
    found = {name: kept.get([name], run) for name, run in runs.items()}
    rows = [{"method": name, **row} for name, row in found.items()]
    write(given.output, given.seed, {"rows": rows}, claims(found, given.preset, given.seed))


if __name__ == "__main__":
    main()
