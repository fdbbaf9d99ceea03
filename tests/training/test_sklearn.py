"""The estimator in scikit-learn's own tools: clone, grid search, cross-validation, pipelines."""

import subprocess
import sys

import numpy as np
import pytest
from sklearn.base import clone, is_classifier, is_regressor
from sklearn.model_selection import GridSearchCV, GroupShuffleSplit, ShuffleSplit, cross_val_score
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils import get_tags
from sklearn.utils.validation import check_is_fitted

from regweave import MetricLearner
from regweave.jobs.table import PairFiles

pytestmark = pytest.mark.usefixtures("in_process")
QUICK = {
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
    return MetricLearner(config=settings.model_copy(update=one_level), **QUICK)


def test_a_fitted_pipeline_registers_and_its_clone_is_fresh(learner, pairs):
    pipeline = Pipeline([("learner", clone(learner))]).fit(pairs[:2])
    fitted = pipeline["learner"]
    check_is_fitted(fitted)
    assert pipeline.predict(pairs[2:3])[0].field.data.shape == (3, 24, 24, 24)
    assert pipeline.score(pairs[2:3]) == fitted.score(pairs[2:3])
    copy = clone(fitted)
    assert copy.get_params() == fitted.get_params()
    assert not hasattr(copy, "model_")


def test_what_kind_of_estimator_it_is(learner):
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


def test_cross_validation_and_a_pipeline_give_the_same(learner, pairs):
    taken = []

    def note(listed):
        taken.extend(p.id for p in listed)
        return listed

    pipeline = Pipeline([("note", FunctionTransformer(note)), ("learner", learner)])
    pipeline.set_params(learner__eta=2.0)
    alone = clone(learner).set_params(eta=2.0)
    once = ShuffleSplit(1, test_size=1, random_state=0)
    piped, plain = (cross_val_score(e, pairs, cv=once, error_score="raise") for e in (pipeline, alone))
    np.testing.assert_array_equal(piped, plain)
    assert set(taken) == {p.id for p in pairs}


def test_a_target_is_refused(learner, pairs):
    for call in (lambda: clone(learner).fit(pairs, ["x"] * 3), lambda: learner.score(pairs, [1, 2, 3])):
        with pytest.raises(ValueError, match="groups="):
            call()


def test_the_package_does_not_load_scikit_learn():
    code = "import sys, regweave; regweave.MetricLearner(); sys.exit('sklearn' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
