"""The first page of a demo: what was found, and where to look further; all from demo.json."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

from regweave.io import atomic_path
from regweave.report import evaluation, registration
from regweave.report.charts import STYLE
from regweave.report.page import Markup, document, escape, table
from regweave.workflows.demo import EVALUATION, MODEL
from regweave.workflows.story import Story
from regweave.workflows.worst import PAGES

NAME = "index.html"
LAYOUT = (
    "a{color:var(--accent)}.next{list-style:none;padding:0;display:grid;gap:10px;max-width:72ch}"
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
    with atomic_path(where / NAME) as part:
        part.write_text(text, encoding="utf-8")
    return where / NAME


def page_text(story: Story, folder: Path) -> str:
    """Return the page as HTML."""
    first, *rest = story.sentences()
    intro = f"Scans: {story.source}. {story.n_train} pairs to learn from, {story.n_test} held out."
    body = (
        f'<p class="quiet">{escape(intro)}</p><p><strong>{escape(first)}</strong></p>'
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
    if made:
        caption += " The phantoms are made so that one metric is right in each organ."
    return table(header, rows, numeric=range(1, len(members) + 1), caption=caption)


def _links(story: Story, folder: Path) -> str:
    stem = MODEL.removesuffix(".json")
    found = [
        (f"{EVALUATION}/{evaluation.NAME}", "Evaluation", "every method on every held-out pair, with intervals"),
        (f"{stem}.report.html", "Training", "weights, gates, curves and what they cost"),
    ]
    if story.shown is not None:
        place = f"{EVALUATION}/{PAGES}/{story.shown}/{registration.PAGE}"
        found.append(
            (place, f"Registration of {story.shown}", "the held-out pair on which the learned weights did worst")
        )
    return "".join(
        f'<li><a href="{escape(quote(place))}">{escape(title)}</a><span>{escape(text)}</span></li>'
        for place, title, text in found
        if (folder / place).is_file()
    )
