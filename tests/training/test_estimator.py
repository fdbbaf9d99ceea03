"""The estimator: parameter rules of scikit-learn, and the same model as the command."""

import contextlib
import inspect
import io
import re
import subprocess
import sys

import numpy as np
import pytest
from sklearn.base import clone, is_classifier, is_regressor
from sklearn.model_selection import GridSearchCV, GroupShuffleSplit
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils import get_tags
from sklearn.utils.validation import check_is_fitted

from regweave import MetricLearner
from regweave.config.settings import load, preset
from regweave.errors import RegweaveError, UsageError
from regweave.jobs.table import PairFiles
from regweave.learning.lssvm import LssvmOptions
from regweave.run.read import Reading
from regweave.run.register import register
from regweave.training.options import GRID, TrainOptions, default_table, train_table
from regweave.training.run import train

pytestmark = pytest.mark.usefixtures("in_process")
QUICK = {
    "method": "global", "classes": (3, 4), "C": 20.0, "alpha": 1.0, "eta": 3.0, "epsilon": 0.02, "rounds": 1,
    "gate": False, "workers": 1, "predictor_options": {"samples": 1000, "steps": 5},
}  # fmt: skip


def pairs_of(training_list, *numbers) -> list[tuple]:
    return [tuple(training_list.files(n).values()) for n in numbers]


@pytest.fixture(scope="module")
def fitted(training_list, in_process) -> MetricLearner:
    told = io.StringIO()
    with contextlib.redirect_stderr(told):
        learner = MetricLearner(config=training_list.settings, **QUICK, verbose=True)
        learner.fit(pairs_of(training_list, 0, 1), groups=["x", "y"])
    assert "verbose=True) tune: " in told.getvalue()
    return learner


def test_parameters_are_kept_as_they_are_and_set_by_name():
    classes = [3, 4]
    learner = MetricLearner(classes=classes, C="nonsense")
    assert learner.classes is classes
    assert learner.C == "nonsense"  # checked by fit, not here
    assert set(vars(learner)) == set(learner.get_params()) == set(learner.get_params(deep=False))
    assert all(p.kind is p.KEYWORD_ONLY for p in list(inspect.signature(MetricLearner).parameters.values()))
    assert not [name for name in vars(learner) if name.endswith("_")]
    learner = MetricLearner(C=5.0)
    assert learner.set_params(C=7.0, method="global") is learner
    assert (learner.C, learner.method) == (7.0, "global")
    with pytest.raises(ValueError, match=r"unknown parameter 'c'.*C"):
        learner.set_params(c=1.0)
    assert repr(learner) == "MetricLearner(method='global', C=7.0)"


def test_options_and_defaults_are_those_of_training(tmp_path):
    defaults = MetricLearner().get_params()
    for name, default in vars(TrainOptions()).items():
        assert defaults[name] == default
    below = LssvmOptions()
    assert all(getattr(below, name) in GRID[name] for name in GRID)
    assert below in TrainOptions().grid()
    assert TrainOptions(effort="smoke").grid() == [below]
    path = tmp_path / "preset.toml"
    path.write_text(f"{preset('default').toml()}\n{default_table()}")
    assert load(path) == preset("default")
    assert TrainOptions(**train_table(path)) == TrainOptions()
    for name in vars(TrainOptions()):
        assert re.search(rf"^(# )?{name} =", default_table(), re.MULTILINE), name
    path.write_text("[train]\nclasses = [3, 4]\ntls_ca = 'a.pem'")
    assert train_table(path, ("tls_ca",)) == {"classes": (3, 4), "tls_ca": "a.pem"}
    path.write_text("[train]\ntls_ca = 'a.pem'")
    with pytest.raises(UsageError, match=r"E194.*tls_ca"):
        train_table(path)


def test_fit_gives_the_model_of_the_command(fitted, training_list, tmp_path):
    lines = [training_list.line(n, f"pair{n}", g) for n, g in enumerate("xy")]
    options = TrainOptions(**{k: v for k, v in QUICK.items() if k != "workers"})
    listed = training_list.write(tmp_path / "pairs.csv", *lines)
    model = train(listed, tmp_path / "m.json", **vars(options), config=training_list.settings, workers=1)
    np.testing.assert_array_equal(fitted.weights_.matrix, model.weights.matrix)
    assert fitted.model_.training == model.training
    assert fitted.model_.predictor.save().to_json() == model.predictor.save().to_json()
    assert fitted.weights_ is fitted.model_.weights
    assert fitted.classes_ == (0, 3, 4)
    assert fitted.history_ == model.training.to_json()["history"]
    assert (fitted.weights_.matrix != 1 / 3).any()


