"""The page of a training: from the model file alone, hostile names escaped, whatever parts it lacks."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from reading import Reader

from regweave.config.settings import preset
from regweave.errors import RegweaveError
from regweave.model.model import Model
from regweave.model.record import TrainingRecord, effort_path, read_effort, write_effort
from regweave.report.training import write_page
from regweave.training.state import TrainingLog
from regweave.types import WeightTable

HOSTILE = '<img src=x onerror="alert(1)">'
SETTINGS = preset("default").model_copy(update={"name": HOSTILE})
LEARNED = [[0.5, 0.8], [0.5, 0.2]]


def iteration(number: int) -> dict[str, object]:
    return {
        "number": number, "objective": 10.0 - number, "upper": 10.5 - number, "duality_gap": 0.5, "slack_sum": 2.0,
        "predicted_loss": 0.3 - 0.01 * number, "imputed_loss": 0.2,
    }  # fmt: skip


def line(**changes: object) -> dict[str, object]:
    known = {"C": 300, "alpha": 1.0, "eta": 10, "share": 1.0, "balance": 1.0, "gated_classes": [4]}
    scores = {"surrogate_uniform": 0.3, "surrogate_learned": 0.2, "dice_uniform": 0.7, "dice_learned": 0.72}
    return {**known, **scores, "dice_gated": 0.73, **changes}


CURVE = [{"smoothness": s, "mean_dice": 0.7} for s in (0.01, 0.1, 1.0)]
EVIDENCE = {
    "method": "lssvm-joint",
    "groups": ["p1", "p2+p3"],
    "pairs": {HOSTILE: {"fixed": "ab" * 32, "moving": "cd" * 32}, "b": {}},
    "learned_on": ["b"],
    "failed": {"x": "E102"},
    "skipped": {"b": [4]},
    "registrations": 30,
    "inferences": 400,
    "stages": {"tune": {"registrations": 18, "inferences": 0}, "learn": {"registrations": 12, "inferences": 400}},
    "options": {"gate": True, "seed": 0},
    "hyper": {"C": 300},
    "share": 0.5,
    "strengths": {"4": 3.0},
    "balance": 1.0,
    "gates": {
        "0": {"gain": -0.01, "standard_error": 0.02, "n": 6, "used": False},
        "4": {"gain": 0.03, "standard_error": 0.01, "n": 6, "used": True},
    },
    "left_out_gain": {"mean": 0.02, "low": 0.01, "high": 0.03, "n": 6},
    "learned": LEARNED,
    "learned_by_fold": [[[0.5, 0.7], [0.5, 0.3]], [[0.5, 0.9], [0.5, 0.1]]],
    "history": {"joint": [iteration(0), iteration(1)]},
    "refinement": {
        "members": [
            {
                "member": "<b>edges",
                "curve": [
                    {"factor": f, "mean_dice": d} for f, d in ((0.0, 0.7), (0.5, 0.712), (1.0, 0.71), (2.0, 0.69))
                ],
                "before": 0.0,
                "used": 0.5,
                "gain": 0.0115,
                "standard_error": 0.004,
                "n": 6,
            }
        ],
        "gain": {"mean": 0.012, "low": 0.004, "high": 0.02, "n": 6},
    },
    "surrogate_and_dice": [line(), line(share=0.5, dice_learned=None)],
    "smoothness": {"smoothness": 0.1, "curve": CURVE, "refine": {"smoothness": 1.0, "curve": CURVE}},
}


def save(path: Path, evidence: object) -> Path:
    weights = WeightTable(np.array([[0.5, 0.65], [0.5, 0.35]]), ("sad", HOSTILE), (0, 4), 0.05)
    record = TrainingRecord.model_validate(evidence)
    Model(weights, SETTINGS, "ct", {0: "background", 4: HOSTILE}, training=record).save(path)
    return path


def test_what_left_out_patients_and_each_structure_came_to_is_shown(tmp_path):
    said = {"perceptron": {"dice": {"4": 0.712}, "mean_dice": 0.712, "n_images": 12}, "<i>net": {"dice": {}}}
    page = write_page(save(tmp_path / "a.json", {**EVIDENCE, "predictor": {"kind": "perceptron", "left_out": said}}))

    found = Reader(page)

    assert "The kind with the" in found.words
    assert re.search(r"perceptron\s+0\.712\s+12\s+0\.712", found.words)
    assert re.search(r"<i>net\s+–\s+–\s+–", found.words)
    assert found.outside == []
    gate = {"gain": 0.0123, "standard_error": 0.0045, "n": 8, "used": True}
    columns = {"factors": {"<b>edges": {"4": 16.0}, "smoothness": {"4": 0.5}}, "share": 0.5, "gates": {"4": gate}}
    own = {"members": [{"member": "<b>shapes", "used": 32.0}], "mean_dice": 0.8123, "used": True}
    mixed = {**EVIDENCE["refinement"], "columns": columns, "without_mask": {"mean_dice": 0.7911, "own": own}}

    found = Reader(write_page(save(tmp_path / "a.json", {**EVIDENCE, "refinement": mixed})))

    assert "What each structure came to trust" in found.words
    assert re.search(r"16\s+0\.5\s+\+0\.0123\s+0\.0045\s+its own", found.words)
    assert "0.5 of the way" in found.words
    assert re.search(r"0\.8123, with the weights above\s+0\.7911", found.words)
    assert "have these weights: <b>shapes 32." in found.words
    assert found.outside == []


def test_everything_that_is_recorded_is_shown(tmp_path):
    page = write_page(save(tmp_path / "mine.json", EVIDENCE))
    assert page == tmp_path / "mine.report.html"
    found = Reader(page)
    assert "The model does not record this" not in found.words
    assert found.outside == []
    assert not {"img", "iframe", "link", "object", "base", "form"} & set(found.tags)
    assert "<img" not in found.text
    assert re.findall(r"https?://[^\"'<\s]+", found.text) == []
    for words in ("+0.0200", "[+0.0100, +0.0300]", "standard deviation over 2 folds", "lssvm-joint", "3 patients"):
        assert words in found.words
    for title in ("Objective, eq. (7)", "Duality gap", "Loss on samples", "Surrogate loss of the candidates"):
        assert title in found.words
    assert found.words.count("ab" * 6) == 1
    assert "ab" * 7 not in found.words
    assert found.words.count("the curve has not turned") == 1  # in the refinement, not in the levels
    for words in ("The weights of the refinement brought", "+0.0120", "<b>edges", "Dice at 0.5", "0.712", "+0.0115"):
        assert words in found.words


def test_whiskers_are_the_spread_of_the_folds_where_a_gate_is_open(tmp_path):
    text = write_page(save(tmp_path / "mine.json", EVIDENCE)).read_text()
    used, learned = re.findall(r"<svg .*?</svg>", text, flags=re.DOTALL)[:2]
    spread = np.std([0.7, 0.9], ddof=1)
    assert f"0.8 ± {spread:.2g}" in learned
    assert f"0.65 ± {0.5 * 3.0 * spread:.2g}" in used
    assert "background: uniform: −0.0100 [−0.0300, +0.0100]" in text
    assert "+0.0300 [+0.0200, +0.0400]" in text
    assert used.count('class="spread"') == 2  # the class whose gate is shut is uniform whatever the folds say


def test_seconds_come_from_beside_the_model_and_from_no_other(tmp_path):
    path = save(tmp_path / "mine.json", EVIDENCE)
    assert "they lie beside the model" in Reader(write_page(path)).words
    write_effort(path, {"tune": {"registrations": 18, "seconds": 12.34}, "learn": {"seconds": 1.0}})
    text = Reader(write_page(path)).words
    assert "12.3" in text
    assert "13.3" in text
    save(path, {**EVIDENCE, "registrations": 31})
    assert read_effort(path) == {}
    effort_path(path).write_text("[")
    assert read_effort(path) == {}


def test_stages_have_their_own_counts():
    said = []
    effort = TrainingLog(said.append)
    for _ in range(2):
        with effort.stage("tune"):
            effort.registrations += 3
    with effort.stage("learn"):
        effort.inferences += 5
    effort.finish()
    assert {name: count.model_dump(exclude_unset=True) for name, count in effort.counts.items()} == {
        "tune": {"registrations": 6, "inferences": 0},
        "learn": {"registrations": 0, "inferences": 5},
    }
    assert said[-1].stages["tune"]["seconds"] == effort.seconds["tune"]


def test_pages_without_parts_or_with_parts_of_another_kind(tmp_path):
    for drop in [[key] for key in EVIDENCE] + [list(EVIDENCE)]:
        kept = {key: value for key, value in EVIDENCE.items() if key not in drop}
        found = Reader(write_page(save(tmp_path / "mine.json", kept)))
        assert "Weights of the model by class" in found.words
    for key in list(EVIDENCE):
        path = save(tmp_path / "mine.json", EVIDENCE)
        content = json.loads(path.read_text(encoding="utf-8"))
        content["evidence"][key] = [{"deep": [1]}, 7]
        path.write_text(json.dumps(content), encoding="utf-8")
        with pytest.raises(RegweaveError, match=rf"E170: .*evidence\.{key}"):
            write_page(path)
    (tmp_path / "a.json").write_text(json.dumps({"format": "other"}))
    with pytest.raises(RegweaveError, match="E170"):
        write_page(tmp_path / "a.json")
    assert not (tmp_path / "a.report.html").exists()
