"""One registration through the Python interface: every kind of input, start, weighting, and what comes out."""

import dataclasses
import json
import math
from itertools import combinations, permutations

import nibabel as nib
import numpy as np
import pytest
import SimpleITK as sitk  # noqa: N813
from scipy.spatial.transform import Rotation

import regweave
from made_pairs import bare, small_settings
from phantoms import make_phantom
from regweave import _core, notices
from regweave.config.settings import Settings
from regweave.errors import RegweaveError, RegweaveWarning, UsageError
from regweave.io import write_image, write_transform
from regweave.io.geometry import Orientation
from regweave.io.transforms.files import write_linear
from regweave.model.model import Model
from regweave.progress import Progress
from regweave.registration.align import align
from regweave.run import register as workflow
from regweave.run.job import Job
from regweave.run.memory import no_cache
from regweave.spatial.warp import invert, warp_points
from regweave.types import Field, Geometry, ImagePair, LabelMap, Transform, Volume, WeightTable

LPS_RAS = np.diag([-1.0, -1.0, 1.0, 1.0])
SMALL = small_settings((48.0, 2, 2), (24.0, 1, 2), refine=5)
MEMBERS = ("sad", "ncc")


def register(fixed, moving, **given):
    return workflow.register(bare(fixed), bare(moving), **given)


@pytest.fixture(scope="module")
def pair() -> ImagePair:
    return make_phantom(seed=1, shape=(32, 32, 32), spacing_mm=(6.0, 6.0, 6.0)).pair


@pytest.fixture(scope="module")
def plain(pair):
    return register(
        pair.fixed, pair.moving, fixed_labels=pair.fixed_labels, moving_labels=pair.moving_labels, config=SMALL
    )


def run(pair: ImagePair, **options):
    return register(pair.fixed, pair.moving, **{"config": SMALL, **options})


def same_bits(a, b) -> bool:
    fields = np.array_equal(a.transform.field.data, b.transform.field.data)
    return fields and np.array_equal(a.transform.affine, b.transform.affine)


def as_itk(value: Volume | LabelMap) -> sitk.Image:
    image = sitk.GetImageFromArray(np.ascontiguousarray(value.data.T))
    image.SetSpacing(value.geometry.spacing_mm.tolist())
    image.SetOrigin(value.geometry.origin_mm.tolist())
    image.SetDirection(value.geometry.direction.ravel().tolist())
    return image


def as_nibabel(value: Volume | LabelMap) -> nib.Nifti1Image:
    return nib.Nifti1Image(value.data, LPS_RAS @ value.geometry.affine)


def as_tuple(value: Volume | LabelMap):
    return value.data, LPS_RAS @ value.geometry.affine


def test_images_of_other_libraries_and_files_of_other_formats_give_the_same_bits(pair, plain, tmp_path):
    names = ("fixed", "moving", "fixed_labels", "moving_labels")
    for kind in (as_itk, as_nibabel, as_tuple):
        found = register(**{name: kind(getattr(pair, name)) for name in names}, config=SMALL)
        assert same_bits(found, plain)
        assert np.array_equal(found.warped_labels.data, plain.warped_labels.data)
        assert {v: r["after"] for v, r in found.dice.items()} == {v: r["after"] for v, r in plain.dice.items()}
    write_image(tmp_path / "fixed.nrrd", pair.fixed)
    write_image(tmp_path / "moving.nii.gz", pair.moving)
    assert same_bits(register(tmp_path / "fixed.nrrd", str(tmp_path / "moving.nii.gz"), config=SMALL), plain)


def test_same_bits_for_any_thread_count_and_in_every_run(pair, plain):
    before = _core.threads()
    for n in (1, 2, 3):
        found = run(pair, threads=n)
        assert same_bits(found, plain)
        assert np.array_equal(found.inverse.field.data, plain.inverse.field.data)
        assert np.array_equal(found.warped.data, plain.warped.data)
        assert found.provenance.threads == n
        assert (found.warped_labels, found.dice) == (None, {})  # labels, which are not given here, change no prediction
    assert _core.threads() == before


def stored_as(value, order, flips):
    """The same image in the same place, with its axes stored in another order and direction."""
    data, affine = value.data.transpose(order), value.geometry.affine[:, [*order, 3]].copy()
    for axis in flips:
        affine[:3, 3] += affine[:3, axis] * (data.shape[axis] - 1)
        affine[:3, axis] *= -1
        data = np.flip(data, axis)
    return dataclasses.replace(value, data=np.ascontiguousarray(data), geometry=Geometry(data.shape, affine))


