"""Pages of a demo; the first one says what was found, and where to look further, all from demo.json."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

from regweave.io import owned_path
from regweave.report import evaluation, registration, training
from regweave.report.charts import STYLE
from regweave.report.page import Markup, document, escape, table
from regweave.study.demo import EVALUATION, MODEL
from regweave.study.demo_summary import Story
from regweave.study.worst_cases import PAGES

NAME = "index.html"
LAYOUT = (
    "a{color:var(--accent)}.next{list-style:none;padding:0;display:grid;gap:10px;grid-template-columns:repeat(auto-fit,minmax(min(100%,360px),1fr))}"
    ".next li{border:1px solid var(--line);border-radius:8px;padding:10px 14px;background:var(--soft)}"
    ".next a{font-weight:600}.next span{display:block;color:var(--quiet)}strong{font-weight:650}"
)


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
    first, *rest = story.sentences()
    body = (
        f'<p class="quiet">{escape(story.opening())}</p><p><strong>{escape(first)}</strong></p>'
        f"<ul>{''.join(f'<li>{escape(line)}</li>' for line in rest)}</ul>"
        f"<section><h2>Dice on held-out patients</h2>{_dice(story)}</section>"
        f"<section><h2>What each structure trusts</h2>{_trust(story)}</section>"
        f'<section><h2>Look further</h2><ul class="next">{_links(story, folder)}</ul></section>'
    )
    return document("regweave demo", body, style=STYLE + LAYOUT)


def _dice(story: Story) -> str:
    header = ["", "mean", *story.structures]
    columns = list(zip(*story.dice.values(), strict=True))
    best = [max((v for v in column if v is not None), default=None) for column in columns]
    rows = [
        [title, *(_strong(v) if v is not None and v == best[k] else v for k, v in enumerate(values))]
        for title, values in story.dice.items()
    ]
    caption = "Mean over pairs, the best of each column in bold. The smoothness of every baseline is tuned."
    return table(header, rows, numeric=range(1, len(header)), caption=caption)


def _strong(value: float) -> Markup:
    return Markup(f"<strong>{value:.3f}</strong>")


def _trust(story: Story) -> str:
    made = any(row.right for row in story.trust)
    members = list(story.trust[0].shares)
    header = ["structure", *members, "weights", *(["made for"] if made else [])]
    rows = [
        [
            row.name,
            *(row.shares[m] for m in members),
            "learned" if row.used else "uniform",
            *([row.right] if made else []),
        ]
        for row in story.trust
    ]
    caption = "Share of each metric in the weights of a structure."
    return table(header, rows, numeric=range(1, len(members) + 1), caption=caption)


def _links(story: Story, folder: Path) -> str:
    stem = MODEL.removesuffix(".json")
    found = [
        (f"{EVALUATION}/{evaluation.NAME}", "Evaluation", "every method on every held-out pair, with intervals"),
        (f"{stem}.report.html", "Training", "weights, gates, curves and what they cost"),
    ]
    for rank, (name, dice) in enumerate(story.shown.items()):
        place = f"{EVALUATION}/{PAGES}/{name}/{registration.PAGE}"
        text = f"held out, mean Dice {dice:.3f} with the learned weights" + (", the lowest" if rank == 0 else "")
        found.append((place, f"Registration of {name}", text))
    return "".join(
        f'<li><a href="{escape(quote(place))}">{escape(title)}</a><span>{escape(text)}</span></li>'
        for place, title, text in found
        if (folder / place).is_file()
    )
