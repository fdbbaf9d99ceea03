"""What workers keep between registrations of a pair: bounded, and without a trace in the numbers."""

from dataclasses import dataclass, replace

import numpy as np
import pytest

from regweave.jobs import runner as scoring
from regweave.jobs.runner import ScoringTask, score_dice, score_pair
from regweave.model.model import Model
from regweave.run import register
from regweave.run.memory import Cache
from regweave.run.read import Reading


@dataclass(frozen=True)
class Box:
    arrays: tuple[np.ndarray, ...]


def test_what_was_used_last_goes_last():
    kept, made = Cache(1.0), []

    def get(name, kilobytes=300):
        return kept(name, lambda: made.append(name) or Box((np.zeros(kilobytes * 2**10, dtype=np.uint8),)))

    for name in ("a", "b", "c", "a", "d"):
        get(name)
    assert made == ["a", "b", "c", "d"]
    assert get("a") is get("a")
    get("b")  # it had to go for d
    assert made == ["a", "b", "c", "d", "b"]
    assert get("whale", 2000).arrays[0].nbytes == 2000 * 2**10  # larger than all there is: made, not kept
    get("whale", 2000)
    assert made[-2:] == ["whale", "whale"]


@pytest.fixture
def fresh(monkeypatch):
    """A memory of its own for each test; it counts what is computed."""
    counts: dict[str, int] = {}

    def counted(name, function):
        def run(*args, **options):
            counts[name] = counts.get(name, 0) + 1
            return function(*args, **options)

        return run

    kept = Cache(100.0)
    monkeypatch.setattr(scoring, "kept", lambda: kept)
    for name in ("read_inputs", "align", "refine"):
        monkeypatch.setattr(register, name, counted(name, getattr(register, name)))
    return counts


def dice(scores):
    return {row["label"]: (row["dice_before"], row["dice_after"]) for row in scores["structures"]}


def test_trials_of_a_pair_share_what_no_weight_changes(fresh, training_list):
    files = training_list.files(0)
    task = ScoringTask(files, {name: str(path) for name, path in files.items()}, Reading(), training_list.settings)
    start = training_list.settings.for_bank("mr").start_weights(0.1, (0, 3))
    other = replace(start, matrix=start.matrix * np.array([[1.0, 0.2], [1.0, 1.8], [1.0, 1.0]]))
    models = [Model(w, training_list.settings, "mr") for w in (start, other)]
    smooth = training_list.settings.with_refine_smoothness(2.0)
    tasks = [task, replace(task, settings=smooth), *(replace(task, model=m) for m in models)]
    tasks.append(replace(tasks[-1], reading=Reading(classes=(3,))))
    found = [score_dice(t) for t in tasks]
    assert fresh == {"read_inputs": 2, "align": 4, "refine": 5}  # other labels are read anew, and seen anew
    assert len({str(dice(f)) for f in found}) == 4  # the uniform columns of a model are the bank without one
    for t, f in zip(tasks, found, strict=True):
        assert dice(f) == dice(score_pair(t))
    assert [score_dice(t) for t in tasks] == found
