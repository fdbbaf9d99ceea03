"""Training of the network: it goes on where it stopped, keeps sides apart, and uses its time."""

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs the extra 'net'")

import torch

from regweave.predictors import _unet_training as training
from regweave.predictors._unet_training import SegmentedTensors

STRIDES = ((2, 2, 1), (2, 2, 2))


def _scans(n: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Two bright balls in noise: the small one, class 2, is the brighter."""
    rng = np.random.default_rng(3)
    places = np.stack(np.meshgrid(*(np.arange(k) for k in (20, 18, 10)), indexing="ij"))
    images, labels = [], []
    for _ in range(n):
        truth = np.zeros((20, 18, 10), np.uint8)
        for number, radius, x in ((1, 4.5, 6), (2, 2.5, 14)):
            centre = np.array([x, 9, 5]) + rng.uniform(-1, 1, 3)
            truth[((places - centre[:, None, None, None]) ** 2).sum(0) < radius**2] = number
        images.append(
            (np.choose(truth, [-0.5, 0.2, 0.9]) + 0.1 * rng.normal(size=truth.shape)).astype(np.float32)[None]
        )
        labels.append(truth)
    return images, labels


def _plan(**changes: object) -> training.TrainingPlan:
    return training.TrainingPlan(3, STRIDES, **{"width": 8, "steps": 60, "minutes": 60.0, "rate": 3e-3, **changes})


def test_a_stopped_training_goes_on_to_the_same_weights(tmp_path: Path) -> None:
    images, labels = _scans(3)
    whole = training.fit_network(images, labels, _plan(steps=10))
    kept = tmp_path / "kept.safetensors"

    def after_six(self: object, path: Path | None, key: str) -> None:
        write(self, path, key)
        if self.step == 6:  # type: ignore[attr-defined]
            raise KeyboardInterrupt

    write = training.Training.keep
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training.Training, "keep", after_six)
        with pytest.raises(KeyboardInterrupt):
            training.fit_network(images, labels, _plan(steps=10), None, kept)
    assert kept.is_file()
    steps: list[int] = []
    went_on = training.fit_network(images, labels, _plan(steps=10), lambda s, *_: steps.append(s), kept)
    assert steps == [10]
    for name, array in whole.items():
        np.testing.assert_array_equal(went_on[name], array)
    other = _plan(steps=10, seed=1)  # another plan does not take up a checkpoint
    beside, alone = (training.fit_network(images, labels, other, None, place) for place in (kept, None))
    np.testing.assert_array_equal(beside["head.weight"], alone["head.weight"])


def test_mirrored_draws_keep_each_structure_on_its_own_side() -> None:
    truth = np.zeros((20, 12, 10), np.uint8)
    truth[3:7, 4:8, 3:7], truth[13:17, 4:8, 3:7] = 1, 2
    dark = np.where(truth == 1, 0.9, np.where(truth == 2, 0.2, -0.8)).astype(np.float32)[None]
    data = SegmentedTensors([dark], [truth], truth.shape, torch.device("cpu"), (0, 2, 1))
    bright_first = []
    for n in range(24):
        image, numbers = data._one(0, np.random.default_rng(n))
        first, second = (np.argwhere(numbers.numpy() == c)[:, 0].mean() for c in (1, 2))
        assert first < second  # class 1 is the one on the side of low indices, mirrored or not
        bright_first.append(float(image[0][numbers == 1].mean()) > float(image[0][numbers == 2].mean()))
    assert 4 < sum(bright_first) < 20


@pytest.mark.parametrize(
    ("first", "later", "steps"), [(4.0, 1.0, (500, 640)), (1.0, 2.0, (280, 420)), (0.1, 0.1, (1000, 1000))]
)
def test_the_time_is_used_where_a_machine_becomes_faster_or_slower(first, later, steps, monkeypatch) -> None:
    """Ten minutes; the seconds of a step change after the fifteenth, in the middle of the first look at the clock."""
    now = [0.0]

    class Clocked:
        plan, data = _plan(steps=1000, minutes=10.0), type("Data", (), {"device": torch.device("cpu")})
        step, steps, settled = 0, 1000, False

        def advance(self, done: float) -> None:
            self.step += 1
            now[0] += first if self.step <= 15 else later

        def tell(self) -> float:
            return 0.0

    monkeypatch.setattr(training.time, "monotonic", lambda: now[0])
    made = Clocked()
    training._run(made, lambda *_: None, lambda: None)
    assert steps[0] <= made.step == made.steps <= steps[1]
    assert now[0] <= 60 * 10.0 * 1.4
