"""The page of a reproduction: numbers come from the JSON, text cannot break out, pictures are drawn as described."""

from __future__ import annotations

import copy
import json
import re
import zlib
from html.parser import HTMLParser

import numpy as np
import pytest

from regweave.report.reproduce import tables
from regweave.report.reproduce.page import learned_weights, summary_text, write_page
from regweave.report.reproduce.pictures import AFTER, BEFORE, TARGET, difference, overlay
from regweave.report.reproduce.records import Cut, ExperimentRecord, ReproduceRecord
from regweave.study.reproduce.pictures import packed

SINGLES = ("single:sad", "single:mi", "single:ncc", "single:dwt")
METHODS = [*SINGLES, "uniform", "model:mw", "model:joint"]


def result(split: str, name: str, method: str, dice: float) -> dict:
    labels = {"1": {"dice_before": 0.5, "dice_after": dice}, "2": {"dice_before": 0.6, "dice_after": dice - 0.1}}
    head = {"split": split, "id": name, "group": name, "method": method, "error": None, "labels": labels}
    return {**head, "folding_fraction": 0.0, "sdlogj": 0.1}


def difference_row(method: str, label: str | None, mean: float) -> dict:
    counts = {"n": 4, "better": 3, "worse": 1, "equal": 0}
    return {"method": method, "label": label, "mean": mean, "low": mean - 0.01, "high": mean + 0.01, **counts}


def experiment() -> dict:
    splits = [
        {"name": f"fold{f}-repetition1", "fold": f, "repetition": 1, "train": ["x"], "test": [f"a{f}", f"b{f}"]}
        for f in (1, 2)
    ]
    values = dict(zip(METHODS, (0.70, 0.71, 0.72, 0.73, 0.74, 0.75, 0.76), strict=True))
    weights = ([[0.75, 0.5, 0.25], [0.25, 0.5, 0.75]], [[0.25, 0.5, 0.25], [0.75, 0.5, 0.75]])
    runs = []
    for split, matrix in zip(splits, weights, strict=True):
        for m in METHODS:
            line = {"split": split["name"], "method": m, "smoothness": 0.1}
            more = {"weights": {"members": ["sad", "mi"], "classes": [0, 1, 2], "matrix": matrix}, "gates": {}}
            more |= {"registrations": 20, "inferences": 300}
            runs.append({**line, **(more if m.startswith("model:") else {"tuning": []})})
    singles = np.mean([values[m] for m in SINGLES])
    gains = [
        {"label": c, "over": over, "mean": 0.75 - v, "low": None, "high": None, "best_single": over == "single:dwt"}
        for c in (None, "1", "2")
        for over, v in (("mean of single metrics", singles), ("single:dwt", 0.73), ("uniform", 0.74))
    ]
    return {
        "name": "parotid-time",
        "title": "Title",
        "paper_set": "RT Parotids",
        "classes": {"1": "left parotid", "2": "right <b>parotid</b>"},
        "paper_organs": {"1": "Parotl"},
        "paper": {
            "Parotl": {"SAD": 0.756, "MI": 0.76, "NCC": 0.75, "DWT": 0.757, "MW": 0.788, "increment": 0.033},
            "Parotr": {"SAD": 0.813, "MI": 0.798, "NCC": 0.783, "DWT": 0.774, "MW": 0.811, "increment": 0.019},
        },
        "differences": ["Ours are simulated."],
        "source": "Somebody's data.",
        "overlay": True,
        "cases": ["p1", "p2"],
        "methods": METHODS,
        "splits": splits,
        "runs": runs,
        "results": [result(s["name"], n, m, values[m]) for s in splits for m in METHODS for n in s["test"]],
        "comparison": [
            difference_row(m, c, values[m] - 0.74) for m in METHODS if m != "uniform" for c in (None, "1", "2")
        ],
        "gains": gains,
        "truth_error_mm": {m: {c: {"before": 5.0, "after": 2.25} for c in ("1", "2")} for m in METHODS},
    }


def cut() -> dict:
    image = np.full((8, 8), -1000.0, dtype=np.float32)
    fixed, before, after = (np.zeros((8, 8), dtype=np.uint8) for _ in range(3))
    fixed[1:3, 1:3], before[5:7, 5:7], after[1:3, 5:7] = 1, 1, 1
    parts = {"fixed": fixed, "before": before, "after": after}
    return {
        "pixel_mm": [9.0, 9.0],
        **{name: {"image": packed(image), "labels": packed(labels)} for name, labels in parts.items()},
    }


def content() -> dict:
    return {
        "quick": True,
        "seed": 0,
        "settings": {"name": "paper@1"},
        "experiments": [experiment()],
        "timing": {"parotid-time": dict.fromkeys(METHODS, 0.5)},
    }


@pytest.fixture
def folder(tmp_path):
    shown = {m: {"axial": cut(), "coronal": cut()} for m in METHODS}
    samples = {"p1": {"image": cut()["fixed"]["image"], "pixel_mm": [9.0, 9.0]}}
    pictures = {"parotid-time": {"pair": "a1", "shown": shown, "samples": samples}}
    (tmp_path / "reproduce.json").write_text(json.dumps(content()))
    (tmp_path / "pictures.json").write_text(json.dumps(pictures))
    write_page(tmp_path)
    return tmp_path


