"""Links lead somewhere, each page is in the navigation, and the page of commands is current."""

import re
import unicodedata
from pathlib import Path

from regweave.model import shipped_models
from regweave.model.model import Model

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [*(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")), *sorted(DOCS.rglob("*.md"))]
PAGES += [
    page
    for folder in ("papers", "benchmark")
    for page in sorted((ROOT / folder).rglob("*.md"))
    if page.parent.name != "evidence"
]
LINK = re.compile(r"(?<!!)\[[^\]]+\]\(([^)\s]+)\)")


def prose_of(page: Path) -> str:
    """Text without code blocks and code spans, where brackets mean other things."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"`[^`\n]*`", "", text)


def slug(heading: str) -> str:
    """Anchor of a heading as Python-Markdown makes it."""
    plain = unicodedata.normalize("NFKD", heading.replace("`", "")).encode("ascii", "ignore").decode("ascii")
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", plain).strip().lower())


def anchors_of(page: Path) -> set[str]:
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    return {slug(found) for found in re.findall(r"^#+\s+(.+?)\s*$", text, flags=re.MULTILINE)}


def dead_links(page: Path, text: str) -> list[str]:
    found = []
    for link in LINK.findall(text):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors_of(target)):
            found.append(link)
    return found


def test_links_lead_somewhere() -> None:
    found = {page.relative_to(ROOT).as_posix(): dead_links(page, prose_of(page)) for page in PAGES}
    assert {page: links for page, links in found.items() if links} == {}


def test_dead_links_are_seen() -> None:
    text = "[a](errors.md) [b](errors.md#exit-statuses) [c](none.md) [d](errors.md#none) [e](https://example.org)"
    assert dead_links(DOCS / "index.md", text) == ["none.md", "errors.md#none"]


def test_every_page_is_in_the_navigation() -> None:
    listed = set(re.findall(r"([\w/-]+\.md)", (ROOT / "mkdocs.yml").read_text(encoding="utf-8")))
    assert listed == {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")}


def test_every_setting_has_an_effect(script) -> None:
    for model, effects in script("_make_settings").EFFECTS.items():
        assert set(model.model_fields) == set(effects), f"say what each key of {model.__name__} does"


def test_made_pages_are_what_the_program_says(script):
    for maker in ["_make_architecture", "_make_cli", "_make_settings"]:
        module = script(maker)
        assert module.PAGE.read_text(encoding="utf-8") == module.page(), f"run python docs/{maker}.py"


def test_pages_load_nothing_from_elsewhere() -> None:
    config = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert "font: false" in config
    assert "extra_javascript" not in config
    assert not [
        page for page in DOCS.rglob("*.md") if re.search(r"<(script|link|img)|!\[[^\]]*\]\(http", prose_of(page))
    ]


def test_the_page_of_learning_names_every_shipped_model_and_its_gain() -> None:
    text = (DOCS / "learning.md").read_text(encoding="utf-8")
    found = re.findall(r"^\| `([\w-]+)` \| [^|]+ \| (–|[+−][\d.]+)[^|]*\| (–|[+−][\d.]+)", text, flags=re.MULTILINE)
    evidence = {name: Model.load(path).training.to_json() for name, path in shipped_models().items()}
    assert {name: (mix, columns) for name, mix, columns in found} == {
        name: (gain_of(e["refinement"]["gain"]), gain_of(e.get("left_out_gain"))) for name, e in evidence.items()
    }


def gain_of(interval: dict[str, float] | None) -> str:
    return "–" if interval is None else f"{interval['mean']:+.4f}"
