"""Members that compare what a predictor makes out: from training to registration, and never on its own patients."""

import json
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest

from regweave import predictors
from regweave.config.settings import Settings, preset, validate, with_refinement_of_preset
from regweave.errors import RegweaveError, RegweaveWarning, UsageError
from regweave.jobs import runner
from regweave.jobs.runner import Runner, baseline_methods, score_dice
from regweave.jobs.table import PairFiles, read_pairs
from regweave.model.model import Model
from regweave.model.record import Gain, RefinementRecord
from regweave.predictors import Examples
from regweave.predictors._features import Sizes
from regweave.registration.cpu import counted_once
from regweave.registration.scene import Scene
from regweave.run.read import Reading
from regweave.run.register import register
from regweave.spatial.warp import voxel_matrix
from regweave.training import refinement as search
from regweave.training.options import TrainOptions
from regweave.training.predictor_fits import Predictors, SegmentedImage
from regweave.training.refinement import RefinementWeights
from regweave.training.run import fit_model
from regweave.types import Geometry, Image, ImagePair, StructureMaps, WeightTable

pytestmark = pytest.mark.usefixtures("in_process")
MAPS = {"metric": "ncc", "support": 3, "stage": "refine", "weight": 0, "options": {"variance_floor": 0.01}}
LEARNED = [{**MAPS, "name": "anatomy", "source": "structures"}, {**MAPS, "name": "outline", "source": "labels"}]


@pytest.fixture(scope="module")
def settings(training_list) -> Settings:
    content = training_list.settings.model_dump(mode="json")
    content["banks"]["mr"] += LEARNED
    return validate(content, "the test")


def pair_of(name: str, group: str) -> PairFiles:
    return PairFiles(name, *["x"] * 4, group)


class Recorded(Predictors):
    """Predictors that keep the names of the images they are fitted to, instead of fitting."""

    def __init__(self, images, pairs):
        super().__init__(images, pairs, SimpleNamespace(costly=False), (0, 1), "mr", Reading())
        vars(self)["fitted"] = []

    def fit(self, images, like):
        self.fitted.append(({i.image for i in images}, like))
        return SimpleNamespace(n=len(self.fitted))


def recorded(people, groups) -> Recorded:
    geometry = Geometry((4, 4, 4), np.eye(4))
    images = [SegmentedImage(f"{p}.nii", "x", geometry, frozenset({p})) for p in people]
    return Recorded(images, [pair_of(g, g) for g in groups])


def test_the_predictor_of_a_pair_has_not_seen_its_patients(images):
    people = [f"p{i:02d}" for i in range(13)]
    found = recorded(people, [f"{a}+{b}" for a, b in pairwise(people)])
    for a, b in pairwise(people):
        assert found.without(pair_of("x", f"{a}+{b}")) is not None
        parts = {found._part[a], found._part[b]}
        rest = {p for p in people if found._part[p] not in parts}
        trained = [names for names, _ in found.fitted if names == {f"{p}.nii" for p in rest}]
        assert len(trained) == 1  # fitted once, with all others
        assert not trained[0] & {f"{a}.nii", f"{b}.nii"}
    assert len(rest) >= 13 - 2 * 3
    whole = [like for names, like in found.fitted if len(names) == 13]
    assert whole == [None]  # held-out images choose once, for all
    assert all(like is found.whole for names, like in found.fitted if len(names) < 13)


def test_patients_of_one_pair_or_of_one_image_are_left_out_together():
    found = recorded(["a", "b"], ["a+b"])
    assert found.without(pair_of("x", "a+b")) is None
    assert found.without(pair_of("y", "a")) is not None
    geometry = Geometry((4, 4, 4), np.eye(4))
    images = [SegmentedImage(n, "x", geometry, frozenset(p)) for n, p in (("1", "ab"), ("2", "c"), ("3", "d"))]
    found = Recorded(images, [pair_of(name, name) for name in "abcd"])
    found.without(pair_of("x", "b"))
    assert found.fitted[-1][0] == {"2", "3"}


def ramp(geometry: Geometry, direction) -> np.ndarray:
    """A linear function of the position in millimetres."""
    index = np.stack(np.meshgrid(*map(np.arange, geometry.shape), indexing="ij"), axis=-1)
    return (geometry.points(index.astype(float)) @ np.asarray(direction)).astype(np.float32)


