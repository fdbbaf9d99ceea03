"""Pages of an evaluation: the ladder, the list with its marks, the links; all from results.json."""

import json
import re
import shutil
import subprocess
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import pytest
from reading import Reader

from regweave.cli import main
from regweave.errors import RegweaveError
from regweave.jobs.runner import PairNumbers, judge_pair
from regweave.measures.verdict import default_rules, failed, parse_rules
from regweave.report.evaluation import write_page
from regweave.study.evaluate import PairResult

HOSTILE = "</script><script>alert(1)</script>"


def scores(*dice: float | None, before: float = 0.5, lost: int | None = None, **more: object) -> dict[str, object]:
    structures = [
        {
            "label": i,
            "name": HOSTILE if i == 1 else f"organ {i}",
            "dice_before": before,
            "dice_after": value,
            "hd95_mm": None if i == lost else 3.0,
            "assd_mm": None if i == lost else 1.0,
            "state": "vanished" if i == lost else "scored",
        }
        for i, value in enumerate(dice, start=1)
    ]
    numbers = {"seconds": 1.5, "peak_mb": 200.0, "smoothness": 0.05}
    regularity = {"folding_fraction": 0.0, "sdlogj": 0.1}
    return {"structures": structures, **numbers, "regularity": regularity, "modality": "ct", "warnings": [], **more}


def row(name: str, method: str, value: dict[str, object] | None, error: str | None = None) -> dict[str, object]:
    rules = default_rules()
    verdict = failed(str(error), rules)
    with suppress(ValueError):
        verdict = verdict if value is None else judge_pair(PairNumbers.model_validate(value), rules)
    row = PairResult.model_construct(id=name, method=method, error=error, verdict=verdict, scores=None)
    return {**row.content(), "scores": value}


def comparison(method: str, label: str | None, mean: float, low: float | None, high: float | None) -> dict[str, object]:
    counts = {"n": 2, "better": 2, "worse": 0, "equal": 0}
    return {"method": method, "label": label, "mean": mean, "low": low, "high": high, **counts}


INEXACT = {
    "inexact_voxels": 30, "body_voxels": 1000, "largest_mm": 0.7, "voxel": [1, 2, 3],
    "p99_mm": 0.1, "p99_voxels": 0.05,
}  # fmt: skip
CONTENT = {
    "notes": [f"Note {HOSTILE}"],
    "pairs": [{"id": i, "group": f"p{i}", "inputs_sha256": {"fixed": "ef" * 32}} for i in "abc"],
    "methods": [{"name": m, "settings": {"x": HOSTILE}} for m in ("uniform", "model:m")],
    "reference": "uniform",
    "rules": asdict(default_rules()),
    "comparison": [comparison("model:m", None, 0.1, 0.05, 0.2), comparison("model:m", "1", 0.1, None, None)],
    "results": [
        row("a", "uniform", scores(0.6, 0.9)),
        row("a", "model:m", scores(0.7, 0.9, regularity={"folding_fraction": 0.001})),
        row("b", "uniform", scores(0.3, 0.4)),
        row("b", "model:m", scores(0.6, 0.0, lost=2)),
        row("c", "uniform", scores(0.6, 0.6, inverse_error=INEXACT)),
        row("c", "model:m", None, f"E102: broken {HOSTILE}"),
    ],
    "provenance": {"regweave": "0"},
}
MARKS = {
    ("a", "uniform"): ["pass"],
    ("a", "model:m"): ["look", "folding_percent"],
    ("b", "uniform"): ["fail", "mean_dice_drop", "structure_dice_drop", "least_mean_dice"],
    ("b", "model:m"): [
        "fail", "mean_dice_drop", "structure_dice_drop", "vanished_structures", "least_mean_dice",
        "least_structure_dice",
    ],
    ("c", "uniform"): ["look", "inverse_inexact_percent"],
    ("c", "model:m"): ["fail", "error"],
}  # fmt: skip


@pytest.fixture
def folder(tmp_path) -> Path:
    (tmp_path / "results.json").write_text(json.dumps(CONTENT))
    return tmp_path


