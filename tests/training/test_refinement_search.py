"""Search over the refinement: which members are tried, in which stage, with the mask and without it."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from regweave.config.settings import Settings, validate
from regweave.jobs.runner import REFINE
from regweave.jobs.table import PairFiles, one_by_one
from regweave.measures.scores import PairScore, StructureScore
from regweave.predictors import Examples
from regweave.predictors.perceptron import Options, fit as fit_perceptron
from regweave.run.memory import Cache
from regweave.run.read import read_inputs
from regweave.training import columns as learner, refinement as module
from regweave.training.options import TrainOptions
from regweave.training.refinement import LEVEL_SHARES, RefinementSearch, other_start, starting, starting_as
from regweave.training.state import CandidateRunner, TrainingLog, TrainingState
from regweave.types import Geometry, LabelMap, Volume

CLASSES = (0, 1, 2)
PAIRS = tuple(PairFiles(f"p{i}", *[Path("x")] * 4, f"g{i}") for i in range(6))
BANK = [
    {"name": "sad", "metric": "sad", "stage": "levels"},
    {"name": "ncc", "metric": "ncc", "stage": "levels"},
    {"name": "coarse", "metric": "sad", "source": "structures", "stage": "levels", "weight": 0},
    {"name": "outlines", "metric": "sad", "source": "labels", "stage": "levels", "weight": 0},
    {"name": "fine", "metric": "ncc", "support": 3, "stage": "refine"},
    {"name": "shapes", "metric": "sad", "source": "structures", "stage": "refine", "weight": 0},
    {"name": "outline", "metric": "ncc", "source": "labels", "support": 3, "stage": "refine", "weight": 0},
]
SETTINGS = validate(
    {
        "name": "small", "modality": "mr", "smoothness": 0.1, "levels": [{"spacing_mm": 64.0}],
        "refine": {"steps": 1, "smoothness": 0.1}, "banks": {"mr": BANK},
    },
    "the test",
)  # fmt: skip


@dataclass(frozen=True)
class Candidates:
    """Registrations whose Dice is a function of shares, smoothness and whether there is a mask."""

    dice: Any
    settings: Settings = SETTINGS
    tried: list = field(default_factory=list)

    def __call__(self, work, *, predicted=False):
        return [self._scores(w, pairs, predicted) for w, pairs in work]

    def left_out(self, folds, models, *, predicted=False):
        found = []
        for tables in models:
            parts = [self._scores(w, fold.test, predicted) for w, fold in zip(tables, folds, strict=True)]
            found.append({name: score for part in parts for name, score in part.items()})
        return found

    def _scores(self, w, pairs, predicted):
        self.tried.append((w, predicted))
        return {p.id: self.score(w, predicted, 0.001 * i) for i, p in enumerate(pairs)}

    def score(self, w, predicted, more=0.0):
        out = []
        for k, c in enumerate(CLASSES[1:], start=1):
            shares = {}
            for members in (("sad", "ncc", "coarse", "outlines"), ("fine", "shapes", "outline")):
                column = w.matrix[w.rows(members), k]
                shares |= dict(zip(members, column / column.sum(), strict=True))
            stiffness = 1.0 if w.stiffness is None else w.stiffness[k]
            smooth = REFINE.get(self.settings) * stiffness
            out.append(StructureScore(c, str(c), "scored", 0.0, self.dice(c, shares, smooth, predicted) + more))
        return PairScore(tuple(out))


def state_of(candidates, settings=SETTINGS, *, judged=PAIRS, options=TrainOptions(), said=None):  # noqa: B008
    """As much of a training's state as the search needs; the uniform scores are those of the first settings."""
    log = TrainingLog(lambda progress: said is None or said.append(progress.message))
    start = SETTINGS.for_bank("mr").start_weights(0.1, CLASSES)
    return TrainingState(
        options, log, Cache(100.0), 1, PAIRS, settings, None, judged=judged, modality="mr", start=start,
        uniform={p.id: Candidates.score(candidates, start, False, 0.001 * i) for i, p in enumerate(judged)},
        candidates=replace(candidates, settings=settings),
    )  # fmt: skip