def test_maps_of_few_voxels_are_compared_where_they_lie(settings):
    """Linear maps stay linear when interpolated: each voxel must see the value of its own position."""
    fixed = Geometry((24, 20, 16), np.diag([1.0, 1.0, 1.5, 1.0]))
    moving = Geometry((24, 20, 16), np.array([[0, -1.0, 0, 22.0], [1.2, 0, 0, -3], [0, 0, 1.5, 1], [0, 0, 0, 1]]))
    coarse_fixed = Geometry((12, 10, 16), np.array([[2.0, 0, 0, 0.5], [0, 2.0, 0, 0.5], [0, 0, 1.5, 0], [0, 0, 0, 1]]))
    coarse_moving = Geometry((8, 10, 16), moving.affine @ np.diag([3.0, 2.0, 1.0, 1.0]))
    directions = ([0.01, 0, 0.02], [0, 0.03, 0])
    grids = {"fixed": coarse_fixed, "moving": coarse_moving, "outline": moving}
    maps = {name: StructureMaps(np.stack([ramp(g, d) for d in directions]), g, (1, 2)) for name, g in grids.items()}
    initial = np.eye(4)
    initial[:3, 3] = (1.0, -0.5, 0.7)
    images = [Image(np.zeros(g.shape, dtype=np.float32), g) for g in (fixed, moving)]
    pair = ImagePair(*images, initial=initial).with_fixed(maps=maps["fixed"])
    pair = pair.with_moving(maps=maps["moving"], label_maps=maps["outline"])
    schedule = settings.for_bank("mr")
    u = np.full((3, *fixed.shape), 0.4, dtype=np.float32)
    found = Scene.whole(pair, schedule).compare(schedule.bank[-2:], u)
    inside = np.s_[4:-5, 5:-6, 3:-3]
    here = ramp(fixed, directions[0])[inside]
    there = np.stack(np.meshgrid(*map(np.arange, fixed.shape), indexing="ij"), axis=-1) + 0.4
    index = there @ (m := voxel_matrix(fixed, moving, initial))[:, :3].T + m[:, 3]
    for comparison in found:
        np.testing.assert_allclose(comparison.fixed[0][inside], here, atol=1e-5)
        for moved, direction in zip(comparison.moved, directions, strict=True):
            expected = moving.points(index) @ np.asarray(direction)
            np.testing.assert_allclose(moved[inside], expected[inside], atol=1e-5)


def test_a_voxel_of_a_coarse_map_counts_once(settings):
    fine, coarse = Geometry((8, 8, 8), np.eye(4)), Geometry((4, 4, 4), np.diag([2.0, 2.0, 2.0, 1.0]))
    schedule = settings.for_bank("mr")
    members = schedule.bank[-3:]  # fine, anatomy, outline
    weights = WeightTable(np.array([[0.2, 0.5], [0.8, 0.0], [0.0, 0.5]]), tuple(m.name for m in members), (0, 1), 0.1)
    for geometry, share in ((coarse, 1 / 8), (fine, 1.0)):
        maps = StructureMaps(np.zeros((1, *geometry.shape), dtype=np.float32), geometry, (1,))
        image = Image(np.zeros(fine.shape, dtype=np.float32), fine, maps=maps, label_maps=maps)
        scene = Scene.whole(ImagePair(image, image), schedule)
        found = counted_once(scene, members, weights).matrix
        np.testing.assert_allclose(found.sum(axis=0), 1)
        np.testing.assert_allclose(found[1, 0] / found[0, 0], 4 * share)
        np.testing.assert_allclose(found[2, 1] / found[0, 1], share)


@pytest.fixture(scope="module")
def model(training_list, settings, in_process) -> Model:
    files = [training_list.files(n) for n in (1, 2, 3)]
    reading = Reading()
    images = [reading.image(f["moving"]) for f in files]
    labels = [reading.labels(f["moving_labels"], i.geometry) for f, i in zip(files, images, strict=True)]
    found = predictors.fit("perceptron", Examples(images, labels, tuple(range(7)), "mr"), samples=4000, steps=30)
    matrix = np.repeat(np.array([[0.3], [0.3], [0.2], [0.2], [0.0]]), 7, axis=1)
    weights = WeightTable(matrix, tuple(m.name for m in settings.for_bank("mr").bank), tuple(range(7)), 0.1)
    return Model(weights, settings, "mr", predictor=found)


