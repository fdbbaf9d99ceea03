"""Pages of a demo; the first one has the summary and links to the others."""

from pathlib import Path
from typing import Any
from urllib.parse import quote

from regweave.io import owned_path
from regweave.io.disk.files import is_file
from regweave.io.disk.records import DEMO, DEMO_EVALUATION, DEMO_MODEL, INDEX, PAGES, REPORT, RESULT, read_record
from regweave.report import charts, evaluation, page, pictures, registration, training
from regweave.run.result import load
from regweave.study.demo import EXAMPLE_VOXEL_MM, EXAMPLES, MARGIN, DemoSummary, example_sentence


def write_page(folder: str | Path, *, all_pages: bool = False) -> Path:
    """Write ``index.html`` into the folder of a demo, which links the pages that exist.

    With ``all_pages`` those of the kept registrations, the training and the evaluation are written before it. Before
    the training has ended the page shows the first registrations alone.
    """
    where = Path(folder)
    examples = [
        path for path in (where / EXAMPLES / kind.replace(" ", "-") for kind in EXAMPLE_VOXEL_MM) if path.is_dir()
    ]
    summary = read_record(DemoSummary, where / DEMO) if is_file(where / DEMO) or not examples else None
    if all_pages and summary is not None:
        for name in summary.shown:
            registration.write_page(where / DEMO_EVALUATION / PAGES / name)
        training.write_page(where / DEMO_MODEL)
        evaluation.write_page(where / DEMO_EVALUATION)
    if all_pages:
        for place in examples:
            registration.write_page(place)
    seen = [(place, load(place)) for place in examples]
    context: dict[str, Any] = {
        "summary": summary,
        "examples": [
            {
                "name": place.name.replace("-", " "),
                "sentence": example_sentence(result),
                "page": f"{EXAMPLES}/{place.name}/{REPORT}",
                "picture": pictures.sheet(pictures.contoured(result)),
            }
            for place, result in seen
        ],
    }
    context |= {} if summary is None else _of_learning(summary, where)
    with owned_path(where / INDEX) as part:
        part.write_text(page.render("demo.j2", context, style=charts.STYLE + page.asset("demo.css")), encoding="utf-8")
    return where / INDEX


def _of_learning(summary: DemoSummary, folder: Path) -> dict[str, Any]:
    columns = zip(*summary.dice.values(), strict=True)
    pages = {name: f"{DEMO_EVALUATION}/{PAGES}/{name}/{REPORT}" for name in summary.shown}

    def address(place: str) -> str:
        return quote(place) if (folder / place).is_file() else ""

    return {
        "sentences": summary.sentences(),
        "best": [max((v for v in column if v is not None), default=None) for column in columns],
        "singles": summary.best_singles(),
        "margin": MARGIN,
        "evaluation": address(f"{DEMO_EVALUATION}/{REPORT}"),
        "training": address(training.page_path(Path(DEMO_MODEL)).name),
        "pages": {name: address(place) for name, place in pages.items()},
        "pictures": {
            name: pictures.sheet(pictures.contoured(load(place), 220))
            for name in summary.shown
            if is_file((place := folder / DEMO_EVALUATION / PAGES / name) / RESULT)
        },
    }