def search(dice, *, maps=True, predicted=False, options=TrainOptions()):  # noqa: B008
    said: list[str] = []
    state = state_of(Candidates(dice), options=options, said=said)
    found = RefinementSearch(state, one_by_one(PAIRS), maps, predicted)
    return (*found.run(), state.candidates.tried, said)


def row(weights, member):
    return weights.matrix[weights.members.index(member)]


def test_members_that_compare_maps_take_part_of_the_levels_where_it_helps():
    _, found, tried, _ = search(lambda c, s, smooth, _: 0.6 + 0.1 * s["coarse"])
    levels = [row(found.weights, m)[0] for m in ("sad", "ncc", "coarse", "outlines")]
    assert levels[2] / sum(levels) == pytest.approx(max(LEVEL_SHARES))
    assert levels[0] == levels[1] > 0
    assert found.record.gain.mean == pytest.approx(0.1 * max(LEVEL_SHARES))
    lines = {line.member for line in found.record.members}
    assert lines == {"fine", "shapes", "outline", "coarse", "outlines"}  # images of the levels only share
    sums = {round(float(row(w, "fine").sum() + row(w, "shapes").sum() + row(w, "outline").sum()), 9) for w, _ in tried}
    assert len(sums) == 1  # the balance of the stages stays
    _, found, tried, _ = search(lambda c, s, smooth, _: 0.6 + 0.1 * s["shapes"] + 0.1 * s["coarse"], maps=False)
    assert found.record.gain is None  # without predictors no map is tried
    assert not any(row(w, m).any() for w, _ in tried for m in ("coarse", "outlines", "shapes", "outline"))


def test_without_a_mask_and_with_one_structures_trust_their_own():
    state, found, tried, _ = search(
        lambda c, s, smooth, _: 0.6 + 0.1 * s["shapes"] - 0.1 * (np.log2(smooth / 0.025)) ** 2, predicted=True
    )
    assert all(predicted for _, predicted in tried)
    assert not any(row(w, m).any() for w, _ in tried for m in ("outlines", "outline"))
    assert REFINE.get(state.settings) == 0.1
    np.testing.assert_allclose(found.weights.stiffness, [1.0, 0.25, 0.25])  # the background keeps what it had
    assert found.record.smoothness.smoothness == pytest.approx(0.025)
    state, found, _, said = search(
        lambda c, s, smooth, _: 0.6 + 0.2 * s["outline"] * (c == 1) + 0.05 * s["shapes"] * (c == 2)
    )
    assert found.record.columns.gain.mean > 0
    assert row(found.weights, "outline")[1] > row(found.weights, "outline")[2]
    assert any("weights by structure" in line for line in said)
    assert REFINE.get(state.settings) == found.record.smoothness.smoothness


def test_the_learner_of_the_options_proposes_and_folds_of_patients_judge_it(monkeypatch):
    asked: list[list[str]] = []

    class Svm:
        def __init__(self, learner, common, predicted):
            assert learner == "the learner"
            self.common = common

        def __call__(self, pairs):
            asked.append([p.id for p in pairs])
            own = self.common.share_out({"fine": 1.0, "outline": 3.0})
            return self.common.blend(own, 1.0, (1,)), {"outline": {1: 3.0, 2: 1.0}}

    monkeypatch.setattr(module, "RefinementSvm", Svm)
    monkeypatch.setattr(module.ColumnLearner, "of", lambda state: "the learner")
    _, found, _, _ = search(
        lambda c, s, smooth, _: 0.6 + 0.2 * s["outline"] * (c == 1), options=TrainOptions(refinement_learner="svm")
    )
    assert asked[0] == [p.id for p in PAIRS]
    assert len(asked) == 1 + TrainOptions().folds
    assert sorted(len(names) for names in asked[1:]) == [4, 4, 4]
    assert found.record.columns.factors == {"outline": {"1": 3.0, "2": 1.0}}
    assert found.record.columns.gates.keys() == {"1"}


def test_other_weights_without_a_mask_are_kept_where_they_are_better():
    """The outline helps with a mask alone; without one maps do, or nothing does."""
    for helps in (True, False):
        state = state_of(
            Candidates(
                lambda c, s, _, predicted, h=helps: 0.6 + (0.1 * s["shapes"] * h if predicted else 0.2 * s["outline"])
            )
        )
        after, found = RefinementSearch(state, one_by_one(PAIRS), True).run()
        without = RefinementSearch(state, one_by_one(PAIRS), True, predicted=True)
        kept = module._without_labels(without, after, found)
        assert (kept.without_labels is not None) == helps
        assert kept.weights is found.weights
        if helps:
            assert kept.record.without_mask.own.used
            assert row(kept.without_labels, "shapes")[1:].all()
            assert not row(kept.without_labels, "outline").any()