def weighed(model: Model, matrix, **more) -> Model:
    return replace(model, weights=replace(model.weights, matrix=matrix), **more)


@pytest.fixture(scope="module")
def images(training_list):
    """Files of a pair that the model has not seen."""
    return {name: training_list.files(0)[name] for name in ("fixed", "moving")}


@pytest.fixture(scope="module")
def mask(training_list):
    return training_list.files(0)["moving_labels"]


def field(**given) -> np.ndarray:
    return register(**given).transform.field.data


def test_a_model_compares_what_it_makes_out(model, images):
    matrix = model.weights.matrix.copy()
    matrix[3] = 0
    plain = register(**images, model=weighed(model, matrix))
    seen = register(**images, model=model)
    assert (seen.transform.field.data != plain.transform.field.data).any()
    assert seen.regularity["folding_fraction"] == 0
    again = register(**images, model=model, threads=2)
    np.testing.assert_array_equal(again.transform.field.data, seen.transform.field.data)


def test_the_outline_is_the_moving_mask_where_there_is_one(model, training_list, mask):
    files = training_list.files(0)
    matrix = model.weights.matrix[[0, 1, 2, 4, 3]]  # outline instead of anatomy
    outlined = weighed(model, matrix)
    images = {name: files[name] for name in ("fixed", "moving")}
    given = register(**images, moving_labels=mask, model=outlined)
    told = register(**images, moving_labels=mask, model=outlined, predict_classes=True)
    bare = register(**images, model=outlined)
    np.testing.assert_array_equal(told.transform.field.data, bare.transform.field.data)
    assert (given.transform.field.data != bare.transform.field.data).any()


def test_without_a_mask_the_outline_may_be_of_no_use(model, images, mask):
    matrix = model.weights.matrix[[0, 1, 2, 4, 3]]  # outline instead of anatomy
    outlined = weighed(model, matrix, outline_without_mask=False)
    matrix = matrix.copy()
    matrix[2], matrix[4] = 0.4, 0  # the other member that refines has its weight
    others = weighed(model, matrix)
    found = register(**images, model=outlined)
    np.testing.assert_allclose(found.weights.matrix, matrix, rtol=1e-12)
    np.testing.assert_array_equal(found.transform.field.data, field(**images, model=others))
    told = register(**images, moving_labels=mask, model=outlined, predict_classes=True)
    np.testing.assert_array_equal(told.transform.field.data, found.transform.field.data)
    masked = register(**images, moving_labels=mask, model=outlined)
    assert (masked.transform.field.data != found.transform.field.data).any()
    np.testing.assert_array_equal(masked.weights.matrix, outlined.weights.matrix)


def test_a_model_may_have_other_weights_without_a_mask(model, tmp_path, images, mask):
    matrix = model.weights.matrix[[0, 1, 2, 4, 3]]  # outline instead of anatomy
    blind = replace(model.weights, stiffness=np.full(len(model.weights.classes), 0.5))
    both = weighed(model, matrix, weights_without_mask=blind)
    both.save(tmp_path / "both.json")
    both = Model.load(tmp_path / "both.json")
    np.testing.assert_array_equal(both.weights_without_mask.matrix, blind.matrix)
    np.testing.assert_array_equal(both.weights_without_mask.stiffness, blind.stiffness)
    bare = register(**images, model=both)
    alone = register(**images, model=replace(model, weights=blind))
    np.testing.assert_array_equal(bare.transform.field.data, alone.transform.field.data)
    masked = register(**images, moving_labels=mask, model=both)
    outlined = register(**images, moving_labels=mask, model=replace(both, weights_without_mask=None))
    np.testing.assert_array_equal(masked.transform.field.data, outlined.transform.field.data)
    assert (masked.transform.field.data != bare.transform.field.data).any()
    content = json.loads((tmp_path / "both.json").read_text())
    for change in ({"weights": {}}, {"pairwise": -1}, {"stiffness": {"1": 1e9}}, {"stiffness": {"99": 1.0}}):
        damaged = content | {"without_mask": content["without_mask"] | change}
        (tmp_path / "n.json").write_text(json.dumps(damaged))
        with pytest.raises(RegweaveError, match="E170"):
            Model.load(tmp_path / "n.json")