def turned(value, rotation, offset):
    affine = np.eye(4)
    affine[:3, :3], affine[:3, 3] = rotation, offset
    return dataclasses.replace(value, geometry=Geometry(value.geometry.shape, affine @ value.geometry.affine))


@pytest.fixture(scope="module")
def uneven() -> ImagePair:
    return make_phantom(seed=3, shape=(32, 28, 24), spacing_mm=(5.0, 6.0, 8.0)).pair


@pytest.fixture(scope="module")
def uneven_result(uneven):
    return run(uneven)


def test_all_48_storages_of_the_fixed_image_give_one_answer():
    """Bit for bit: both are brought to one order before anything is computed."""
    pair = make_phantom(shape=(16, 12, 14), spacing_mm=(10.0, 13.0, 11.0)).pair
    quick = SMALL.model_copy(update={"levels": SMALL.levels[:1]})
    expected = register(pair.fixed, pair.moving, config=quick)
    original = Orientation.of(pair.fixed.geometry)
    for order in permutations(range(3)):
        for flips in [axes for n in range(4) for axes in combinations(range(3), n)]:
            stored = stored_as(pair.fixed, order, flips)
            found = register(stored, stored_as(pair.moving, order[::-1], flips), config=quick)
            assert found.warped.geometry.shape == stored.data.shape
            back = Orientation.of(stored.geometry)
            same = original.to_stored(back.to_canonical(found.transform.field.data))
            np.testing.assert_allclose(same, expected.transform.field.data, atol=1e-5)
            warped = original.to_stored(back.to_canonical(found.warped.data))
            np.testing.assert_allclose(warped, expected.warped.data, atol=0.05)


def test_a_turn_of_both_images_turns_the_result(uneven, uneven_result):
    """As long as the same axes stay nearest L, P and S."""
    rotation, offset = Rotation.from_euler("xyz", [0.2, -0.15, 0.25]).as_matrix(), np.array([100.0, -50.0, 30.0])
    fixed, moving = (turned(image, rotation, offset) for image in (uneven.fixed, uneven.moving))
    for a, b in ((fixed, uneven.fixed), (moving, uneven.moving)):
        assert Orientation.of(a.geometry).order == Orientation.of(b.geometry).order
        assert Orientation.of(a.geometry).steps == Orientation.of(b.geometry).steps
    found = register(fixed, moving, config=SMALL)
    expected = np.einsum("ab,bxyz->axyz", rotation, uneven_result.transform.field.data)
    assert np.linalg.norm(found.transform.field.data - expected, axis=0).max() < 0.05
    for number in ("sdlogj", "min_jacobian", "max_jacobian"):
        assert found.regularity[number] == pytest.approx(uneven_result.regularity[number], rel=1e-2)


def test_other_orientation_and_oblique_at_once(uneven):
    rotation, offset = Rotation.from_euler("xyz", [0.2, 0.5, -0.4]).as_matrix(), np.array([-20.0, 5.0, 60.0])
    moving = stored_as(turned(uneven.moving, rotation, offset), (1, 0, 2), (1,))
    start = np.eye(4)
    start[:3, :3], start[:3, 3] = rotation, offset
    pair = ImagePair(uneven.fixed, moving, initial=start)
    found = align(pair, WeightTable.constant(dict.fromkeys(MEMBERS, 1.0), SMALL.smoothness), SMALL.for_bank("mr"))
    straight = align(uneven, WeightTable.constant(dict.fromkeys(MEMBERS, 1.0), SMALL.smoothness), SMALL.for_bank("mr"))
    assert np.abs(found.displacement - straight.displacement).max() < 0.02


