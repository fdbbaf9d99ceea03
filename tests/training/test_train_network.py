"""A training whose predictor is a network: cross-fitted, judged, and kept in an archive."""

import sys
from pathlib import Path

import pytest

from regweave.model.model import Model
from regweave.progress import TrainProgress
from regweave.run.register import register
from regweave.training.options import TrainOptions
from regweave.training.run import train

pytestmark = pytest.mark.usefixtures("in_process")
OPTIONS = TrainOptions(
    classes=(1, 3), C=20.0, alpha=1.0, eta=3.0, epsilon=0.05, gate=False, predictor="unet",
    predictor_options={"width": "8", "steps": 2, "device": "cpu"},
)  # fmt: skip


@pytest.fixture(scope="module")
def trained(training_list, tmp_path_factory) -> tuple[Path, list[TrainProgress]]:
    pytest.importorskip("torch")
    folder, said = tmp_path_factory.mktemp("network"), []
    pairs = training_list.write(folder / "pairs.csv", *(training_list.line(n) for n in range(3)))
    settings = {"config": training_list.settings, "workers": 1, "on_progress": said.append}
    train(pairs, folder / "model.zip", **vars(OPTIONS), **settings)
    return folder / "model.zip", said


def test_network_is_judged_by_patients_that_it_has_not_seen_and_registers_without_torch(
    trained, training_list, monkeypatch
):
    model = Model.load(trained[0])
    choice = model.training.predictor
    assert choice.kind == "unet"
    assert choice.left_out["unet"].n_images == 6  # both images of three patients
    assert model.predictor.record["mean_dice"] == choice.left_out["unet"].mean_dice
    told = [m.message for m in trained[1] if isinstance(m, TrainProgress) and m.stage == "predictor"]
    assert sum("unet: 4 images" in line for line in told) == 3  # each time without one patient
    assert sum("unet: 6 images" in line for line in told) == 1
    assert [p.name for p in trained[0].parent.iterdir() if p.name.startswith("model")] == ["model.zip"]
    monkeypatch.setitem(sys.modules, "torch", None)  # an import of it would fail
    files = training_list.files(3)
    result = register(files["fixed"], files["moving"], model=Model.load(trained[0]))
    assert result.provenance.classes_from == "predicted"
