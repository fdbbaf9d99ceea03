"""Choice of a predictor: by left-out patients, never by those that it was fitted to."""

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from regweave import predictors
from regweave.errors import UsageError
from regweave.jobs.table import PairFiles
from regweave.predictors import Choice, Examples, Parts
from regweave.registry import Options
from regweave.training.options import TrainOptions
from regweave.training.predictor_fits import Predictors, SegmentedImage, choose_predictors, with_record
from regweave.training.run import train
from regweave.training.state import TrainingLog
from regweave.types import Geometry, LabelMap, Volume

SHAPE = (6, 6, 6)
PEOPLE = 8


def shown(number: int) -> tuple[Volume, LabelMap]:
    """An image with its number as intensity; the structure fills its first planes."""
    labels = np.zeros(SHAPE, dtype=np.int32)
    labels[: 2 + number % 3] = 1
    geometry = Geometry(SHAPE, np.eye(4))
    return Volume(np.full(SHAPE, number, dtype=np.float32), geometry), LabelMap(labels, geometry)


class Files:
    """Reading of the images above, by number."""

    def image(self, path: Path) -> Volume:
        return shown(int(path.name))[0]

    def labels(self, path: Path, geometry: Geometry) -> LabelMap:
        return shown(int(path.name))[1]


@dataclass(frozen=True)
class Memory:
    """Knows the images that it was fitted to by heart, and of others so many planes."""

    known: frozenset[int]
    planes: int
    record: dict
    classes = (0, 1)
    modality = "mr"
    voxel_mm = 1.0

    def labels(self, volume: Volume) -> LabelMap:
        number = int(volume.data[0, 0, 0])
        if number in self.known:
            return shown(number)[1]
        guess = np.zeros(SHAPE, dtype=np.int32)
        guess[: self.planes] = 1
        return LabelMap(guess, volume.geometry)

    def save(self) -> Parts:
        fields = {"known": sorted(self.known), "planes": self.planes}
        return Parts("careful" if self.planes > 1 else "rote", fields, {}, self.record)


def kind(planes: int, *, costly: bool = False) -> SimpleNamespace:
    def fit(examples: Examples, options: Options, like: object) -> Memory:
        return Memory(frozenset(int(v.data[0, 0, 0]) for v in examples.volumes), planes, {})

    def load(parts: Parts) -> Memory:
        return Memory(frozenset(parts.fields["known"]), parts.fields["planes"], dict(parts.record))

    return SimpleNamespace(Options=Options, fit=fit, load=load, COSTLY=costly)


KINDS = {"rote": kind(1), "careful": kind(3), "costly": kind(3, costly=True)}


@pytest.fixture(autouse=True)
def _registered(monkeypatch):
    for name, found in KINDS.items():
        monkeypatch.setitem(predictors.registry._added, name, (found, found))


def of(name: str, people: int = PEOPLE) -> Predictors:
    numbers = [(n, f"p{n // 2}") for n in range(2 * people)]  # two images of each patient
    images = [
        SegmentedImage(Path(str(n)), Path(str(n)), Geometry(SHAPE, np.eye(4)), frozenset({p})) for n, p in numbers
    ]
    pairs = [PairFiles(f"p{n}", *[Path("x")] * 4, f"p{n}") for n in range(people)]
    return Predictors(images, pairs, Choice(name), (0, 1), "mr", Files())


@pytest.fixture
def log():
    said: list[str] = []
    found = TrainingLog(lambda progress: said.append(progress.message))
    return found, said


def test_kind_that_is_best_on_left_out_patients_is_taken(log):
    taken, record = choose_predictors([of("rote"), of("careful")], log[0])
    assert taken.kind.name == record.kind == "careful"
    told = record.left_out
    assert told["rote"].n_images == told["careful"].n_images == 12
    assert told["rote"].mean_dice < 0.7 < told["careful"].mean_dice < 1.0  # 1 for whoever has seen them
    assert any("careful: mean Dice 0.8" in line for line in log[1])
    first, second = of("careful"), of("costly")
    assert choose_predictors([first, second], log[0])[0] is first  # of equals
    assert choose_predictors([second, first], log[0])[0] is second
    _, record = choose_predictors([of("rote", people=1), of("careful", people=1)], log[0])
    assert record.model_dump(exclude_unset=True) == {"kind": "rote", "left_out": {"rote": {}, "careful": {}}}
    assert "careful: too few patients to judge it" in log[1]


def test_a_single_kind_is_judged_if_it_is_costly(log):
    cheap = of("rote")
    assert choose_predictors([cheap], log[0]) == (cheap, None)
    assert log[1] == []
    assert with_record(cheap.whole, None) is cheap.whole
    taken, record = choose_predictors([of("costly")], log[0])
    told = with_record(taken.whole, record)
    assert told.save().record["mean_dice"] == record.left_out["costly"].mean_dice
    assert told.known == taken.whole.known


def test_a_network_needs_its_package_which_auto_does_not(monkeypatch):
    monkeypatch.setattr("regweave.extras.find_spec", lambda name: None)
    monkeypatch.setitem(sys.modules, "torch", None)
    assert TrainOptions(predictor="auto").predictors == ("perceptron",)
    with pytest.raises(UsageError, match=r"E158: training a network needs the package torch"):
        TrainOptions(predictor="unet").check()
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace())
    assert TrainOptions(predictor="auto").predictors == ("perceptron", "unet")


def test_options_that_no_predictor_has_and_files_that_hold_none_are_refused(tmp_path, monkeypatch):
    for words, said in (
        ({"predictor": "forest"}, "E169: unknown predictor 'forest'"),
        ({"predictor": "auto", "predictor_options": {"width": 8}}, "E194.*name the predictor"),
        ({"predictor_options": {"depth": 3}}, "E194: options of the predictor perceptron: .*depth"),
        ({"predictor_options": {"hidden": 0}}, r"E194: options of the predictor perceptron: .*hidden"),
    ):
        with pytest.raises(UsageError, match=said):
            TrainOptions(**words).check()
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace())
    for predictor in ("unet", "auto"):
        with pytest.raises(UsageError, match=r"E152: .*m\.json would be JSON, which holds no unet") as caught:
            train([], tmp_path / "m.json", **vars(replace(TrainOptions(), predictor=predictor)))
        assert "m.zip" in str(caught.value)