def test_an_outline_that_is_alone_stays(model, settings):
    matrix = model.weights.matrix[[0, 1, 2, 4, 3]]
    matrix[2] = 0
    alone = replace(model.weights, matrix=matrix)
    assert settings.for_bank("mr").without_label_members(alone) is alone


def with_far(model, weight) -> Model:
    """Return a model that also compares the moving labels in the levels."""
    content = model.settings.model_dump(mode="json")
    far = {"name": "far", "metric": "sad", "source": "labels", "stage": "levels", "weight": 0}
    content["banks"]["mr"].append(far)
    matrix = np.vstack([model.weights.matrix, np.full((1, 7), weight)])
    weights = replace(model.weights, matrix=matrix, members=(*model.weights.members, "far"))
    return replace(model, settings=validate(content, "the test"), weights=weights)


def test_maps_take_part_in_the_levels_where_a_model_says_so(model, images, mask):
    given = {**images, "moving_labels": mask}
    idle, used = (register(**given, model=with_far(model, w)) for w in (0.0, 0.3))
    plain = register(**given, model=model)
    np.testing.assert_array_equal(idle.transform.field.data, plain.transform.field.data)
    assert "far" not in idle.images.nodes.members
    assert used.images.nodes.members == (*idle.images.nodes.members, "far")
    assert used.images.nodes.influence[-1].max() > 0
    assert [s.energy for s in used.steps] != [s.energy for s in idle.steps]


def test_without_a_mask_members_of_the_levels_inherit_from_members_of_the_levels(model):
    found = with_far(model, 0.3)
    matrix = found.weights.matrix.copy()
    matrix[4] = 0.1  # outline
    content = found.settings.model_dump(mode="json")
    for member in content["banks"]["mr"][:2]:
        member["stage"] = "levels"
    schedule = validate(content, "the test").for_bank("mr")
    after = schedule.without_label_members(replace(found.weights, matrix=matrix)).matrix
    levels, refined = [0, 1, 5], [2, 3, 4]
    assert not after[[4, 5]].any()
    for rows in (levels, refined):
        np.testing.assert_allclose(after[rows].sum(axis=0), matrix[rows].sum(axis=0))
    np.testing.assert_allclose(after[0] / after[1], matrix[0] / matrix[1])


def test_a_model_that_weighs_anatomy_needs_its_predictor(model, monkeypatch, images):
    monkeypatch.setattr("regweave.run.register.start_pair", lambda *_: pytest.fail("began to compute"))
    with pytest.raises(RegweaveError, match=r"E170.*class predictor makes out"):
        register(**images, model=replace(model, predictor=None))


def test_without_a_model_such_members_are_refused_by_name(settings, images):
    with pytest.raises(UsageError, match=r"E188.*metric anatomy .*give --model"):
        register(**images, config=settings, metrics={"anatomy": 1.0})
    content = settings.model_dump(mode="json")
    content["banks"]["mr"][-1]["weight"] = 0.5
    with pytest.raises(UsageError, match=r"'outline' needs a model; give weight 0, found 0.5"):
        validate(content, "the test")


def test_settings_that_wait_give_the_same_bits_as_those_without(settings, training_list, images):
    names = [m.name for m in baseline_methods(settings, "mr")]
    assert names == ["uniform", "single:sad", "single:mi", "single:fine"]  # learned members are no baselines
    a, b = (field(**images, config=s) for s in (settings, training_list.settings))
    np.testing.assert_array_equal(a, b)


def train(pairs, settings, folder, told):
    runner = Runner(Reading(), 1, None, folder / "tasks", None)
    options = TrainOptions(folds=2, C=1.0, alpha=1.0, eta=1.0, predictor_options={"samples": 1000, "steps": 5})
    return fit_model(read_pairs(pairs), settings, options, runner, lambda p: told.append(p.message))


