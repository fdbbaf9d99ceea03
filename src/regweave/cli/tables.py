"""Tables and texts that several commands print, within 80 columns."""

import math
import re
import sys
import textwrap
from collections.abc import Collection, Iterable, Sequence
from itertools import groupby

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from regweave.cli.app import WIDTH
from regweave.errors import EXIT_VERDICT
from regweave.measures.scores import PairScore
from regweave.measures.verdict import Verdict, unchecked_words
from regweave.notices import terminal_safe

GAP = "  "
LONGEST = 16  # longest name of a class or member that a table shows whole
LONGEST_IN_TEXT = 26  # the same for tables of a summary
VERDICTS = {"pass": "green", "cut": "cyan", "look": "yellow", "fail": "red"}
NOTES = {
    "vanished": "vanished, counts 0",
    "no reference": "no fixed contour",
    "not in moving": "not in moving",
    "unknown": "not scored",
}
"""What the table says of a structure that has no Dice of its own."""


MOST_LINES = 10  # structures that the terminal lists; all of them are in `result.json`


def overlap_table(score: PairScore, *, plain: bool, guided: Collection[int] = ()) -> Table:
    """Return a table of the mean Dice overlap, then that of the structures, the worst first; ``plain`` draws no lines.

    A structure that is not in both label maps has no Dice; the table shows its state instead and lists it last. Those
    that ``guided`` the registration come after the others, with a mean of their own.
    """
    table = Table(title="Dice overlap", box=None if plain else box.SIMPLE_HEAD, title_justify="left")
    table.add_column("structure", no_wrap=True)
    for heading in ("as loaded", "after start", "after"):
        table.add_column(heading, justify="right")
    table.add_column("")
    rows: list[tuple[str | Text, Iterable[float], str | Text]] = []
    for mean, inside in (("mean", False), ("mean of guides", True)):
        part = score.among(guided, inside=inside)
        if part.counted:
            rows.append((mean, part.means().values(), ""))
        ordered = sorted(part.structures, key=lambda s: (not s.counted, s.dice_after if s.counted else s.label))
        for s in ordered[:MOST_LINES]:
            name = Text(short(s.name, LONGEST_IN_TEXT))
            state = ("guide" if s.label in guided else "") if s.state == "scored" else NOTES[s.state]
            note = Text(state, "red" if s.counted and s.state != "scored" else "dim")
            rows.append((name, (s.dice_before, s.dice_start, s.dice_after), note))
        if len(ordered) > MOST_LINES:
            rows.append((Text(f"{len(ordered) - MOST_LINES} more in result.json", "dim"), (), ""))
    none = "-" if plain else "–"
    for title, values, last in rows:
        cells = [none if math.isnan(value) else f"{value:.3f}" for value in values]
        table.add_row(title, *(cells or ["", "", ""]), last)
    return table


def verdict_lines(verdict: Verdict) -> Text:
    """Format a verdict with its reasons and the rules that could not be checked, one a line."""
    lines = [terminal_safe(r.text) for r in verdict.reasons]
    lines = lines or ["every rule holds that could be checked" if verdict.unchecked else "every rule holds"]
    lines += [f"not checked: {unchecked_words(verdict.unchecked)}"] if verdict.unchecked else []
    text = Text("verdict     ")
    text.append(verdict.word, VERDICTS[verdict.word])
    for n, line in enumerate(lines):
        lead = ": " if n == 0 else ""
        wrapped = textwrap.wrap(lead + line, WIDTH - 18, break_long_words=False, break_on_hyphens=False)
        text.append(wrapped[0] if n == 0 else f"\n{'':12}{wrapped[0]}")
        text.append("".join(f"\n{'':14}{more}" for more in wrapped[1:]))
    return text


def end_by_verdict(verdict: Verdict, *, printed: bool, strict: bool) -> None:
    """Print a failed verdict to standard error where nothing was printed, and end with its status if that is asked."""
    if verdict.word != "fail":
        return
    if not printed:
        print(verdict_lines(verdict).plain, file=sys.stderr)
    if strict:
        raise typer.Exit(EXIT_VERDICT)


def short(name: str, longest: int = LONGEST) -> str:
    """Shorten a name for a table; names come from files, so control characters go too."""
    plain = "".join(c for c in name if c.isprintable())
    return plain if len(plain) <= longest else plain[: longest - 1] + "…"


def text_table(
    title: str, header: Sequence[str], lines: Sequence[tuple[str, Sequence[str]]], *, longest: int = LONGEST
) -> str:
    """Format columns of text within 80 characters; columns that do not fit go below.

    A line is a name and its cells; ``title`` is above the names. A title or name of one word is cut at ``longest``.
    """
    names = [name if " " in name else short(name, longest) for name, _ in lines]
    left = max(len(title), *(len(name) for name in names))
    columns = [[short(h, longest), *(cells[k] for _, cells in lines)] for k, h in enumerate(header)]
    blocks: list[list[list[str]]] = [[]]
    room = WIDTH - left
    for column in columns:
        need = len(GAP) + max(map(len, column))
        if need > room and blocks[-1]:
            blocks.append([])
            room = WIDTH - left
        blocks[-1].append([cell.rjust(need) for cell in column])
        room -= need
    texts = []
    for block in blocks:
        rows = [name.ljust(left) + "".join(column[i] for column in block) for i, name in enumerate([title, *names])]
        texts.append("\n".join(row.rstrip() for row in rows))
    return "\n\n".join(texts)


def terminal_text(markdown: str) -> str:
    r"""Format our own summaries for a terminal: tables within 80 columns, paragraphs wrapped, marks dropped."""
    parts = []
    for kind, group in groupby(markdown.splitlines(), key=lambda line: line[:1]):
        lines = list(group)
        if kind == "|":
            rows = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in lines]
            header, *body = [row for row in rows if not all(re.fullmatch(r":?-+:?", cell) for cell in row)]
            below = [(row[0], row[1:]) for row in body]
            parts.append(text_table(header[0], header[1:], below, longest=LONGEST_IN_TEXT))
        elif kind in {"", "#"}:
            parts += [line.lstrip("# ") for line in lines]
        else:
            parts += [_wrapped(line) for line in lines]
    return "\n".join(parts)


def _wrapped(line: str) -> str:
    plain = line.replace("**", "").replace("`", "")
    indent = "  " if plain.startswith("- ") else ""
    return textwrap.fill(plain, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