def test_pairs_that_no_network_can_judge_are_left_out():
    said: list[str] = []
    state = state_of(Candidates(lambda *_: 0.6), said=said)

    def judging(names):
        return replace(state, candidates=SimpleNamespace(predictors=SimpleNamespace(judges=lambda p: p.id in names)))

    assert [p.id for p in module._with_judged_pairs(judging(("p0", "p3"))).judged] == ["p0", "p3"]
    assert "2 of 6 pairs judge weights" in said[0]
    everybody = judging([p.id for p in PAIRS])
    assert module._with_judged_pairs(everybody) is everybody


def test_the_background_is_left_to_the_images_unless_structures_lose_by_it():
    def dice(lost):
        # Structures see the background's column through the share of its maps.
        def score(self, w, predicted, more=0.0):
            plain = Candidates.score(self, w, predicted, more)
            cost = lost if row(w, "outline")[1] and not row(w, "outline")[0] else 0.0
            return PairScore(tuple(replace(s, dice_after=s.dice_after - cost) for s in plain.structures))

        return score

    for lost, used in ((0.0, True), (0.0015, True), (0.003, False)):
        kind = type("Coupled", (Candidates,), {"score": dice(lost)})
        state = state_of(kind(lambda c, s, smooth, _: 0.6 + 0.1 * s["outline"] - 0.02 * (np.log2(smooth / 0.05)) ** 2))
        after, found = RefinementSearch(state, one_by_one(PAIRS), True).run()
        assert found.record.background.used is used
        assert found.record.background.change == pytest.approx(-lost)
        assert row(found.weights, "outline")[1:].all()
        assert REFINE.get(after.settings) == pytest.approx(0.05)
        column = found.weights.matrix[:, 0]
        if used:
            np.testing.assert_allclose(column, state.start.matrix[:, 0])
            np.testing.assert_allclose(found.weights.stiffness, [2.0, 1.0, 1.0])  # 0.1 again, for the background
        else:
            np.testing.assert_allclose(column, found.weights.matrix[:, 1])
            assert found.weights.stiffness is None


@dataclass(frozen=True)
class Started(Candidates):
    """Registrations that gain by a start from structures; with ``unsteady`` only every second pair does."""

    gain: float = 0.05
    unsteady: bool = False

    def _scores(self, w, pairs, predicted):
        plain = Candidates._scores(self, w, pairs, predicted)
        if self.settings.initial != "structures":
            return plain
        signs = {name: -1.0 if self.unsteady and k % 2 else 1.0 for k, name in enumerate(plain)}
        return {name: self._shifted(score, signs[name] * self.gain) for name, score in plain.items()}

    @staticmethod
    def _shifted(score, by):
        return PairScore(tuple(replace(s, dice_after=s.dice_after + by) for s in score.structures))


def started(candidates, *, predicted=False, maps=True, options=TrainOptions()):  # noqa: B008
    said: list[str] = []
    state = state_of(candidates, options=options, said=said)
    return (*RefinementSearch(state, one_by_one(PAIRS), maps, predicted).run(), said)


def dice(c, s, smooth, predicted):
    return 0.6 + 0.1 * s["outline"] - 0.02 * np.log2(smooth / 0.05) ** 2


def test_a_start_that_left_out_patients_gain_by_is_used_by_all_that_follows():
    state, found, said = started(Started(dice))
    assert state.settings.initial == state.candidates.settings.initial == "structures"
    start = found.record.start
    assert (start.before, start.used, start.n) == ("none", "structures", len(PAIRS))
    assert (start.gain, start.standard_error) == pytest.approx((0.05, 0.0), abs=1e-9)
    assert REFINE.get(state.settings) == pytest.approx(0.05)  # tuned again from there
    assert found.record.gain.mean > 0.05
    outline = [w for w, _ in state.candidates.tried]
    assert row(outline[-1], "outline")[1] > 0
    assert "start from structures +0.0500, used" in said
    for candidates in (Started(dice, gain=0.0), Started(dice, gain=-0.01), Started(dice, unsteady=True)):
        state, found, said = started(candidates)
        assert state.settings.initial == "none"
        assert found.record.start.used == "none"
        assert found.record.gain.mean < 0.15
        assert any(line.endswith("not used") for line in said)