def test_training_weighs_them_by_pairs_whose_patients_the_predictor_has_not_seen(
    settings, training_list, tmp_path, monkeypatch
):
    """Every registration that is tried gets a predictor without the pair's patient, and none gets the model's own."""
    pairs = training_list.write(tmp_path / "pairs.csv", *(training_list.line(n) for n in range(4)))
    handed: dict[str, set[str]] = {}
    fit = Predictors._fit

    def watched(self, images, like, checkpoint):
        found = fit(self, images, like, checkpoint)
        handed[content(found)] = {name for i in images for name in i.patients}
        return found

    def content(predictor):
        return str(predictor.save().to_json()["perceptron"])

    monkeypatch.setattr(Predictors, "_fit", watched)
    tried = []
    monkeypatch.setattr(runner, "score_dice", lambda task: (tried.append(task.model), score_dice(task))[1])
    told: list[str] = []
    model = train(pairs, settings, tmp_path / "work", told)
    lines = {line["member"]: line for line in model.training.to_json()["refinement"]["members"]}
    assert set(lines) == {"fine", "anatomy", "outline"}
    tried = [m for m in tried if m is not None]
    laid, plain = ([m for m in tried if (m.settings.initial == "structures") is of] for of in (True, False))
    weighed = [m for m in plain if m.weights.matrix[-2:].any()]
    assert weighed
    assert laid
    assert all(handed[content(m.predictor)] != {f"g{n}" for n in range(4)} for m in [*weighed, *laid])
    assert all(m.predictor is None for m in plain if not m.weights.matrix[-2:].any())
    assert handed[content(model.predictor)] == {f"g{n}" for n in range(4)}
    assert not any("too few patients" in message for message in told)


def test_too_few_patients_leave_learned_members_out(settings, training_list, tmp_path):
    lines = (training_list.line(0, "a", "x+y"), training_list.line(1, "b", "x+y"), training_list.line(2, "c", "z"))
    pairs = training_list.write(tmp_path / "pairs.csv", *lines, training_list.line(3, "d", "x+y+z+w"))
    told: list[str] = []
    model = train(pairs, settings, tmp_path / "work", told)
    assert any("too few patients" in message for message in told)
    assert {line["member"] for line in model.training.to_json()["refinement"]["members"]} <= {"fine"}
    assert not model.weights.matrix[-2:].any()


def test_changed_members_tune_the_smoothness_and_the_outline_is_judged_without_a_mask(
    settings, training_list, tmp_path, monkeypatch
):
    """With a mask the outline seems to help; without one another mix, at its own smoothness, is tried and judged."""
    gain = {"mean": 0.01, "low": 0.0, "high": 0.02, "n": 4}
    asked = []

    def mixed(start, scores, members, *_):
        asked.append(set(members))
        matrix = start.matrix.copy()
        matrix[-1 if "outline" in members else -2] = matrix[2]  # as if left-out patients had gained
        return RefinementWeights(replace(start, matrix=matrix), scores, RefinementRecord(gain=Gain(**gain)))

    monkeypatch.setattr(search, "mix_refinement", mixed)
    pairs = training_list.write(tmp_path / "pairs.csv", *(training_list.line(n) for n in range(4)))
    told: list[str] = []
    model = train(pairs, settings, tmp_path / "work", told)
    assert asked == [{"fine", "anatomy", "outline"}, {"fine", "anatomy"}]
    before = model.training.smoothness.refine.smoothness
    record = model.training.to_json()["refinement"]["smoothness"]
    curve = {row["smoothness"]: row["mean_dice"] for row in record["curve"]}
    assert list(curve) == sorted(curve)
    assert {before / 2, before, 2 * before} <= set(curve)
    assert record["mean_dice"] == max(curve.values()) == curve[record["smoothness"]]
    assert model.settings.refine.smoothness == record["smoothness"]
    record = model.training.to_json()["refinement"]["without_mask"]
    assert record["n"] == 4
    assert record["gain"] != 0
    assert record["used"] == (record["gain"] > record["standard_error"]) == model.outline_without_mask
    assert "without moving labels: 8 registrations" in told
    own = record["own"]
    assert own["used"] == (own["mean_dice"] > record["mean_dice"]) == (model.weights_without_mask is not None)
    curve = {row["smoothness"]: row["mean_dice"] for row in own["smoothness"]["curve"]}
    assert len(curve) >= 3
    left = own["background"]
    assert own["mean_dice"] == pytest.approx(max(curve.values()) + (left["change"] if left["used"] else 0.0))
    if model.weights_without_mask is not None:
        blind = model.weights_without_mask
        assert not blind.matrix[-1].any()
        assert blind.matrix[-2, 1:].all()
        smoothness = model.settings.refine.smoothness * (1 if blind.stiffness is None else blind.stiffness[-1])
        assert smoothness == pytest.approx(own["smoothness"]["smoothness"])