class _Cells(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.open = False

    def handle_starttag(self, tag, _attributes):
        if tag == "tr":
            self.rows.append([])
        if tag in {"td", "th"}:
            self.rows[-1].append("")
            self.open = True

    def handle_endtag(self, tag):
        self.open = self.open and tag not in {"td", "th"}

    def handle_data(self, data):
        if self.open:
            self.rows[-1][-1] += data


def test_the_paper_stands_beside_ours(folder):
    cells = _Cells()
    cells.feed((folder / "report.html").read_text())
    rows = {tuple(row[:2]): row[2:] for row in cells.rows}
    assert rows["left parotid", "ours"] == ["0.500", "0.700", "0.710", "0.720", "0.730", "0.750", "+0.035"]
    assert rows["Parotl", "paper"] == ["–", "0.756", "0.760", "0.750", "0.757", "0.788", "+0.033"]
    assert rows["Parotr", "paper"][0] == "–"  # an organ of the paper that we have no partner for
    assert rows["MW: learned per class, as in the paper", "0.700"] == [
        "0.750", "0.650", "+0.010 [+0.000, +0.020]", "3/1", "4"
    ]  # fmt: skip


def test_the_page_is_whole_and_safe(folder):
    page = (folder / "report.html").read_text()
    assert "<b>parotid" not in page
    assert "right &lt;b&gt;parotid" in page
    assert "Fast look (--quick)" in page
    assert "Ours are simulated." in page
    assert "Somebody&#39;s data." in page
    assert not re.search(r"(src|href)=\"(?!data:|#)", page)
    assert " style=" not in page


def test_figures_are_files_too(folder):
    names = {p.name for p in (folder / "figures").iterdir()}
    assert {"parotid-time-dice.svg", "parotid-time-weights.svg", "parotid-time-ladder.svg"} <= names
    assert {f"parotid-time-{v}-{m}.png" for v in ("axial", "coronal") for m in ("before", "mw", "dwt")} <= names
    assert (folder / "figures" / "parotid-time-dice.svg").read_text().count('class="median"') == 10


def test_summary_has_the_same_tables(folder):
    text = (folder / "summary.md").read_text()
    assert text == summary_text(ReproduceRecord.model_validate(content()))
    assert "| left parotid | ours | 0.500 | 0.700 |" in text
    assert "2.25" in text
    assert "**Fast look" in text
    full = {**content(), "quick": False}
    assert "Fast look" not in summary_text(ReproduceRecord.model_validate(full))


def test_weights_have_a_spread_over_the_splits():
    found = learned_weights(ExperimentRecord.model_validate(experiment()), "model:mw")
    assert list(found) == ["background", "left parotid", "right <b>parotid</b>"]
    mean, spread = found["background"]["SAD"]
    assert mean == pytest.approx(0.5)
    assert spread == pytest.approx(np.std([0.75, 0.25], ddof=1))
    assert found["left parotid"]["MI"] == (0.5, 0.0)


def test_failed_and_missing_count_as_they_should():
    e = copy.deepcopy(experiment())
    mine = [r for r in e["results"] if r["method"] == "model:mw"]
    mine[0]["error"] = "E140: memory"
    mine[1]["labels"]["1"] |= {"dice_after": 0.0, "state": "vanished"}
    read = ExperimentRecord.model_validate(e)
    assert tables.dice(read, "model:mw", "1") == [0.0, 0.75, 0.75]
    assert len(tables.dice(read, "model:joint", "1")) == 4


def test_the_ladder_climbs():
    assert tables.ladder(ExperimentRecord.model_validate(experiment())) == [
        "before",
        *SINGLES,
        "uniform",
        "model:mw",
        "model:joint",
    ]


def test_nothing_known_of_the_truth():
    assert tables.truth_table(ExperimentRecord.model_validate({**experiment(), "truth_error_mm": None})) is None


def pixels(png: bytes) -> np.ndarray:
    """Decode what `encode_png` writes: one IDAT chunk, RGB, no filter."""
    width, height = (int.from_bytes(png[i : i + 4], "big") for i in (16, 20))
    start = png.index(b"IDAT")
    size = int.from_bytes(png[start - 4 : start], "big")
    raw = np.frombuffer(zlib.decompress(png[start + 4 : start + 4 + size]), dtype=np.uint8)
    return raw.reshape(height, 1 + 3 * width)[:, 1:].reshape(height, width, 3)


@pytest.mark.parametrize(("when", "colour", "place"), [("before", BEFORE, (50, 50)), ("after", AFTER, (10, 50))])
def test_colours_of_the_overlay(when, colour, place):
    picture = pixels(overlay(Cut.model_validate(cut()), when))
    assert picture.shape == (80, 80, 3)
    y, x = place
    assert picture[y : y + 20, x : x + 20].reshape(-1, 3).tolist().count(list(colour)) > 20
    assert picture[10:30, 10:30].reshape(-1, 3).tolist().count(list(TARGET)) > 20
    assert (picture[35:45, 5:30] == 0).all()


def test_colours_of_a_difference():
    c = cut()
    ramp = np.tile(np.linspace(0, 1, 8, dtype=np.float32), (8, 1))
    c["fixed"]["image"], c["after"]["image"] = packed(ramp), packed(ramp[:, ::-1])
    picture = pixels(difference(Cut.model_validate(c), "after")).astype(int)
    left, right = picture[40, 2], picture[40, -3]
    assert left[0] > left[2]  # the warped image is brighter: red
    assert right[2] > right[0]  # darker: blue
    c["after"]["image"] = packed(ramp)
    same = pixels(difference(Cut.model_validate(c), "after"))
    assert (same[..., 1] > same[..., 0]).all()
    assert (same[..., 1] > same[..., 2]).all()
