"""Records and pages as lines of text, without what differs from run to run."""

import difflib
import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

BLOCKS = {
    "address", "aside", "body", "canvas", "caption", "dd", "desc", "details", "div", "dl", "dt", "fieldset",
    "figcaption", "figure", "footer", "form", "g", "h1", "h2", "h3", "h4", "header", "html", "img", "input",
    "legend", "li", "main", "nav", "ol", "option", "p", "pre", "section", "select", "summary", "svg", "table",
    "tbody", "text", "textarea", "thead", "title", "tr", "ul",
}  # fmt: skip
"""Elements that begin a line; all others stand within one."""
CELLS = {"td", "th"}
SILENT = {"script", "style"}
SPOKEN = ("alt", "aria-label", "title", "placeholder", "href")
MASKS = (
    (r"\d{4}-\d{2}-\d{2}([T ]\d{2}:\d{2}(:\d{2})?(\.\d+)?(Z|[+-]\d{2}:\d{2}| UTC)?)?", "DATE"),
    (r"(?<![\d.])\d+(\.\d+)? ?(s|seconds|min|minutes|MB|GB)\b", r"N \2"),
    (r"\b\d+:\d{2} (min|h)\b", r"N \1"),
    (r"\bregweave \d+(\.\d+)+\S*", "regweave VERSION"),
    (r"(?m)^\| (regweave|[Pp]ython|numpy|scipy|SimpleITK|h5py|nibabel|pydantic|platform|threads) \| .*$", r"| \1 | N"),
    (r"(?m)^\| (seconds\b[^|]*) \| .*$", r"| \1 | N"),
)
TIMED = r"^(seconds|peak MB|s per pair\b.*)$"
"""Headings of columns that a machine decides."""
PASSING = {"seconds", "peak_mb", "peak_memory_mb", "provenance", "regweave", "path", "sha256", "inputs_sha256"}
"""Keys of records that a run, a machine or a version decides."""
LONG = 24
"""Lists with more numbers are kept as their hash."""
SHOWN = 40


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[list[str]] = [[]]
        self.silent = 0
        self.marks: Counter[str] | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.silent += tag in SILENT
        if tag == "svg":
            self.marks = Counter()
        elif self.marks is not None:
            self.marks[tag] += 1
        if tag in CELLS:
            self.lines[-1].append(" | ")
        elif tag in BLOCKS:
            self.lines.append([])
        self.lines[-1] += [f" [{name}: {value}] " for name, value in attrs if name in SPOKEN and value]

    def handle_endtag(self, tag: str) -> None:
        self.silent -= tag in SILENT
        if tag == "svg" and self.marks is not None:
            counts = ", ".join(f"{n} {name}" for name, n in sorted(self.marks.items()) if name != "g")
            self.lines += [[f"[drawing: {counts}]"], []]
            self.marks = None
        elif tag in BLOCKS:
            self.lines.append([])

    def handle_data(self, data: str) -> None:
        if not self.silent:
            self.lines[-1].append(data)


def page_text(page: Path, root: Path) -> str:
    """Return the words of a page, a block a line; ``root`` is the folder whose name must not show."""
    reader = _Reader()
    reader.feed(page.read_text(encoding="utf-8"))
    reader.close()
    lines = (re.sub(r"\s+", " ", "".join(parts)).strip() for parts in reader.lines)
    text = "\n".join(_without_seconds([line for line in lines if line])) + "\n"
    text = text.replace(str(root), "FOLDER")
    for pattern, word in MASKS:
        text = re.sub(pattern, word, text)
    return text


def _without_seconds(lines: list[str]) -> Iterator[str]:
    """Mask the columns of tables that hold time or memory."""
    timed: list[int] = []
    for line in lines:
        cells = re.split(r" ?\| ?", line)
        if not line.startswith("|"):
            timed = []
        elif any(re.search(TIMED, cell) for cell in cells):
            timed = [i - len(cells) for i, cell in enumerate(cells) if re.search(TIMED, cell)]
        else:
            for i in timed:
                cells[i] = "N"
        yield " | ".join(cells).strip()


def record_text(record: Path) -> str:
    """Return a JSON file as a hash and a line for each value, without times, versions and paths."""
    content = _lasting(json.loads(record.read_text(encoding="utf-8")))
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    return "\n".join([f"sha256 {digest}", *_leaves(content, "")]) + "\n"


def _lasting(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _lasting(item) for key, item in value.items() if key not in PASSING}
    return [_lasting(item) for item in value] if isinstance(value, list) else value


def _leaves(value: Any, place: str) -> Iterator[str]:
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from _leaves(item, f"{place}.{key}" if place else key)
    elif isinstance(value, list) and any(isinstance(item, dict) for item in value):
        for index, item in enumerate(value):
            yield from _leaves(item, f"{place}[{index}]")
    else:
        yield f"{place} = {_short(value)}"


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.9g}"
    if isinstance(value, list):
        text = json.dumps(value)
        if text.count(",") >= LONG:
            return f"{text.count(',') + 1} values, {hashlib.sha256(text.encode()).hexdigest()[:16]}"
        return f"[{', '.join(_short(item) for item in value)}]"
    return json.dumps(value, ensure_ascii=False)


def change(old: str, new: str, *, same_machine: bool) -> str:
    """Return the lines in which two texts differ; on another machine their words count, and not their numbers."""
    pairs = (old.splitlines(), new.splitlines()) if same_machine else (_words(old), _words(new))
    found = [line for line in difflib.unified_diff(*pairs, "frozen", "found", lineterm="", n=0) if line[:2] != "@@"]
    more = [f"… and {len(found) - SHOWN} more lines"] if len(found) > SHOWN else []
    return "\n".join(found[:SHOWN] + more)


def _words(text: str) -> list[str]:
    kept = [re.sub(r"\b[0-9a-f]{12,}\b|[-−+]?\d[\d.]*(e[-+]?\d+)?", "N", line) for line in text.splitlines()]
    return sorted(set(kept))
