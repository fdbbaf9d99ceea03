"""Weights of structures that guide, learned from contours with an error: by structure, and apart from all others."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import ndimage

import regweave as rw
from regweave import notices
from regweave.config.settings import Settings
from regweave.jobs.runner import ScoringTask, score_dice
from regweave.model.model import Model
from regweave.registration.guides import redrawn
from regweave.report.training import weights as charts
from regweave.run.memory import Cache
from regweave.run.read import Reading
from regweave.types import Geometry, LabelMap, Volume

pytestmark = pytest.mark.usefixtures("in_process")
GRID = Geometry((24, 24, 24), np.diag([2.0, 2.0, 2.0, 1.0]))
SETTINGS = Settings.model_validate(
    {
        "name": "small",
        "modality": "mr",
        "smoothness": 0.05,
        "levels": [{"spacing_mm": 24.0, "steps": 1}],
        "refine": {"steps": 12, "rate": 0.3, "spacing_mm": 4.0, "smoothness": 0.3},
        "banks": {"mr": [{"name": "sad", "metric": "sad"}]},
    }
)
QUICK = {
    "config": SETTINGS,
    "C": 20.0,
    "alpha": 1.0,
    "eta": 3.0,
    "epsilon": 0.05,
    "folds": 2,
    "tune_pairs": 2,
    "predictor": None,
}
SHOWN, HIDDEN = 1, 2


def made(rng: np.random.Generator) -> tuple[Volume, LabelMap]:
    """Two balls, of which the image shows the first alone; round the second is a texture that no other image has."""
    at, labels = np.indices(GRID.shape).transpose(1, 2, 3, 0) * 2.0, np.zeros(GRID.shape, dtype=np.uint8)
    for value, centre in ((SHOWN, (13, 24, 24)), (HIDDEN, (34, 24, 24))):
        place, radius = np.array(centre) + rng.uniform(-2.5, 2.5, 3), rng.uniform(6.5, 8.5)
        labels[((at - place) ** 2).sum(axis=-1) < radius**2] = value
    data = 100 + 500 * ndimage.gaussian_filter((labels == SHOWN).astype(float), 0.7) + rng.normal(0, 8, GRID.shape)
    texture = ndimage.gaussian_filter(rng.normal(size=GRID.shape), 1.5)
    data += np.where(at[..., 0] < 24, 0, 200 * texture / texture.std())
    return Volume(data.astype(np.float32), GRID, "mr"), LabelMap(labels, GRID, {SHOWN: "shown", HIDDEN: "hidden"})


def pair(seed: int) -> tuple[Volume, Volume, LabelMap, LabelMap]:
    rng = np.random.default_rng(seed)
    (fixed, fixed_labels), (moving, moving_labels) = made(rng), made(rng)
    return fixed, moving, fixed_labels, moving_labels


PAIRS = [pair(seed) for seed in range(8)]


def train(pairs=PAIRS, said=None, **options) -> Model:
    lines = [] if said is None else said
    return rw.train(pairs, **QUICK, workers=1, on_progress=lambda p: lines.append(getattr(p, "message", "")), **options)


@pytest.fixture(scope="module")
def guided(in_process) -> Model:
    return train(guide_error_mm=1.5)


def register(model: Model | None, **options):
    fixed, moving, fixed_labels, moving_labels = pair(99)
    files = {"fixed_labels": fixed_labels, "moving_labels": moving_labels}
    with notices.unheard():
        return rw.register(fixed, moving, **files, model=model, progress=False, **options)


def learned(model: Model) -> dict[int, float]:
    """Weights of guides by class, against a quarter of the weight of the refinement."""
    member, guides = model.weights.matrix
    return dict(zip(model.weights.classes, (3 * guides / member).tolist(), strict=True))


def test_a_structure_that_the_images_do_not_show_is_guided_by_its_contour(guided):
    assert guided.weights.members == ("sad", "guides")
    assert learned(guided)[HIDDEN] > 1.5 * learned(guided)[SHOWN] > 0
    assert learned(guided)[0] > 0
    record = guided.training.guides
    assert record.columns.gain.mean > 0
    assert set(record.columns.gates) <= {"1", "2"}
    assert guided.training.options["guide_error_mm"] == 1.5
    assert guided.training.stages["guides"].registrations > 0
    assert len(charts(guided)) == 2  # of the other members, with those before share and gates


def test_everything_else_is_as_without_guides():
    plain, guided = (train(PAIRS[:4], effort="smoke", guide_error_mm=mm) for mm in (None, 1.5))
    assert guided.weights.members == ("sad", "guides")
    assert plain.weights.members == ("sad",)
    np.testing.assert_array_equal(plain.weights.matrix, guided.weights.lacking("guides").matrix)
    assert plain.settings == guided.settings
    assert "guides" not in plain.training.to_json()
    first, second = register(plain), register(guided)
    np.testing.assert_array_equal(first.transform.field.data, second.transform.field.data)
    assert second.weights.members == ("sad",)


@pytest.mark.parametrize("name", ["model.json", "model.zip"])
def test_a_run_takes_them_from_the_archive(guided, name, tmp_path: Path):
    guided.save(tmp_path / name)
    model = Model.load(tmp_path / name)
    np.testing.assert_array_equal(model.weights.matrix, guided.weights.matrix)
    assert model.training.guides.columns == guided.training.guides.columns
    result = register(model, guide={"hidden": 1.0, "shown": 3.0})
    record = result.provenance.guides
    assert record.learned
    assert record.words().endswith("weights of the model")
    wanted = {SHOWN: 3 * learned(model)[SHOWN], HIDDEN: learned(model)[HIDDEN]}
    assert record.weights == pytest.approx(wanted)
    plain = replace(model, weights=model.weights.lacking("guides"))
    same = register(plain, guide={"hidden": record.weights[HIDDEN], "shown": record.weights[SHOWN]})
    np.testing.assert_array_equal(result.transform.field.data, same.transform.field.data)


def test_a_model_without_them_leaves_the_usual_share(guided):
    plain = replace(guided, weights=guided.weights.lacking("guides"))
    record = register(plain, guide=True).provenance.guides
    assert not record.learned
    assert set(record.weights.values()) == {1.0}
    assert record.words().endswith("weights as usual")


def test_contours_are_drawn_with_the_stated_error():
    labels = PAIRS[0][2]
    drawn = redrawn(labels, 2.0, 0, "a")
    np.testing.assert_array_equal(drawn.data, redrawn(labels, 2.0, 0, "a").data)
    others = [redrawn(labels, 2.0, 1, "a"), redrawn(labels, 2.0, 0, "b")]
    assert not any((other.data == drawn.data).all() for other in others)
    ramp = LabelMap(np.broadcast_to(np.arange(24)[:, None, None], GRID.shape).copy(), GRID)
    apart = [2.0 * (redrawn(ramp, mm, 0, "a").data - ramp.data.astype(float))[6:18, 6:18, 6:18] for mm in (1.5, 3.0)]
    assert [x.std() for x in apart] == pytest.approx([1.5, 3.0], rel=0.35)


def test_the_true_labels_judge_and_no_trial_changes_another(monkeypatch, tmp_path):
    """Structures far apart guide the start and the levels, too: what is kept of one trial must not serve another."""
    fixed, moving, fixed_labels, moving_labels = pair(5)
    far = Geometry(GRID.shape, GRID.affine.copy())
    far.affine[:3, 3] += (12.0, 0.0, 0.0)
    files = {
        "fixed": fixed, "moving": Volume(moving.data, far, "mr"), "fixed_labels": fixed_labels,
        "moving_labels": LabelMap(moving_labels.data, far, moving_labels.names),
    }  # fmt: skip
    task = ScoringTask(files, {"fixed": "x"}, Reading(), SETTINGS)
    tasks = [task, replace(task, drawn=(1.0, 0)), replace(task, drawn=(4.0, 0)), replace(task, drawn=(1.0, 7)), task]
    alone = []
    for one in tasks:
        monkeypatch.setattr("regweave.jobs.runner.kept", lambda: Cache(0.0))
        alone.append(score_dice(one))
    shared = Cache(100.0)
    monkeypatch.setattr("regweave.jobs.runner.kept", lambda: shared)
    assert [score_dice(one) for one in tasks] == alone
    before = {tuple(s["dice_before"] for s in found["structures"]) for found in alone}
    after = [np.mean([s["dice_after"] for s in found["structures"]]) for found in alone]
    assert len(before) == 1
    assert len(set(after)) == 4
    assert after[1] > max(after[0], after[2])


def test_pairs_in_which_nothing_can_guide_are_left_out():
    cut = [(f, m, replace(a, data=np.roll(a.data, 12, axis=1)), b) for f, m, a, b in PAIRS[:2]]
    said: list[str] = []
    model = train([*PAIRS[:4], *cut], said, guide_error_mm=1.0, effort="smoke")
    assert any("left out here" in line and "no structure can guide" in line for line in said)
    assert "guides" in model.weights.members
    with notices.unheard():
        none = train([*PAIRS[:1], *cut, *cut], said := [], guide_error_mm=1.0, effort="smoke")
    assert none.weights.members == ("sad",)
    assert any("the model has no weights of guides" in line for line in said)
