"""The demo from outside: what it writes, what it prints, how it ends."""

import functools
import json
import re
from io import StringIO

import pytest

from made_pairs import small_settings
from phantoms import make_phantom
from regweave import errors
from regweave.cli import main
from regweave.jobs import workers as batch
from regweave.jobs.workers import attempt
from regweave.study import demo
from regweave.training.options import TrainOptions

TINY = small_settings((64.0, 1, 1))


QUICK = {"samples": 1000, "steps": 5}


def tiny_pair(seed):
    return make_phantom(seed=seed % 1000, shape=(20, 20, 20), spacing_mm=(9.6, 9.6, 9.6)).pair


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """Run the whole demo on a tiny cohort, in this process; its folder, and what it printed."""

    def here(function, arguments, _n):
        for index, argument in enumerate(arguments):
            yield index, attempt(function, argument)

    folder = tmp_path_factory.mktemp("demo") / "out"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batch, "on_processes", here)
        patch.setattr(demo, "SETTINGS", TINY)
        patch.setattr(
            demo, "OPTIONS", TrainOptions(C=10.0, alpha=1.0, eta=1.0, epsilon=0.1, folds=2, predictor_options=QUICK)
        )
        patch.setattr(demo, "EXAMPLE_VOXEL_MM", {"chest": 20.0})
        cohort = functools.partial(demo.make_cohort, n_train=4, n_test=2, make=tiny_pair)
        patch.setattr(demo, "make_cohort", cohort)
        out, err = StringIO(), StringIO()
        patch.setattr("sys.stdout", out)
        patch.setattr("sys.stderr", err)
        status = main(["demo", "-o", str(folder)])
    assert status == 0, err.getvalue()
    return folder, out.getvalue(), err.getvalue()


def test_it_writes_one_page_that_leads_to_the_others_and_back(tiny, capsys):
    folder, _, _ = tiny
    page = (folder / "index.html").read_text()
    links = re.findall(r'href="([^"]+)"', page)
    assert len(links) == 5  # the first registration, training, evaluation, two held-out patients
    assert all((folder / link).is_file() for link in links)
    assert {link.split("/")[0] for link in links} == {"evaluation", "examples", "weights.report.html"}
    for page in [*folder.glob("*.report.html"), *(folder / "evaluation").rglob("*.html")]:
        (back,) = re.findall(r'class="back" href="([^"]+)"', page.read_text())
        assert (page.parent / back).resolve().is_file()
    assert main(["demo", "-o", str(folder)]) == errors.EXIT_INPUT  # an earlier result stays
    assert "E150" in capsys.readouterr().err
    assert (folder / "index.html").is_file()


def test_report_makes_all_pages_again(tiny, capsys):
    folder, _, _ = tiny
    pages = [*folder.glob("*.html"), *(folder / "evaluation").rglob("*.html"), *(folder / "examples").rglob("*.html")]
    assert len(pages) == 7
    before = {page: page.read_bytes() for page in pages}
    for page in pages:
        page.unlink()
    assert main(["report", str(folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"page": str(folder / "index.html")}
    assert {page: page.read_bytes() for page in pages} == before


def test_the_text_tells_what_was_measured(tiny):
    folder, out, err = tiny
    begun = [f"[{n}/4] {stage}" for n, stage in enumerate(("phantoms", "learning", "held-out patients", "pages"), 1)]
    assert [line for line in err.splitlines() if line in begun] == begun
    assert "registrations" in err
    assert max(map(len, out.replace(str(folder), "demo-output").splitlines())) <= 80
    assert "\x1b" not in out
    story = json.loads((folder / "demo.json").read_text())
    for title, values in story["dice"].items():
        line = next(line for line in out.splitlines() if line.startswith(f"{title} "))
        shown = line.removeprefix(title).split()
        assert shown
        assert shown == [f"{value:.3f}" for value in values[: len(shown)]]
    results = json.loads((folder / "evaluation" / "results.json").read_text())
    learned = [r["scores"]["structures"] for r in results["results"] if r["method"] == "model:weights"]
    means = [sum(row["dice_after"] or 0.0 for row in labels) / len(labels) for labels in learned]
    assert story["dice"]["learned"][0] == pytest.approx(sum(means) / len(means))
    assert "Learned from 4 pairs" in " ".join(out.split())
    assert out.rstrip().endswith(f"open  {folder / 'index.html'}")


@pytest.mark.parametrize("part", ["register_examples", "make_cohort"])
def test_ctrl_c_leaves_at_most_the_first_pictures(tmp_path, monkeypatch, capsys, part):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(demo, "EXAMPLE_VOXEL_MM", {"chest": 20.0})
    monkeypatch.setattr(demo, part, interrupted)
    assert main(["demo", "-o", str(tmp_path / "out")]) == errors.EXIT_CANCELLED
    last = capsys.readouterr().err.splitlines()[-1]
    if part == "register_examples":
        assert last == "cancelled; nothing was written"
        assert list(tmp_path.iterdir()) == []
    else:
        assert last.startswith("cancelled; the first pictures stay in")
        assert "Training runs now" in (tmp_path / "out" / "index.html").read_text()


@pytest.mark.slow
def test_learned_weights_win_on_held_out_phantoms(tmp_path):
    output = tmp_path / "out"
    assert main(["demo", "-o", str(output), "--seed", "5"]) == 0
    story = json.loads((output / "demo.json").read_text())
    dice = story["dice"]
    assert dice["learned"][0] > max(dice[name][0] for name in dice if name != "learned" and "no masks" not in name)
