"""Model with the weights that a cross-validation chose, for `ship.py` to give a predictor of all patients.

`python benchmark/chosen.py crossval-msd_hippocampus.json chosen.json` reads what the folds chose with and without the
moving mask; where folds differ, ``--learned`` and ``--mask`` say which of their choices to take. The smoothness of the
mask's choice goes into the settings, that of the other becomes a stiffness of all classes.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from _crossval_grid import Mix, mixed
from _pairs import SETS, PairName, cases_of, files, subject_of
from regweave import __version__
from regweave.config import settings as registration_settings
from regweave.io.modality import modality_of
from regweave.jobs.methods import REFINE
from regweave.model.model import Model
from regweave.model.record import Gain, RefinementRecord, TrainingRecord
from regweave.pipeline.reading import Reading
from regweave.types import WeightTable

NAME = re.compile(r"(?P<maps>.*?)(?P<coarse>, [a-z]+-coarse)?(?P<start>, structures)? × (?P<smoother>[0-9.]+)")


def parse(name: str) -> Mix:
    """Mix of a candidate's name.

    Examples
    --------
    >>> parse("shapes 32, shapes-coarse × 0.25")
    Mix(maps={'shapes': 32.0}, smoother=0.25, coarse=True, start=False)
    """
    found = NAME.fullmatch(name)
    if found is None:
        raise SystemExit(f"{name!r} is no candidate of a cross-validation")
    parts = [part.rsplit(" ", 1) for part in found["maps"].split(", ")]
    maps = {member: float(factor) for member, factor in parts}
    return Mix(maps, float(found["smoother"]), found["coarse"] is not None, found["start"] is not None)


def model_of(result: Mapping[str, Any], names: Mapping[str, str | None]) -> Model:
    """Put weights with and without the moving mask together."""
    of, case = SETS[result["data"]], cases_of(result["data"])[0]
    image = Reading().image(files(PairName(result["data"], case, case, subject_of(case)))["fixed"])
    modality = modality_of(image)
    base = registration_settings.preset(result["settings"]).model_copy(update={"modality": modality})
    schedule, classes = base.schedule(modality), (0, *of.labels)
    start = schedule.start_weights(base.smoothness, classes)
    tables: dict[str, tuple[WeightTable, float]] = {}
    for rung in ("learned", "learned, mask"):
        mix = parse(_one_of(result["chosen"][rung], names[rung], rung))
        tables[rung] = (mixed(start, schedule, mix), mix.smoother)
    (blind, loose), (seen, smoother) = tables["learned"], tables["learned, mask"]
    blind = replace(blind, stiffness=np.full(len(classes), loose / smoother))
    people = sorted({subject_of(case) for case in cases_of(result["data"])})
    gain = Gain(**{k: result["differences"]["learned, mask − uniform"][k] for k in ("mean", "low", "high", "n")})
    record = TrainingRecord(
        regweave=__version__, method="cross-validation", groups=tuple(people), refinement=RefinementRecord(gain=gain)
    )
    return Model(
        seen, REFINE.set(base, REFINE.get(base) * smoother), modality, {0: "background", **of.labels}, record,
        weights_without_mask=blind,
    )  # fmt: skip


def _one_of(chosen: Sequence[str], name: str | None, rung: str) -> str:
    if name in chosen or (name is None and len(chosen) == 1):
        return name or chosen[0]
    raise SystemExit(f"the folds chose for {rung!r}: {'; '.join(chosen)}; say which to take")


def main() -> None:
    """Read a result, write a model."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("result", type=Path, help="result of crossval.py")
    options.add_argument("output", type=Path, help="model to write")
    options.add_argument("--learned", help="choice without the moving mask")
    options.add_argument("--mask", help="choice with it")
    args = options.parse_args()
    names = {"learned": args.learned, "learned, mask": args.mask}
    model_of(json.loads(args.result.read_text(encoding="utf-8")), names).save(args.output)
    print(f"wrote {args.output.name}")


if __name__ == "__main__":
    main()
