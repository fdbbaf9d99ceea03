"""Warnings: each in the record of its own call, shown by the user's own rules."""

import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import regweave
from phantoms import make_phantom
from regweave import notices
from regweave.errors import RegweaveWarning
from regweave.types import LabelMap


def test_records_of_threads_and_pools():
    together = threading.Barrier(4, timeout=30)

    def call(i: int) -> list[str]:
        with notices.collected() as texts, notices.muted():
            together.wait()
            for _ in range(50):
                notices.warn(f"W203: {i}")
            together.wait()
        return texts

    with ThreadPoolExecutor(4) as pool:
        records = list(pool.map(call, range(4)))
    assert records == [[f"W203: {i}"] * 50 for i in range(4)]
    with notices.muted(), notices.collected() as texts, ThreadPoolExecutor(2) as pool:
        list(pool.map(notices.in_this_context(notices.warn), [f"W211: {i}" for i in range(6)]))
    assert sorted(texts) == [f"W211: {i}" for i in range(6)]


def test_records_are_whole_whatever_is_shown():
    with notices.muted(), notices.collected() as outer:
        notices.warn("W201: a")
        with notices.collected() as inner:
            notices.warn("W201: b")
        notices.warn("W201: c")
    assert (outer, inner) == (["W201: a", "W201: b", "W201: c"], ["W201: b"])
    records = []
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("default")
        for _ in range(3):
            with notices.collected() as texts:
                notices.warn("W201: again")
            records.append(texts)
    assert len(shown) == 1
    assert records == [["W201: again"]] * 3
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with notices.collected() as texts:
            notices.warn("W201: quiet")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(RegweaveWarning, match="W201: loud"), notices.collected() as texts:
            notices.warn("W201: loud")
    assert texts == ["W201: loud"]
    heard: list[str] = []
    with notices.shown_by(heard.append), notices.muted("W20"):
        notices.warn("W207: of a file")
        notices.warn("W211: of learning")
    assert heard == ["W211: of learning"]


def test_a_warning_names_the_line_of_the_user():
    pair = make_phantom(shape=(16, 16, 16), spacing_mm=(12.0, 12.0, 12.0)).pair
    labels = pair.moving_labels.data.copy()
    labels[:] = 0
    labels[0, 0, 0] = 1  # is pushed out of the image, or vanishes
    with pytest.warns(RegweaveWarning) as shown:
        result = regweave.register(
            pair.fixed, pair.moving, moving_labels=LabelMap(labels, pair.moving.geometry), preset="paper"
        )
    assert {Path(w.filename) for w in shown} == {Path(__file__)}
    assert [str(w.message) for w in shown] == list(result.warnings)


def test_no_module_replaces_a_hook_of_python_or_warns_past_the_records():
    package = Path(regweave.__file__).parent
    for path in package.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert "showwarning" not in text, path
        assert path.name == "notices.py" or "RegweaveWarning," not in text or "warnings.warn" not in text, path
