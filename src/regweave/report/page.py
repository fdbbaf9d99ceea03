"""Page template: one file, no request to anywhere, light and dark."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import math
import unicodedata
from collections.abc import Collection, Iterable, Mapping, Sequence
from importlib import resources
from typing import Any

from regweave import __version__

ASSETS = "assets"
NOTE = "Research use only; not a medical device."


class Markup(str):
    """Text that is markup already, put on the page as it stands."""

    __slots__ = ()


def asset(name: str) -> str:
    """Text of one of the files in ``assets``."""
    return resources.files(__package__).joinpath(ASSETS, name).read_text(encoding="utf-8")


def escape(text: object) -> str:
    """Make any value safe as text or as a quoted attribute.

    Characters that are not seen but change what is seen (controls, direction marks) become a box.

    Examples
    --------
    >>> escape('<img src="x">')
    '&lt;img src=&quot;x&quot;&gt;'
    """
    plain = "".join("\ufffd" if _unseen(c) else c for c in str(text))
    return html.escape(plain, quote=True)


def cell(value: object) -> str:
    """Content of a table cell: markup as it is, numbers short, a missing value as a dash, the rest escaped.

    Examples
    --------
    >>> cell(0.123456), cell(None), cell(Markup("<b>x</b>"))
    ('0.123', '–', '<b>x</b>')
    """
    if isinstance(value, Markup):
        return str(value)
    if value is None:
        return "–"
    if isinstance(value, float):
        return format(value, ".3f") if math.isfinite(value) else "–"
    return escape(value)


def table(
    header: Sequence[object],
    rows: Iterable[Sequence[object]],
    *,
    numeric: Collection[int] = (),
    caption: str = "",
) -> str:
    """HTML of a table; the first column names the row.

    Parameters
    ----------
    header : sequence
        Column titles.
    rows : iterable of sequences
        Cells; see `cell`.
    numeric : collection of ints
        Columns that hold numbers: they are set to the right.
    caption : str
        What the table shows, in plain text.

    Returns
    -------
    str
        A ``<table>`` in a box that scrolls sideways on a narrow screen.

    Examples
    --------
    >>> "<td>1.000</td>" in table(["name", "Dice"], [["<a>", 1.0]])
    True
    """
    marks = [' class="number"' if i in numeric else "" for i in range(len(header))]
    head = "".join(f'<th scope="col"{mark}>{cell(h)}</th>' for h, mark in zip(header, marks, strict=True))
    lines = []
    for row in rows:
        first, *rest = (cell(value) for value in row)
        cells = "".join(f"<td{mark}>{value}</td>" for value, mark in zip(rest, marks[1:], strict=True))
        lines.append(f'<tr><th scope="row"{marks[0]}>{first}</th>{cells}</tr>')
    title = f"<caption>{escape(caption)}</caption>" if caption else ""
    body = "\n".join(lines)
    return f'<div class="wide"><table>{title}<thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table></div>'


def embed(name: str, value: object) -> str:
    """Put data on the page as JSON that no text inside can break out of; script reads it by the id ``name``."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    for char in "<>&":  # "</script>" and "<!--" would end or change the element
        text = text.replace(char, f"\\u{ord(char):04x}")
    return f'<script type="application/json" id="{escape(name)}">{text}</script>'


def document(
    title: str,
    body: str,
    *,
    style: str = "",
    scripts: Sequence[str] = (),
    data: Mapping[str, Any] | None = None,
    back: tuple[str, str] | None = None,
    subtitle: str = "",
) -> str:
    """Put together a complete page.

    The page may run only the scripts and styles given here (their hashes stand in its security policy) and may load
    nothing from anywhere. So the body must have no ``style="…"`` and no ``onclick="…"`` attributes: use classes, SVG
    attributes, and scripts.

    Parameters
    ----------
    title : str
        Plain text, shown in the tab and as the heading.
    body : str
        Markup between header and footer; escape what comes from files with `escape`.
    style : str
        CSS after the shared one, which has the variables ``--ink``, ``--paper``, ``--soft``, ``--line``,
        ``--accent``, ``--good``, ``--warn``, ``--bad`` for light and dark.
    scripts : sequence of str
        JavaScript, run in order at the end of the page.
    data : mapping, optional
        By name: values that scripts read with ``JSON.parse(document.getElementById(name).textContent)``; they must
        be plain JSON without NaN.
    back : (address, name), optional
        Page that this one belongs to, relative to it; the link stands before the heading.
    subtitle : str
        Plain text below the heading.

    Returns
    -------
    str
        The page.

    Examples
    --------
    >>> page = document("A & B", "<p>hello</p>")
    >>> "<h1>A &amp; B</h1>" in page
    True
    """
    css = asset("page.css") + style
    code = [asset("page.js"), *scripts]
    name = escape(title)
    up = f'<a class="back" href="{escape(back[0])}">← {escape(back[1])}</a>' if back else ""
    below = f'<p class="subtitle">{escape(subtitle)}</p>' if subtitle else ""
    stored = "".join(embed(key, value) for key, value in (data or {}).items())
    run = "".join(f"<script>{script}</script>\n" for script in code)
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_policy(css, code)}">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta name="referrer" content="no-referrer">\n'
        f"<title>{name}</title>\n<style>{css}</style>\n</head>\n<body>\n"
        f'<header class="top">{up}<div><h1>{name}</h1>{below}</div>'
        f'<button type="button" id="theme" title="Change between dark and light">Dark / light</button></header>\n'
        f"<main>\n{body}\n</main>\n"
        f"<footer>regweave {escape(__version__)} · {NOTE}</footer>\n{stored}\n{run}</body>\n</html>\n"
    )


def _policy(css: str, scripts: Sequence[str]) -> str:
    allowed = " ".join(_hash(script) for script in scripts)
    return (
        f"default-src 'none'; script-src {allowed}; style-src {_hash(css)}; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )


def _hash(text: str) -> str:
    return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode() + "'"


def _unseen(char: str) -> bool:
    return char not in "\n\t" and unicodedata.category(char) in {"Cc", "Cf", "Cs", "Co", "Cn"}