def test_the_smoothness_stays_where_no_member_changed(settings, training_list, tmp_path, monkeypatch):
    monkeypatch.setattr(search, "mix_refinement", lambda start, scores, *_: RefinementWeights(start, scores))
    pairs = training_list.write(tmp_path / "pairs.csv", *(training_list.line(n) for n in range(4)))
    model = train(pairs, settings, tmp_path / "work", [])
    assert model.training.refinement.smoothness is None
    assert model.settings.refine.smoothness == model.training.smoothness.refine.smoothness


def coarser(model, times, training_list) -> Model:
    """The model as if its training images had voxels so many times as wide."""
    width = times * float(Reading().image(training_list.files(0)["fixed"]).geometry.spacing_mm.min())
    return replace(model, predictor=replace(model.predictor, sizes=Sizes(width, width)))


def test_maps_far_coarser_than_the_image_are_left_out(model, training_list, images):
    matrix = model.weights.matrix.copy()
    matrix[2], matrix[3] = 0.4, 0  # the other member that refines has the weight of anatomy
    plain = register(**images, model=weighed(model, matrix))
    with pytest.warns(RegweaveWarning, match=r"W238: the voxels of the fixed image are .* mm wide"):
        found = register(**images, model=coarser(model, 2.1, training_list))
    np.testing.assert_allclose(found.weights.matrix, matrix, rtol=1e-12)
    assert found.weights.classes == model.weights.classes
    near = coarser(model, 1.9, training_list)
    kept = register(**images, model=near)
    np.testing.assert_array_equal(kept.weights.matrix, near.weights.matrix)
    assert plain.weights.matrix[3, 0] == 0 != kept.weights.matrix[3, 0]


def test_weights_without_a_mask_lose_coarse_maps_too(model, training_list, images, mask):
    blind = replace(model.weights, stiffness=np.full(len(model.weights.classes), 0.5))
    plain = replace(model.weights, matrix=model.weights.matrix[[0, 1, 2, 4, 3]])
    far = coarser(replace(model, weights=plain, weights_without_mask=blind), 3.0, training_list)
    for labels in ({}, {"moving_labels": mask}):
        with pytest.warns(RegweaveWarning, match="W238"):
            found = register(**images, **labels, model=far)
        np.testing.assert_allclose(found.weights.matrix[2:, 0], [0.4, 0, 0], rtol=1e-12)
        assert found.weights.stiffness is None


def test_where_only_maps_were_weighed_the_bank_starts_anew(model, settings):
    schedule, matrix = settings.for_bank("mr"), model.weights.matrix.copy()
    matrix[3] += matrix[2]
    matrix[2] = 0
    found = schedule.without_map_members(replace(model.weights, matrix=matrix))
    start = schedule.start_weights(model.weights.pairwise, model.weights.classes)
    np.testing.assert_array_equal(found.matrix, start.matrix)
    assert not schedule.compares_maps(found)


def test_a_classifier_of_large_images_keeps_its_maps(model):
    """Its working voxels are larger than those of its training images, which training has judged it with."""
    limited = replace(model.predictor, sizes=Sizes(2.0, 4.0))
    assert limited.trained_mm is None
    assert replace(model.predictor, sizes=Sizes(2.1, 4.0)).trained_mm == 2.1


def test_smoothness_goes_back_to_the_preset_where_there_is_one(settings):
    tuned = preset("default").with_refine_smoothness(0.5)
    assert with_refinement_of_preset(tuned) == preset("default")
    assert with_refinement_of_preset(settings) is settings  # these are named after no preset
