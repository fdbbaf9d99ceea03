"""Pages of a demo; the first one has the summary and links to the others."""

from pathlib import Path
from urllib.parse import quote

from regweave.io import owned_path
from regweave.io.disk.files import is_file
from regweave.io.disk.records import DEMO_EVALUATION, DEMO_MODEL, INDEX, PAGES, REPORT, RESULT
from regweave.report import evaluation, registration, training
from regweave.report.card import fusion, sheet
from regweave.report.charts import STYLE
from regweave.report.page import asset, render
from regweave.run.result import load
from regweave.study.demo import DemoSummary


def write_page(folder: str | Path, *, all_pages: bool = False) -> Path:
    """Write ``index.html`` into the folder of a demo, which links the pages that exist.

    With ``all_pages`` those of the kept registrations, the training and the evaluation are written before it.
    """
    where = Path(folder)
    summary = DemoSummary.read(where)
    if all_pages:
        for name in summary.shown:
            registration.write_page(where / DEMO_EVALUATION / PAGES / name)
        training.write_page(where / DEMO_MODEL)
        evaluation.write_page(where / DEMO_EVALUATION)
    with owned_path(where / INDEX) as part:
        part.write_text(_page_text(summary, where), encoding="utf-8")
    return where / INDEX


def _page_text(summary: DemoSummary, folder: Path) -> str:
    columns = zip(*summary.dice.values(), strict=True)
    pages = {name: f"{DEMO_EVALUATION}/{PAGES}/{name}/{REPORT}" for name in summary.shown}

    def address(place: str) -> str:
        return quote(place) if (folder / place).is_file() else ""

    context = {
        "summary": summary,
        "sentences": summary.sentences(),
        "best": [max((v for v in column if v is not None), default=None) for column in columns],
        "members": list(summary.trust[0].shares),
        "made": any(row.right for row in summary.trust),
        "evaluation": address(f"{DEMO_EVALUATION}/{REPORT}"),
        "training": address(training.page_path(Path(DEMO_MODEL)).name),
        "pages": {name: address(place) for name, place in pages.items()},
        "pictures": {
            name: seen for name in summary.shown if (seen := _picture(folder / DEMO_EVALUATION / PAGES / name))
        },
    }
    return render("demo.j2", context, style=STYLE + asset("demo.css"))


def _picture(folder: Path) -> str:
    """Return the planes of a registration before and after as an address that holds them; nothing without its files."""
    if not is_file(folder / RESULT):
        return ""
    result = load(folder)
    return sheet(fusion(result.fixed, (result.images.before, result.warped)))