def test_transform_inverse_and_warped_agree_with_simpleitk(uneven, tmp_path):
    fixed = turned(uneven.fixed, Rotation.from_euler("z", 0.3).as_matrix(), (5.0, 0.0, 0.0))
    result = register(fixed, uneven.moving, config=SMALL)
    result.save(tmp_path / "out", write=("transform", "inverse", "displacement"))
    forward, back = (sitk.ReadTransform(str(tmp_path / "out" / f"{n}.h5")) for n in ("transform", "inverse"))
    warped = sitk.Resample(as_itk(uneven.moving), as_itk(fixed), forward, sitk.sitkLinear, 0.0)
    expected = sitk.GetArrayFromImage(warped).T
    inside = (slice(2, -2),) * 3
    scale = np.ptp(uneven.moving.data)
    # At the border of the moving image the two disagree whether a voxel is still inside.
    off = np.abs(result.warped.data - expected)[inside] > 1e-3 * scale
    assert off.mean() < 2e-3
    index = np.random.default_rng(0).uniform(4, np.array(fixed.geometry.shape) - 5, (50, 3))
    points = fixed.geometry.points(index)
    ours = warp_points(points, result.transform)
    theirs = np.array([forward.TransformPoint(p) for p in points.tolist()])
    np.testing.assert_allclose(ours, theirs, atol=1e-4)
    np.testing.assert_allclose([back.TransformPoint(p) for p in theirs.tolist()], points, atol=0.5)
    error = np.linalg.norm(warp_points(ours, result.inverse) - points, axis=1)
    assert error.mean() < 0.2
    displacement = sitk.DisplacementFieldTransform(
        sitk.ReadImage(str(tmp_path / "out" / "displacement.nii.gz"), sitk.sitkVectorFloat64)
    )
    np.testing.assert_allclose([displacement.TransformPoint(p) for p in points.tolist()], theirs, atol=1e-3)


def shifted(volume: Volume, shift_mm) -> Volume:
    affine = volume.geometry.affine.copy()
    affine[:3, 3] += shift_mm
    return Volume(volume.data, Geometry(volume.geometry.shape, affine))


def test_start_from_a_linear_transform_file(pair, tmp_path):
    shift = np.array([60.0, -30.0, 12.0])
    moving = shifted(pair.fixed, shift)
    matrix = np.eye(4)
    matrix[:3, 3] = shift
    write_linear(tmp_path / "start.tfm", matrix)
    found = register(pair.fixed, moving, config=SMALL, init=tmp_path / "start.tfm")
    np.testing.assert_array_equal(found.transform.affine, matrix)
    assert np.abs(found.transform.field.data).max() < 0.06
    np.testing.assert_allclose(found.warped.data, pair.fixed.data, atol=1.0)


def test_start_from_an_earlier_result_and_from_a_field_of_another_grid(pair, plain, tmp_path):
    write_transform(tmp_path / "t.h5", plain.transform)
    again = run(pair, init=str(tmp_path / "t.h5"), fixed_labels=pair.fixed_labels, moving_labels=pair.moving_labels)
    for value, row in again.dice.items():
        assert row["start"] == plain.dice[value]["after"]
        assert row["before"] == plain.dice[value]["before"]
    assert again.summary()["mean_dice"]["after"] > plain.summary()["mean_dice"]["before"]
    assert again.regularity["folding_fraction"] == 0
    coarse = Geometry((10, 10, 10), np.diag([20.0, 20.0, 20.0, 1.0]))
    coarse.affine[:3, 3] = -93.0
    write_transform(tmp_path / "other.h5", Transform(Field(np.full((3, 10, 10, 10), 3.0, dtype=np.float32), coarse)))
    found = run(pair, init=tmp_path / "other.h5")
    assert found.transform.field.geometry.shape == pair.fixed.geometry.shape


def test_start_by_method_and_starts_that_cannot_be(pair, tmp_path):
    far = shifted(pair.moving, (500.0, 0.0, 0.0))
    with pytest.raises(RegweaveError, match=r"E120.*--init moments"):
        register(pair.fixed, far, config=SMALL, init="none")
    found = register(pair.fixed, far, config=SMALL, init="moments")
    assert found.transform.affine[0, 3] == pytest.approx(500, abs=20)
    with pytest.raises(UsageError, match=r"E187.*none, moments, rigid, affine, structures"):
        run(pair, init="centre")
    matrix = np.diag([-1.0, -1.0, -1.0, 1.0])
    write_linear(tmp_path / "mirror.tfm", matrix)
    for init in (matrix, tmp_path / "mirror.tfm"):
        with pytest.raises(RegweaveError, match=r"E115.*mirrors the patient"):
            run(pair, init=init)
    with pytest.raises(UsageError, match=r"E115.*builtins\.int"):
        run(pair, init=7)