def test_predict_and_score(fitted, training_list):
    pairs = pairs_of(training_list, 2, 3)
    files = [training_list.files(n) for n in (2, 3)]
    reading = Reading(classes=(3, 4))
    results = [register(**f, model=fitted.model_, **vars(reading)) for f in files]
    for found, result in zip(fitted.predict(pairs), results, strict=True):
        np.testing.assert_array_equal(found.field.data, result.transform.field.data)
    dice = [np.mean([row["after"] for row in r.dice.values()]) for r in results]
    assert fitted.score(pairs) == pytest.approx(np.mean(dice), rel=1e-12)


def test_what_goes_wrong(fitted, training_list, tmp_path):
    for call in ("predict", "score"):
        with pytest.raises(UsageError, match="not fitted"):
            getattr(MetricLearner(), call)(pairs_of(training_list, 0))
    listed = [PairFiles(f"a{n}", *training_list.files(n).values(), f"g{n}") for n in range(2)]
    with pytest.raises(RegweaveError, match=r"E132.*2 pairs and 1 groups"):
        MetricLearner().fit(listed, groups=["u"])
    with pytest.raises(RegweaveError, match=r"E132.*pair 0 has 3 files"):
        MetricLearner().fit([tuple(training_list.files(0).values())[:3]])
    with pytest.raises(UsageError, match="E194"):
        MetricLearner(method="svm").fit(pairs_of(training_list, 0, 1))
    (tmp_path / "cut.nii.gz").write_bytes(training_list.files(2)["moving"].read_bytes()[:3000])
    fixed, _, *labels = pairs_of(training_list, 2)[0]
    with pytest.raises(RegweaveError, match=r"E135.*E102"):
        fitted.score([(fixed, tmp_path / "cut.nii.gz", *labels)])


# The estimator in scikit-learn's own tools: clone, grid search, cross-validation, pipelines.
QUICKER = {
    "method": "global", "classes": (3,), "C": 20.0, "alpha": 1.0, "eta": 3.0, "epsilon": 0.05, "rounds": 1,
    "gate": False, "workers": 1, "predictor_options": {"samples": 1000, "steps": 5},
}  # fmt: skip


@pytest.fixture(scope="module")
def pairs(training_list) -> list[PairFiles]:
    return [PairFiles(f"p{n}", *training_list.files(n).values(), f"g{n}") for n in range(3)]


@pytest.fixture(scope="module")
def learner(training_list) -> MetricLearner:
    settings = training_list.settings
    one_level = {"levels": settings.levels[1:], "refine": settings.refine.model_copy(update={"steps": 0})}
    return MetricLearner(config=settings.model_copy(update=one_level), **QUICKER)


def test_a_fitted_pipeline_registers_and_its_clone_is_fresh(learner, pairs):
    taken = []

    def note(listed):
        taken.extend(p.id for p in listed)
        return listed

    pipeline = Pipeline([("note", FunctionTransformer(note)), ("learner", clone(learner))])
    pipeline.set_params(learner__eta=2.0).fit(pairs[:2])
    fitted = pipeline["learner"]
    check_is_fitted(fitted)
    assert fitted.eta == fitted.model_.training.options["eta"] == 2.0
    assert fitted.model_.training.groups == ("g0", "g1")  # by pair
    assert pipeline.predict(pairs[2:3])[0].field.data.shape == (3, 24, 24, 24)
    assert pipeline.score(pairs[2:3]) == fitted.score(pairs[2:3])
    assert set(taken) == {p.id for p in pairs}
    copy = clone(fitted)
    assert copy.get_params() == fitted.get_params()
    assert not hasattr(copy, "model_")
    tags = get_tags(learner)
    assert not tags.target_tags.required
    assert not tags.input_tags.two_d_array
    assert not is_classifier(learner)
    assert not is_regressor(learner)


def test_grid_search_chooses_by_dice_on_other_patients(learner, pairs):
    groups = [p.group for p in pairs]
    split = GroupShuffleSplit(1, test_size=1, random_state=0)
    tried = [("sad",), ("mi",)]
    search = GridSearchCV(learner, {"metrics": tried}, cv=split, error_score="raise")
    search.fit(pairs, groups=groups)
    found = search.cv_results_["mean_test_score"]
    assert found[0] != found[1]
    assert search.best_params_ == {"metrics": tried[int(np.argmax(found))]}
    assert search.best_estimator_.model_.training.groups == tuple(sorted(groups))
    train, test = next(split.split(pairs, groups=groups))
    alone = clone(learner).set_params(metrics=tried[0]).fit([pairs[n] for n in train])
    assert found[0] == alone.score([pairs[n] for n in test])


def test_a_target_is_refused_and_the_package_does_not_load_scikit_learn(learner, pairs):
    for call in (lambda: clone(learner).fit(pairs, ["x"] * 3), lambda: learner.score(pairs, [1, 2, 3])):
        with pytest.raises(ValueError, match="groups="):
            call()
    code = "import sys, regweave; regweave.MetricLearner(); sys.exit('sklearn' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
