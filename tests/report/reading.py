"""Pages as they are read, and records with something strange in one place; for the tests of this folder."""

import copy
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

GONE = object()


class Reader(HTMLParser):
    """Tags, table rows, links, pictures and words of a page, and what could load or run anything."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.rows: list[tuple[dict[str, str], list[str]]] = []
        self.links: list[str] = []
        self.pictures: list[str] = []
        self.outside: list[str] = []
        self.parts: list[str] = []
        self.text = page.read_text(encoding="utf-8")
        self.feed(self.text)

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.tags.append(tag)
        self.links += [given["href"]] if tag == "a" else []
        self.pictures += [given["src"]] if tag == "img" else []
        self.outside += [k for k in given if k.startswith("on") or k in ("src", "srcset", "style", "action")]
        if tag == "tr":
            self.rows.append((given, []))
        if tag in ("td", "th") and self.rows:
            self.rows[-1][1].append("")

    def handle_data(self, data):
        self.parts.append(data)
        if self.rows and self.rows[-1][1]:
            self.rows[-1][1][-1] += data.strip()

    @property
    def words(self) -> str:
        return " ".join(self.parts)


def places(value: object, path: tuple = ()) -> Iterator[tuple]:
    """Return the path to every value of a record."""
    if path:
        yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, below in items:
        yield from places(below, (*path, key))


def changed(record: dict, path: tuple, value: object) -> dict:
    """Return a record with another value in one place, or without it."""
    out = copy.deepcopy(record)
    inner = out
    for key in path[:-1]:
        inner = inner[key]
    if value is GONE:
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    return out