def test_start_from_memory(pair):
    """A matrix and the SimpleITK transform of it start alike, in space where fixed points go to moving points."""
    far, matrix = shifted(pair.moving, (40.0, 0.0, 0.0)), np.eye(4)
    matrix[0, 3] = 40.0
    found = register(pair.fixed, far, config=SMALL, init=matrix)
    np.testing.assert_array_equal(found.transform.affine, matrix)
    by_itk = register(pair.fixed, far, config=SMALL, init=sitk.TranslationTransform(3, (40.0, 0.0, 0.0)))
    np.testing.assert_array_equal(by_itk.transform.field.data, found.transform.field.data)
    again = register(pair.fixed, far, config=SMALL, init=found.transform)
    assert again.provenance.start.requested == "field in memory"


def model_with(matrix, classes, **settings) -> Model:
    chosen = SMALL.model_copy(update=settings)
    return Model(WeightTable(np.array(matrix), MEMBERS, classes, 0.2), chosen, "mr")


def test_model_brings_its_weights_and_its_settings(pair, tmp_path):
    known = tuple(range(7))
    matrix = np.full((2, 7), 0.5)
    matrix[:, 3] = (1.0, 0.0)
    model = model_with(matrix, known, smoothness=0.2, name="learned")
    model.save(tmp_path / "m.json")
    found = register(
        pair.fixed,
        pair.moving,
        moving_labels=pair.moving_labels,
        fixed_labels=pair.fixed_labels,
        model=tmp_path / "m.json",
    )
    assert found.provenance.settings.name == "learned"
    np.testing.assert_array_equal(found.weights.matrix, matrix)
    assert (found.weights.classes, found.weights.pairwise) == (known, 0.2)
    in_memory = register(pair.fixed, pair.moving, moving_labels=pair.moving_labels, model=model)
    assert same_bits(in_memory, found)
    even = register(
        pair.fixed, pair.moving, moving_labels=pair.moving_labels, model=model_with(matrix * 0 + 0.5, known)
    )
    assert not same_bits(even, found)
    with pytest.warns(RegweaveWarning, match="W262"):
        without_mask = register(pair.fixed, pair.moving, model=model)  # background column everywhere
    background = register(pair.fixed, pair.moving, model=model_with(np.full((2, 1), 0.5), (0,)))
    assert same_bits(without_mask, background)


def test_model_that_does_not_fit(pair):
    two = model_with(np.full((2, 2), 0.5), (0, 3))
    named = dataclasses.replace(two, class_names={0: "background", 3: "liver"})
    with pytest.raises(RegweaveError, match=r"(?s)E130.*no structure in common.*3 mandible.*3 liver"):
        register(pair.fixed, pair.moving, moving_labels=pair.moving_labels, model=named)
    other = dataclasses.replace(two, weights=WeightTable.constant(dict.fromkeys(("sad", "mi"), 1.0), 0.1))
    with pytest.raises(RegweaveError, match=r"E170.*sad, mi, the bank has sad, ncc"):
        register(pair.fixed, pair.moving, model=other)
    with pytest.raises(UsageError, match=r"E189.*both given"):
        register(pair.fixed, pair.moving, model=two, metrics={"sad": 2.0, "ncc": 1.0})
    with pytest.raises(RegweaveError, match=r"E170.*the bank has sad, mi, ncc, dwt"):
        register(pair.fixed, pair.moving, model=two, preset="paper")
    for value in (-0.1, math.nan, math.inf):
        changed = dataclasses.replace(two, weights=dataclasses.replace(two.weights, pairwise=value))
        with pytest.raises(RegweaveError, match=r"E170.*pairwise"):
            register(pair.fixed, pair.moving, model=changed)


def test_metrics_and_engine_by_hand(pair):
    found = run(pair, metrics={"sad": 2.0, "mind": 1.0}, engine="icm")
    assert found.provenance.settings.engine == "icm"
    assert found.weights.members == ("sad", "mind")
    np.testing.assert_allclose(found.weights.matrix, [[2 / 3], [1 / 3]])
    assert [m.name for m in found.provenance.settings.banks["mr"]] == ["sad", "mind"]
    named = SMALL.model_copy(update={"banks": {"mr": (SMALL.banks["mr"][0].model_copy(update={"support": 9}),)}})
    kept = register(pair.fixed, pair.moving, config=named, metrics={"sad": 1.0})
    assert kept.provenance.settings.banks["mr"][0].support == 9  # the member of that name, not the bare metric
    with pytest.raises(UsageError, match=r"E181.*'nnc'.*available"):
        run(pair, metrics={"nnc": 1.0})
    for given in ({"sad": -1.0}, {"sad": 0.0}, {"sad": math.nan}, {"sad": 1.0, "ncc": math.inf}):
        with pytest.raises(UsageError, match="E188"):
            run(pair, metrics=given)
    with pytest.raises(UsageError, match=r"unknown engine 'trvs'; .*available: .*trws"):
        run(pair, engine="trvs")


