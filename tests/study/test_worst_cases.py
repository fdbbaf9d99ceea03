"""Which pairs of an evaluation deserve a look."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from regweave.config.settings import Settings
from regweave.jobs.methods import Method
from regweave.jobs.store import Outcome
from regweave.jobs.table import PairFiles
from regweave.study.comparison import Scores
from regweave.study.evaluate import shown_method, worst_pairs

SETTINGS = Settings.model_validate(
    {
        "name": "s",
        "smoothness": 0.1,
        "levels": [{"spacing_mm": 48.0}],
        "banks": {"mr": [{"name": "sad", "metric": "sad"}]},
    }
)


def outcome(key: str, dice: float | None) -> Outcome:
    row = {"label": 1, "name": "x", "state": "scored", "dice_after": dice}
    return Outcome(key, None, "E102: x") if dice is None else Outcome(key, {"structures": [row]})


def scores(dice: dict[str, dict[str, float | None]]) -> Scores:
    methods = tuple(Method(name, SETTINGS) for name in dice)
    names = list(next(iter(dice.values())))
    pairs = tuple(PairFiles(name, Path("f"), Path("m"), Path("fl"), Path("ml"), name) for name in names)
    outcomes = {(m, p): outcome(f"{m}/{p}", v) for m, of in dice.items() for p, v in of.items()}
    return Scores(pairs, methods, outcomes)


def test_the_lowest_of_the_last_method_come_first():
    found = scores(
        {"uniform": {"a": 0.1, "b": 0.2, "c": 0.3, "d": 0.4}, "model": {"a": 0.9, "b": None, "c": 0.5, "d": 0.5}}
    )
    assert [p.id for p in worst_pairs(found, 2)] == ["c", "d"]
    assert [p.id for p in worst_pairs(found, 9)] == ["c", "d", "a"]
    assert worst_pairs(found, 0) == []


def test_a_model_without_masks_is_shown_only_where_there_is_no_other():
    found = scores({"model": {"a": 0.9, "b": 0.5}, "model+predicted": {"a": 0.1, "b": 0.8}})
    with_masks, guessed = found.methods
    both = replace(found, methods=(with_masks, replace(guessed, predicted=True)))
    assert shown_method(both).name == "model"
    assert [p.id for p in worst_pairs(both, 1)] == ["b"]
    assert shown_method(replace(found, methods=(replace(guessed, predicted=True),))).name == "model+predicted"
