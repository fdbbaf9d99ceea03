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

from _crossval_grid import mixed
from _crossval_mixes import LEARNED, MASKED, Mix
from _pairs import SETS, PairName, cases_of, files, subject_of
from regweave import __version__
from regweave.config import settings as registration_settings
from regweave.io.modality import modality_of
from regweave.jobs.methods import REFINE
from regweave.model.model import Model
from regweave.model.record import Gain, RefinementRecord, TrainingRecord
from regweave.pipeline.reading import Reading
from regweave.registration.initial import STRUCTURES
from regweave.types import WeightTable

NAME = re.compile(
    r"(?P<maps>.*?)(?P<coarse>, [a-z]+-coarse(?: (?P<levels>[0-9.]+))?)?(?P<start>, structures)?"
    r"(?P<apart>, background apart)? × (?P<smoother>[0-9.]+)(?:, (?P<longer>[0-9]+) × steps)?"
)


def parse(name: str) -> Mix:
    """Mix of a candidate's name.

    Examples
    --------
    >>> parse("shapes 32, shapes-coarse × 0.25")
    Mix(maps={'shapes': 32.0}, smoother=0.25, coarse=True, start=False, levels=1.0, longer=1, apart=False)
    >>> parse("outline 8, outline-coarse 4, structures × 0.5, 3 × steps").name
    'outline 8, outline-coarse 4, structures × 0.5, 3 × steps'
    """
    found = NAME.fullmatch(name)
    if found is None:
        raise SystemExit(f"{name!r} is no candidate of a cross-validation")
    parts = [part.rsplit(" ", 1) for part in found["maps"].split(", ")]
    maps = {member: float(factor) for member, factor in parts}
    return Mix(
        maps, float(found["smoother"]), found["coarse"] is not None, found["start"] is not None,
        float(found["levels"] or 1), int(found["longer"] or 1), found["apart"] is not None,
    )  # fmt: skip


def model_of(result: Mapping[str, Any], names: Mapping[str, str | None]) -> Model:
    """Put weights with and without the moving mask together."""
    of, case = SETS[result["data"]], cases_of(result["data"])[0]
    image = Reading().image(files(PairName(result["data"], case, case, subject_of(case)))["fixed"])
    modality = modality_of(image)
    base = registration_settings.preset(result["settings"]).model_copy(update={"modality": modality})
    schedule, classes = base.schedule(modality), (0, *of.labels)
    start = schedule.start_weights(base.smoothness, classes)
    mixes = {rung: parse(_one_of(result["chosen"][rung], names[rung], rung)) for rung in (LEARNED, MASKED)}
    longer, *others = sorted({mix.longer for mix in mixes.values()})
    if others:
        raise SystemExit("both choices must make equally many steps of the refinement: a model has one number of them")
    initial, *others = sorted({STRUCTURES if mix.start else of.init for mix in mixes.values()})
    if others:
        raise SystemExit("both choices must have one start: a model has one")
    refine = base.refine.model_copy(update={"steps": longer * base.refine.steps})
    base = base.model_copy(update={"refine": refine, "initial": initial})
    tables: dict[str, tuple[WeightTable, float]] = {
        rung: (mixed(start, schedule, mix), mix.smoother) for rung, mix in mixes.items()
    }
    (blind, loose), (seen, smoother) = tables[LEARNED], tables[MASKED]
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