def test_where_no_start_is_tried_and_what_follows_from_one():
    # Without predictors; without moving labels, where it is settled; and where the settings have it or a file.
    for more in ({"maps": False}, {"predicted": True}, {"options": TrainOptions(structure_start="keep")}):
        state, found, said = started(Started(dice), **more)
        assert found.record.start is None
        assert state.settings.initial == "none"
        assert not any("start" in line for line in said)
    for initial in ("structures", "folder/start.h5"):
        assert not other_start(SimpleNamespace(settings=SETTINGS.model_copy(update={"initial": initial})))
    assert other_start(SimpleNamespace(settings=SETTINGS.model_copy(update={"initial": "affine"})))
    before = state_of(Started(dice))
    assert starting_as(before, before) is before
    after = starting_as(before, starting(before, "structures"))
    assert after.settings.initial == after.candidates.settings.initial == "structures"
    change = [after.uniform[p.id].mean() - before.uniform[p.id].mean() for p in PAIRS]
    np.testing.assert_allclose(change, 0.05)
    assert after.candidates.tried[-1][1]  # as if there were no labels
    predictor = SimpleNamespace(classes=(0, 1, 2), modality="mr")  # comes with the start though no member compares maps
    predictors = SimpleNamespace(without=lambda pair: predictor)
    start = SETTINGS.for_bank("mr").start_weights(0.1, (0, 1, 2))
    for initial, wanted in (("none", None), ("structures", predictor)):
        runner = CandidateRunner(None, SETTINGS.model_copy(update={"initial": initial}), "all", None, predictors)
        assert runner.model(start, PAIRS[0]).predictor is wanted


def blocks(shift):
    """Two bright blocks, each a structure, in noise."""
    rng = np.random.default_rng(3)
    labels = np.zeros((24, 24, 24), dtype=np.int32)
    labels[3 + shift : 9 + shift, 4:10, 8:14] = 1
    labels[12 + shift : 18 + shift, 12:19, 8:14] = 2
    data = np.array([0.0, 400.0, 900.0])[labels] + rng.normal(0, 20.0, labels.shape)
    geometry = Geometry(labels.shape, np.diag([2.0, 2.0, 2.0, 1.0]))
    return Volume(data.astype(np.float32), geometry, "mr"), LabelMap(labels, geometry)


def test_columns_are_learned_from_pairs_at_that_start(monkeypatch):
    (fixed, fixed_labels), (moving, moving_labels) = blocks(0), blocks(3)
    examples = Examples([fixed, moving], [fixed_labels, moving_labels], (0, 1, 2), "mr", 0, ["a", "b"])
    predictor = fit_perceptron(examples, Options(samples=3000, steps=30), None)
    monkeypatch.setattr(learner, "read_inputs", lambda **_: read_inputs(fixed, moving, fixed_labels, moving_labels))
    candidates = SimpleNamespace(
        run=SimpleNamespace(reading=None), predictors=SimpleNamespace(without=lambda pair: predictor)
    )

    def loaded(initial):
        state = SimpleNamespace(settings=SETTINGS.model_copy(update={"initial": initial}), candidates=candidates)
        return learner.ColumnLearner(state, TrainOptions(), None)._load(PAIRS[0])

    assert loaded("none").initial_field is None
    np.testing.assert_array_equal(loaded("none").initial, np.eye(4))
    started = loaded("structures")
    assert started.fixed.maps is None  # the discrete members that learn see images
    points = fixed.geometry.points(np.array([[6.0, 7.0, 11.0], [15.0, 15.0, 11.0]]))
    index = np.rint(points / 2.0).astype(int)
    moved = points + started.initial_field.data[:, *index.T].T
    moved = moved @ started.initial[:3, :3].T + started.initial[:3, 3]
    np.testing.assert_allclose(moved - points, [[6.0, 0, 0]] * 2, atol=1.5)
