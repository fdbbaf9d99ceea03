"""Are the bits of the result the same for any number of threads, and from run to run?

Each run is a fresh process; the transform's displacement is hashed.
"""

from __future__ import annotations

import hashlib
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

from _common import Claim, failure, parser, write
from _pairs import (
    SETS,
    PairName,
    all_settings_of,
    choose_pairs,
    choose_set,
    read,
    settings_hash,
)
from regweave import register
from regweave.config.settings import Settings


def digest(name: PairName, settings: Settings, init: str, threads: int) -> dict[str, str | None]:
    """Register a pair: the hash of its displacement and initial affine, or the error."""
    try:
        data = read(name)
        result = register(data.fixed, data.moving, config=settings, init=init, threads=threads)
    except Exception as error:
        return {"error": failure(error), "sha256": None}
    sha = hashlib.sha256(result.transform.field.data.tobytes())
    sha.update(result.transform.affine.tobytes())
    return {"error": None, "sha256": sha.hexdigest()}


def repeat(name: PairName, settings: Settings, init: str, threads: list[int], runs: int) -> dict[str, Any]:
    """Row of one pair: the hash of each run, and whether all are the same."""
    rows: list[dict[str, Any]] = []
    for n in threads:
        for run in range(runs):
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
                row = pool.submit(digest, name, settings, init, n).result()
                rows.append({"threads": n, "run": run, **row})
    hashes = {r["sha256"] for r in rows}
    return {"fixed": name.fixed, "moving": name.moving, "same": len(hashes) == 1 and None not in hashes, "runs": rows}


def main() -> None:
    """Run the benchmark."""
    options = parser(__doc__ or "", pairs=1)
    options.add_argument("--set", default="ibsr18_64", help=f"one of {', '.join(SETS)}")
    options.add_argument("--presets", nargs="+", default=["paper", "default"], help="presets or TOML files")
    options.add_argument("--threads", nargs="+", type=int, default=[1, 2, 3])
    options.add_argument("--runs", type=int, default=2)
    args = options.parse_args()
    chosen, data = choose_set(args.set)
    content: dict[str, Any] = {"data": data, "credit": SETS[chosen].credit, "init": args.init, "runs": {}}
    claims = []
    for settings in all_settings_of(args.presets):
        names = choose_pairs(chosen, args.pairs, args.seed)
        rows = [repeat(name, settings, args.init, args.threads, args.runs) for name in names]
        content["runs"][settings.name] = {"settings": settings_hash(settings), "pairs": rows}
        counts = ", ".join(str(t) for t in args.threads)
        claims.append(
            Claim(
                f"share of {len(rows)} pairs with the same bits for {counts} threads, {args.runs} runs each, "
                f"{settings.name}, {data}",
                sum(r["same"] for r in rows) / len(rows), ".0%", "", 1.0,
            )
        )  # fmt: skip
    write(args.output or f"repeat-{chosen}", args.seed, content, claims)


if __name__ == "__main__":
    main()
