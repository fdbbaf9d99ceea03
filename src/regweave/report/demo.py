"""Pages of a demo; the first one says what was found and where to look further."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

from regweave.io import owned_path
from regweave.report import evaluation, registration, training
from regweave.report.charts import STYLE
from regweave.report.page import asset, render
from regweave.study.demo import EVALUATION, MODEL
from regweave.study.demo_summary import Story
from regweave.study.worst_cases import PAGES

NAME = "index.html"


def write_page(folder: str | Path) -> Path:
    """Write ``index.html`` into the folder of a demo; it links the pages that exist.

    Parameters
    ----------
    folder : path
        Holds demo.json.

    Returns
    -------
    Path
        The page.
    """
    where = Path(folder)
    text = page_text(Story.read(where), where)
    with owned_path(where / NAME) as part:
        part.write_text(text, encoding="utf-8")
    return where / NAME


def write_pages(folder: str | Path) -> Path:
    """Write all pages of a demo: registrations that were kept, training, evaluation, and last the first page."""
    where = Path(folder)
    story = Story.read(where)
    training.write_page(where / MODEL)
    for name in story.shown:
        registration.write_page(where / EVALUATION / PAGES / name)
    evaluation.write_page(where / EVALUATION)
    return write_page(where)


def page_text(story: Story, folder: Path) -> str:
    """Return the page as HTML."""
    columns = zip(*story.dice.values(), strict=True)
    pages = {name: f"{EVALUATION}/{PAGES}/{name}/{registration.PAGE}" for name in story.shown}

    def found(place: str) -> str:
        return quote(place) if (folder / place).is_file() else ""

    context = {
        "story": story,
        "sentences": story.sentences(),
        "best": [max((v for v in column if v is not None), default=None) for column in columns],
        "members": list(story.trust[0].shares),
        "made": any(row.right for row in story.trust),
        "evaluation": found(f"{EVALUATION}/{evaluation.NAME}"),
        "training": found(training.page_path(Path(MODEL)).name),
        "pages": {name: found(place) for name, place in pages.items()},
    }
    return render("demo.j2", context, style=STYLE + asset("demo.css"))