def test_warnings_are_given_and_recorded(pair, tmp_path):
    """Of a refinement that is left out, of a label that leaves the image, and of voxels that hold no number."""
    with pytest.warns(RegweaveWarning, match="W206"):
        found = run(pair, metrics={"mi": 1})
    assert [w[:4] for w in found.warnings if "W206" in w] == ["W206"]
    assert found.refinement == ()
    labels = np.zeros(pair.moving.geometry.shape, np.uint8)
    labels[31, 16, 16] = 9
    fixed = Volume(np.ascontiguousarray(pair.fixed.data[:20]), Geometry((20, 32, 32), pair.fixed.geometry.affine))
    with pytest.warns(RegweaveWarning, match="W203: label 9 vanished"):
        found = register(fixed, pair.moving, config=SMALL, moving_labels=LabelMap(labels, pair.moving.geometry))
    assert any("W203" in w for w in found.warnings)
    holes = pair.fixed.data.copy()
    holes[0, 0, 0] = np.nan
    write_image(tmp_path / "f.nrrd", Volume(holes, pair.fixed.geometry))
    with pytest.raises(RegweaveError, match="E104"):
        register(tmp_path / "f.nrrd", pair.moving, config=SMALL)
    with pytest.warns(RegweaveWarning, match="W205"):
        found = register(tmp_path / "f.nrrd", pair.moving, config=SMALL, nonfinite="mask")
    assert any("W205" in w for w in found.warnings)


def test_progress_and_an_error_of_its_callback(pair):
    told: list[Progress] = []
    run(pair, on_progress=told.append)
    assert list(dict.fromkeys(p.stage for p in told)) == [
        "read", "initial", "classes", "begin", "levels", "refine", "outputs", "measure",
    ]  # fmt: skip
    steps = [p for p in told if "step" in p.message]
    assert [p.done for p in steps] == list(range(1, 10))
    assert {p.total for p in steps} == {9}
    assert [p.stage for p in steps] == ["levels"] * 4 + ["refine"] * 5
    assert [p.message for p in told if p.stage == "begin"] == ["MR · start none · no model"]
    fractions = [p.fraction for p in told]
    assert fractions == sorted(fractions)
    assert fractions[0] == 0 < steps[0].fraction < steps[3].fraction < fractions[-1] < 1

    def stop(progress: Progress) -> None:
        raise KeyboardInterrupt

    before = _core.threads()
    with pytest.raises(KeyboardInterrupt):
        run(pair, on_progress=stop, threads=3)
    assert _core.threads() == before


def test_summary_is_complete_and_plain_json(plain):
    summary = json.loads(json.dumps(plain.summary(), allow_nan=False))
    assert set(summary["dice"]) == {"1", "2", "3", "4", "5", "6"}
    assert summary["dice"]["3"]["name"] == "mandible"
    for row in summary["dice"].values():
        assert 0 <= row["before"] <= 1
        assert 0 <= row["after"] <= 1
    assert summary["mean_dice"]["after"] > summary["mean_dice"]["before"]
    assert len(summary["steps"]) == 4
    for step in summary["steps"]:
        assert step["lower_bound"] <= step["energy"] + 1e-9
        assert step["gap"] == pytest.approx((step["energy"] - step["lower_bound"]) / abs(step["energy"]), abs=1e-9)
    assert len(summary["refinement"]) == 5
    stages = {"read", "initial", "classes", "levels", "refine", "outputs", "measure", "total"}
    assert set(summary["seconds"]) == stages
    assert summary["seconds"]["total"] == pytest.approx(sum(summary["seconds"].values()) / 2)
    assert summary["peak_memory_mb"] > 50
    assert summary["regularity"]["folding_fraction"] == 0
    assert summary["regularity"]["sdlogj"] > 0
    assert set(summary["inverse_consistency_mm"]) >= {"mean", "p95", "max"}
    provenance = summary["provenance"]
    assert provenance["regweave"] == regweave.__version__
    assert set(provenance["dependencies"]) >= {"numpy", "scipy", "SimpleITK", "nibabel"}
    assert set(provenance["inputs_sha256"]) == {"fixed", "moving", "fixed_labels", "moving_labels"}
    assert Settings.model_validate(provenance["settings"]) == SMALL
    assert provenance["modality"] == {"fixed": "mr", "moving": "mr", "bank": "mr"}