def test_verdicts_stay_unless_other_rules_are_asked_for(folder, tmp_path, capsys):
    stored = {"verdict": "look", "reasons": [], "unchecked": [], "rules": "theirs"}
    rows = [{**r, "verdict": stored} for r in CONTENT["results"]]
    rules = {"name": "theirs", "limits": {"folding_percent": {"look": 0.5}}}
    (folder / "results.json").write_text(json.dumps({**CONTENT, "results": rows, "rules": rules}))
    write_page(folder)
    assert "0 of 6 passed, 6 to look at" in (folder / "index.html").read_text()
    assert "Rules “theirs”" in (folder / "index.html").read_text()
    anew = parse_rules({"name": "strict", "least_mean_dice": {"fail": 0.7}}, "strict")
    write_page(folder, anew)
    assert "2 of 6 passed, 4 failed" in (folder / "index.html").read_text()
    assert "mean Dice: 0.6 (fail below 0.7)" in (folder / "index.html").read_text()
    path = tmp_path / "strict.toml"
    path.write_text("[least_mean_dice]\nfail = 0.7\n")
    assert main(["report", str(folder), "--rules", str(path)]) == 0
    assert "Rules “strict”" in (folder / "index.html").read_text()
    path.write_text("[least_mean_dise]\nfail = 0.7\n")
    assert main(["report", str(folder), "--rules", str(path)]) == 2
    assert "error E177" in capsys.readouterr().err


def test_the_list_has_every_registration_with_its_mark(folder):
    write_page(folder)
    page = Reader(folder / "index.html")
    listed = [(attributes, cells) for attributes, cells in page.rows if "data-marks" in attributes]
    assert {(cells[0], cells[1]): attributes["data-marks"].split() for attributes, cells in listed} == MARKS
    signs = {"pass": "✓ pass", "look": "● look closer", "fail": "✗ fail"}
    assert [cells[2] for _, cells in listed] == [signs[marks[0]] for marks in MARKS.values()]
    assert all(default_rules().words(rule) in page.text for rule in default_rules().limits)
    assert "1 of 6 passed, 2 to look at, 3 failed" in page.text
    assert "structures vanished: 1, “organ 2” (fail above 0)" in page.text
    assert "E102: broken" in page.text


def test_the_ladder_is_sorted_and_boxes_hold_the_dice_of_each_organ(folder):
    page = Reader(write_page(folder))
    ladder = [cells for _, cells in page.rows if cells[0] in ("uniform", "model:m", "before registration")][:3]
    assert [cells[0] for cells in ladder] == ["uniform", "model:m", "before registration"]
    # Means over the pairs that succeeded: (0.75 + 0.35 + 0.6) / 3 and (0.8 + 0.3) / 2.
    assert [cells[2] for cells in ladder] == ["0.5667", "0.5500", "0.5000"]
    assert ladder[1][3:] == ["+0.1000", "[+0.0500, +0.2000]", "better", "2 / 0 / 0", "2", "1"]
    assert "compare methods with failures by their differences" in page.text
    text = Reader(write_page(folder)).text
    assert "organ 2, model:m: mean 0.45, median 0.45" in text  # 0.9, and 0 for the vanished one
    assert "mean, before: mean 0.5" in text


def test_worst_cases_link_to_the_pages_that_exist(folder):
    for name, method in (("b", "model:m"), ("a", "other"), ("c", "model:m")):
        (folder / "pages" / name).mkdir(parents=True)
        (folder / "pages" / name / "page.json").write_text(json.dumps({"id": name, "method": method}))
    for name in "ab":
        (folder / "pages" / name / "report.html").write_text("")
    for page in (write_page(folder), folder / "index.html"):
        links = [link for link in Reader(page).links if "pages/" in link]
        assert links == ["pages/b/report.html"]
        assert all((folder / link).is_file() for link in Reader(page).links)
    worst = [cells for _, cells in Reader(folder / "report.html").rows if cells[0] in "ab" and len(cells) == 6]
    assert [cells[0] for cells in worst[:2]] == ["b", "a"]
    assert worst[0][1:-1] == ["0.500", "0.300", "organ 2", "0.000"]
    assert worst[0][-1].startswith("fail: loss of mean Dice: 0.2 (")


def test_a_model_that_guesses_the_masks_is_not_the_one_looked_at(folder):
    guess = [row(name, "model:m+predicted", scores(0.1, 0.1)) for name in "abc"]
    methods = [*CONTENT["methods"], {"name": "model:m+predicted", "predicted_classes": True}]
    (folder / "results.json").write_text(
        json.dumps({**CONTENT, "methods": methods, "results": [*CONTENT["results"], *guess]})
    )
    assert "Lowest mean Dice with model:m." in Reader(write_page(folder)).text


