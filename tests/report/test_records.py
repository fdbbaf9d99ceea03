"""Records of strangers and of earlier versions: a page, or a code with the place; never a fault of the program."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from reading import GONE, changed, places

from regweave.cli import main
from regweave.config.settings import preset
from regweave.errors import RegweaveError
from regweave.io.disk.records import checked
from regweave.measures.verdict import parse_rules
from regweave.report.page import render
from regweave.report.registration import record_context, subtitle, write_page
from regweave.report.viewer import FIXED_AND_MOVING, Display
from regweave.run import result as arrays
from regweave.run.record import Modalities, ModelUse, Provenance, StartRecord
from regweave.run.result import Result
from regweave.types import Geometry

HOSTILE = "</script><script>alert(1)</script>"
STRANGE = (None, True, HOSTILE, -1, 3.5, 1e99, 1e-300, [], {"a": 1}, [[]])
GRID = Geometry((4, 4, 4), np.eye(4))


@pytest.fixture(scope="module")
def record(result_folder) -> dict:
    """What a registration wrote, with one of each kind of row."""
    found = json.loads((result_folder / "result.json").read_text())
    for key in ("steps", "refinement", "structures"):
        found[key] = found[key][:1]
    return {key: found[key] for key in found if key not in ("verdict", "dice", "mean_dice")}  # these are computed


def page_of(record: dict) -> str:
    """Everything of a page that comes from the record."""
    found = checked(Result, record, Path("result.json"))
    drawn = [{"label": row.label, "name": row.name, "colour": "#ff8800"} for row in found.score.structures]
    others = {"sources": {}, "names": {}, "parts": {}, "pictures": [], "rounding": 0.0, "unit": "HU", "jacobians": {}}
    others |= {"called": FIXED_AND_MOVING, "contours": "", "closeups": {}, "moved": {}, "movement": (np.nan, np.nan)}
    others |= {"subtitle": subtitle(found.provenance)}
    grids = {"geometry": GRID, "display": Display.of(GRID), "whole": [2, 2, 2], "cropped": [2, 2, 2]}
    return render("registration.j2", {**record_context(found, drawn), **others, **grids})


def test_whatever_stands_anywhere_is_shown_or_refused(record):
    codes = []
    for path in places(record):
        # Settings are checked where they are declared; here their name and banks stand for all.
        if path[:2] == ("provenance", "settings") and path[2:] not in ((), ("name",), ("banks",)):
            continue
        for value in (*STRANGE, GONE):
            try:
                text = page_of(changed(record, path, value))
            except RegweaveError as error:
                codes.append(error.code)
            else:
                codes.append("")
                assert "<script>alert" not in text
    assert set(codes) <= {"", "E142", "E178"}  # E142: names of labels in the call
    assert codes.count("") > 50
    assert codes.count("E178") > 500


def test_the_command_names_file_and_place_of_what_is_no_record(result_folder, tmp_path, capsys):
    folder = shutil.copytree(result_folder, tmp_path / "copy")
    content = json.loads((folder / "result.json").read_text())
    for change, words in (
        ({"steps": "x"}, "steps: a list is needed, found 'x'"),
        ({"weights": None}, "weights"),
        ({"structures": [{"label": "<img src=x>"}]}, "structures.0"),
        ({"provenance": []}, "provenance"),
        ({"seconds": {"levels": "<b>"}}, "seconds.levels"),
        ({"regularity": {"folding_fraction": 1e200}}, "regularity.folding_fraction"),
    ):
        (folder / "result.json").write_text(json.dumps({**content, **change}))
        assert main(["report", str(folder)]) == 3
        text = capsys.readouterr().err
        assert all(part in text for part in ("error E178: ", "result.json", words)), text
    for text in ("[" * 100_000, '{"steps": 1' + "0" * 400 + "}", "{}{}", '{"a": 1, "a": 1}'):
        (folder / "result.json").write_text(text)
        assert main(["report", str(folder)]) == 3
        assert "error E102: " in capsys.readouterr().err


def test_other_rules_judge_page_and_record_again(result_folder, tmp_path):
    folder = shutil.copytree(result_folder, tmp_path / "copy")
    before = json.loads((folder / "result.json").read_text())
    text = write_page(folder, parse_rules({"name": "strict", "least_mean_dice": {"fail": 1.0}}, "x")).read_text()
    assert "✗ fail" in text
    assert "(fail below 1)" in text
    assert "By the rules “strict”" in text
    after = json.loads((folder / "result.json").read_text())
    assert (after["verdict"]["verdict"], after["rules"]["name"]) == ("fail", "strict")
    assert {key for key in after if after[key] != before[key]} == {"verdict", "rules"}
    assert write_page(folder).read_text() == text


def test_the_line_below_the_title_names_what_was_used():
    for start, model, line in [
        (("structures", "affine"), None, "MR to CT · start affine, not structures · no model · settings s"),
        (("none", "none"), ModelUse(name="m", used="none"), "MR to CT · no start · model m not used · settings s"),
    ]:
        provenance = Provenance.model_construct(
            modality=Modalities(fixed="ct", moving="mr", bank="multi"),
            start=StartRecord(requested=start[0], used=start[1], matrix=np.eye(4).tolist()),
            model=model,
            settings=preset("default").model_copy(update={"name": "s"}),
        )
        assert subtitle(provenance) == line


def test_the_solver_s_gap_is_no_verdict(record):
    text = page_of(record)
    cards = text[text.index('class="cards"') : text.index("<h2>Structures")]
    assert "gap" not in cards
    assert "certified" not in text.lower()
    assert "of its own optimum, which is no statement about anatomy." in text


def test_maps_of_a_stranger_are_named_and_not_inflated(result_folder, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(arrays, "MAX_ARCHIVE_BYTES", 1 << 20)
    folder = shutil.copytree(result_folder, tmp_path / "copy")
    with np.load(folder / "view" / "nodes.npz") as stored:
        kept = dict(stored)
    two, f32 = (2, 2, 2), np.float32
    for change in (
        *({"affine": affine} for affine in (np.full((4, 4), np.nan), np.zeros((4, 4)), np.ones((4, 4)))),
        {"affine": np.full((4, 4), "x")},
        {"confidence": np.full(two, np.inf, dtype=f32), "influence": np.ones((2, *two), f32)},
        {"confidence": np.ones((2, 2), f32), "influence": np.ones(two, f32)},
        {"confidence": np.ones((0, 2, 2), f32), "influence": np.ones((2, 0, 2, 2), f32)},
        {"confidence": np.ones(two, bool), "influence": np.ones((2, *two), f32)},
        {"confidence": np.zeros((1, 1 << 10, 1 << 9), f32)},  # larger than allowed
    ):
        np.savez_compressed(folder / "view" / "nodes.npz", **{**kept, **change})
        assert main(["report", str(folder)]) == 3
        text = capsys.readouterr().err
        assert "error E102: " in text
        assert "nodes.npz" in text