def test_structures_that_one_image_lacks_are_not_scored(pair):
    fixed, moving = pair.fixed_labels.data.copy(), pair.moving_labels.data.copy()
    fixed[fixed == 3], moving[moving == 2] = 0, 0
    lacking = {"fixed_labels": LabelMap(fixed, pair.fixed.geometry, pair.fixed_labels.names)}
    found = run(pair, **lacking, moving_labels=LabelMap(moving, pair.moving.geometry))
    assert (found.dice[2]["state"], found.dice[3]["state"]) == ("not in moving", "no reference")
    assert np.isnan(found.dice[2]["after"])
    scored = [row for value, row in found.dice.items() if value not in (2, 3)]
    for when in ("before", "after"):
        assert found.mean_dice[when] == pytest.approx(np.mean([row[when] for row in scored]))
    assert found.summary()["mean_dice"] == found.mean_dice
    assert found.dice[4]["name"] == "left parotid"  # the fixed image's own name wins
    rows = found.structures()
    assert [row["label"] for row in rows] == [1, 2, 3, 4, 5, 6]
    assert (rows[2]["dice_after"], rows[2]["hd95_mm"], rows[2]["volume_fixed_ml"]) == (None, None, 0.0)
    assert rows[2]["volume_after_ml"] > 0.0
    for row in rows:
        assert row["volume_fixed_ml"] == pytest.approx((fixed == row["label"]).sum() * 6.0**3 / 1000)


def test_the_inverse_is_warned_of_by_its_share_of_the_body(pair, monkeypatch):
    for n, warned in ((1, False), (200, True)):

        def spoilt(transform, geometry, n=n, **options):
            found = invert(transform, geometry, **options)
            found[1].flat[np.flatnonzero(pair.moving_labels.data)[:n]] = 0.6
            return found

        monkeypatch.setattr(workflow, "invert", spoilt)
        with notices.muted():
            found = run(pair, fixed_labels=pair.fixed_labels, moving_labels=pair.moving_labels)
        assert found.inverse_error.inexact_voxels == n
        texts = [w for w in found.warnings if w.startswith("W202")]
        assert bool(texts) == warned
        assert found.verdict.word == ("look" if warned else "pass")
    assert "inexact at 200 voxels of the body" in texts[0]
    assert "contours and images are not affected" in texts[0]


def test_identity(pair):
    found = register(pair.fixed, pair.fixed, config=SMALL)
    assert np.abs(found.transform.field.data).max() < 0.06
    np.testing.assert_allclose(found.warped.data, pair.fixed.data, atol=1.0)
    assert found.inverse_consistency_mm["max"] < 0.01


def test_a_label_map_in_place_of_an_image_is_doubted(pair):
    drawn = Volume(pair.moving_labels.data.astype(np.float32), pair.moving.geometry)
    with notices.unheard():
        result = register(pair.fixed, drawn, config=SMALL)
    assert any(
        text.startswith("W256: the moving image looks like a label map: 7 whole values") for text in result.warnings
    )
    assert result.verdict.word != "pass"
    assert not any("W256" in text for text in register(pair.fixed, pair.moving, config=SMALL).warnings)


def test_a_label_map_without_labels_is_refused(phantom_pair):
    pair = phantom_pair.pair
    empty = dataclasses.replace(pair.moving_labels, data=np.zeros_like(pair.moving_labels.data))
    with pytest.raises(
        RegweaveError, match=r"^E131: the label map shows no structure: every voxel of the moving labels is 0"
    ):
        register(pair.fixed, pair.moving, moving_labels=empty)


def test_a_trial_scores_the_same_registration_without_proving_it(pair, monkeypatch):
    """Bounds of `fastpd` take as long as its sweeps, and a trial shows them to nobody."""
    settings = SMALL.model_copy(update={"engine": "fastpd"})
    given = {name: getattr(pair, name) for name in ("fixed", "moving", "fixed_labels", "moving_labels")}
    expected = register(**given, config=settings).score
    passes, real = [], _core.fastpd

    def spied(*arguments):
        passes.append(arguments[-1])
        return real(*arguments)

    monkeypatch.setattr(_core, "fastpd", spied)
    found = workflow.score_trial(Job(**given, config=settings), no_cache)
    assert [s.dice_after for s in found.structures] == [s.dice_after for s in expected.structures]
    assert set(passes) == {0}