def test_nothing_from_the_file_becomes_markup(folder):
    for name in ["report.html", "index.html"]:
        write_page(folder)
        page = Reader(folder / name)
        assert page.outside == []
        assert page.tags.count("script") == {"report.html": 1, "index.html": 2}[name]  # those of the page itself
        assert "<script>alert" not in page.text
        assert re.findall(r"https?://[^\"'<\s]+", page.text) == []


def test_damaged_results_and_those_of_strangers_are_refused_with_the_place(folder, capsys, tmp_path):
    for change, words in [
        ({"results": 3}, "results: a list is needed, found '3'"),
        ({"results": [{"id": 1}]}, "results.0.id"),
        ({"results": []}, "results"),
        ({"results": [{**CONTENT["results"][0], "id": "../../x"}]}, "results.0.id"),
        ({"results": [CONTENT["results"][0]] * 2}, "stands twice"),
        ({"reference": HOSTILE}, "reference names the method"),
        ({"comparison": [comparison("other", None, 0.1, None, None)]}, "comparison names the method 'other'"),
        ({"comparison": [{}]}, "comparison.0.method"),
        ({"notes": "x"}, "notes"),
        ({"results": [row("a", "m", {"structures": {}})]}, "structures"),
        ({"rules": {"name": "x", "limits": {"folding_percent": {"look": "x"}}}}, "rules.limits"),
        ({"results": [row("a", "uniform", scores(1e200))]}, "dice_after"),
        ({"results": [{**CONTENT["results"][0], "verdict": {"verdict": "fine"}}]}, "verdict"),
    ]:
        (folder / "results.json").write_text(json.dumps({**CONTENT, **change}))
        assert main(["report", str(folder)]) == 3
        text = capsys.readouterr().err
        assert "error E178: " in text
        assert "results.json' is not a record that regweave wrote" in text
        assert words in text
        assert not (folder / "index.html").exists()
    for text in ["{", "[]", '{"results": 1, "results": 2}', "[" * 100_000]:
        (tmp_path / "results.json").write_text(text)
        with pytest.raises(RegweaveError, match="E102"):
            write_page(tmp_path)
    (tmp_path / "results.json").unlink()
    with pytest.raises(RegweaveError, match="E101"):
        write_page(tmp_path)


DRIVE = """
const frame = document.createElement("pre");
const visible = () => [...document.querySelectorAll("#rows tbody tr")].filter((r) => !r.hidden)
  .map((r) => r.cells[0].textContent + r.cells[1].textContent[0]).join(" ");
const out = [visible()];
const set = (id, value) => {
  const e = document.getElementById(id);
  e.value = value;
  e.dispatchEvent(new Event(e.tagName === "INPUT" ? "input" : "change"));
};
set("mark", "fail"); out.push(visible());
set("mark", "mean_dice_drop"); out.push(visible());
set("mark", ""); set("method", "model:m"); out.push(visible());
set("find", "e102"); out.push(visible());
document.getElementById("reset").click(); out.push(visible());
const after = document.querySelectorAll("#rows thead button")[5];
after.click(); out.push(visible());
after.click(); out.push(visible());
document.dispatchEvent(new KeyboardEvent("keydown", { key: "/", bubbles: true }));
document.documentElement.dataset.answer = JSON.stringify(out);
"""


@pytest.mark.slow
def test_the_list_is_filtered_and_sorted_in_a_browser(folder):
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no browser on this machine")
    write_page(folder)
    page = folder / "index.html"
    # The policy of the page lets no other script run, so the test takes it off.
    text = re.sub(r"<meta http-equiv=.*?>", "", page.read_text())
    page.write_text(text.replace("</body>", f"<script>{DRIVE}</script></body>"))
    words = ["--headless", "--no-sandbox", "--disable-gpu", "--dump-dom", page.as_uri()]
    done = subprocess.run([browser, *words], capture_output=True, text=True, timeout=60, check=True)
    (answer,) = re.findall(r'data-answer="(.*?)"', done.stdout)
    everything = "au am bu bm cu cm"
    assert json.loads(answer.replace("&quot;", '"')) == [
        everything,
        "bu bm cm",
        "bu bm",
        "am bm cm",
        "cm",
        everything,
        "bm bu cu au am cm",  # a failure has no number and stays at the end
        "am au cu bu bm cm",
    ]
