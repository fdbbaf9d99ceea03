"""Models that come with the package: they read, fit their settings, and are found by name."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from phantoms import make_phantom
from regweave.config import settings as registration_settings
from regweave.errors import RegweaveError, RegweaveWarning
from regweave.jobs.runner import model_methods
from regweave.model import find_model, shipped_models
from regweave.model.model import Model
from regweave.run.read import Reading
from regweave.run.register import register
from regweave.types import Volume


def test_weights_fit_settings_and_predictor():
    for name in shipped_models():
        model = Model.load(name)
        bank = model.settings.for_bank(model.modality).bank
        assert model.weights.members == tuple(m.name for m in bank)
        assert np.isfinite(model.weights.matrix).all()
        assert (model.weights.matrix >= 0).all()
        assert model.predictor.modality == model.modality
        assert all(not model.class_names[c].isdigit() for c in model.weights.classes)
        assert model.training.groups


def test_a_file_comes_before_a_shipped_model_of_its_name(tmp_path, monkeypatch):
    name, path = next(iter(shipped_models().items()))
    monkeypatch.chdir(tmp_path)
    assert find_model(name) == path
    shutil.copy(path, tmp_path / name)
    assert find_model(name) == Path(name)
    with pytest.raises(RegweaveError, match=r"E171.*no model file 'nothing'.*shipped: head-neck-ct, "):
        Model.load("nothing")


def test_used_by_name():
    (method, model), *_ = model_methods([Path("head-neck-ct")])
    assert method.name == "model:head-neck-ct"
    pair = make_phantom(shape=(24, 24, 24), spacing_mm=(8.0, 8.0, 8.0)).pair
    settings = method.settings.model_dump(mode="json")
    settings["levels"], settings["refine"]["steps"] = settings["levels"][:1], 1
    small = registration_settings.validate(settings, "the test")
    stated = Reading(fixed_modality="ct", moving_modality="ct")
    fixed, moving = (Volume(v.data, v.geometry) for v in (pair.fixed, pair.moving))
    with pytest.warns(RegweaveWarning, match=r"W260.*head and neck.*histogram"):  # a phantom is no patient
        result = register(fixed, moving, model="head-neck-ct", config=small, **vars(stated))
    assert result.provenance.modality.bank == "ct"
    assert result.provenance.classes_from == "predicted"
    assert result.weights.classes == model.weights.classes
    assert [result.provenance.model.licence, result.provenance.model.data_licence] == ["MIT", "MIT"]
