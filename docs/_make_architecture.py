"""Write docs/images/architecture.svg from the imports of the code: ``python docs/_make_architecture.py``."""

import ast
from html import escape
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "src" / "regweave"
PAGE = Path(__file__).parent / "images" / "architecture.svg"
LEFT_OUT = {"__init__", "__main__", "_core"}
WIDE, HIGH, GAP_X, GAP_Y, MARGIN = 168, 46, 18, 30, 16
STYLE = """
  text { font: 11px system-ui, sans-serif; fill: #1d2b36 }
  .name { font-weight: 600; font-size: 13px }
  rect { fill: #eef5f4; stroke: #2a7f7a; stroke-width: 1.2; rx: 6 }
  path { fill: none; stroke: #7d9aa8; stroke-width: 1; opacity: .65 }
  @media (prefers-color-scheme: dark) {
    text { fill: #e3edf0 } rect { fill: #16302f; stroke: #5bb5ae } path { stroke: #9fb7c1 }
  }
"""


def areas() -> dict[str, list[Path]]:
    """Modules of each folder or single module below the package."""
    found: dict[str, list[Path]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        area = path.relative_to(PACKAGE).with_suffix("").parts[0]
        if area not in LEFT_OUT:
            found.setdefault(area, []).append(path)
    return found


def imports(modules: list[Path], known: set[str]) -> set[str]:
    """Areas that modules import when they are loaded; what a function imports later is a door, not a layer."""
    names: set[str] = set()
    for path in modules:
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "regweave":
                parts = (node.module or "").split(".")
                names |= {parts[1]} if len(parts) > 1 else {alias.name for alias in node.names}
    return names & known


def ranks(graph: dict[str, set[str]]) -> dict[str, int]:
    """Layer of each area: one above the highest that it imports."""
    found: dict[str, int] = {}

    def rank(area: str, above: tuple[str, ...] = ()) -> int:
        assert area not in above, f"imports in a circle: {' → '.join((*above, area))}"
        if area not in found:
            found[area] = 1 + max((rank(a, (*above, area)) for a in graph[area]), default=-1)
        return found[area]

    for area in graph:
        rank(area)
    return found


def direct(graph: dict[str, set[str]]) -> list[tuple[str, str]]:
    """Return the imports that no other chain of imports implies."""

    def below(area: str) -> set[str]:
        return graph[area].union(*(below(a) for a in graph[area]))

    return [(a, b) for a in graph for b in sorted(graph[a]) if not any(b in below(c) for c in graph[a] - {b})]


def page() -> str:
    """Return the picture."""
    found = areas()
    graph = {area: imports(modules, set(found)) - {area} for area, modules in found.items()}
    layer = ranks(graph)
    rows = [[a for a in graph if layer[a] == n] for n in range(max(layer.values()) + 1)]
    width = 2 * MARGIN + max(len(row) for row in rows) * (WIDE + GAP_X) - GAP_X
    height = 2 * MARGIN + len(rows) * (HIGH + GAP_Y) - GAP_Y
    place = {}
    for n, row in enumerate(reversed(rows)):
        start = (width - len(row) * (WIDE + GAP_X) + GAP_X) / 2
        for i, area in enumerate(row):
            place[area] = (start + i * (WIDE + GAP_X), MARGIN + n * (HIGH + GAP_Y))
    lines = [_line(place[a], place[b]) for a, b in direct(graph)]
    boxes = [_box(area, len(found[area]), *place[area]) for area in graph]
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">'
    title = "<title>Folders of regweave: each imports only what lies below it</title>"
    return "\n".join([head, title, f"<style>{STYLE}</style>", *lines, *boxes, "</svg>", ""])


def _line(above: tuple[float, float], below: tuple[float, float]) -> str:
    (x0, y0), (x1, y1) = (above[0] + WIDE / 2, above[1] + HIGH), (below[0] + WIDE / 2, below[1])
    return f'<path d="M{x0:.0f} {y0:.0f} C{x0:.0f} {y0 + 22:.0f} {x1:.0f} {y1 - 22:.0f} {x1:.0f} {y1:.0f}"/>'


def _box(area: str, modules: int, x: float, y: float) -> str:
    count = f"{modules} modules" if modules > 1 else "1 module"
    return (
        f'<rect x="{x:.0f}" y="{y:.0f}" width="{WIDE}" height="{HIGH}"/>'
        f'<text class="name" x="{x + 10:.0f}" y="{y + 19:.0f}">{area}</text>'
        f'<text x="{x + 10:.0f}" y="{y + 36:.0f}">{escape(WORDS.get(area, count))}</text>'
    )


WORDS = {
    "cli": "the command line",
    "config": "settings and presets",
    "contours": "shapes and outlines",
    "energy": "costs become an energy",
    "engines": "minimisers with bounds",
    "errors": "codes and next steps",
    "io": "disk ↔ values",
    "jobs": "workers, stores, clusters",
    "learning": "latent structured SVM",
    "losses": "Δ between masks",
    "measures": "Dice, surfaces, verdict",
    "metrics": "similarity metrics",
    "model": "learned weights on disk",
    "extras": "optional packages",
    "notices": "warnings of a run",
    "options": "options as fields",
    "progress": "events and bars",
    "threads": "threads of the kernels",
    "run": "one registration",
    "predictors": "structure maps",
    "registration": "start, levels, refinement",
    "registry": "plug-ins",
    "report": "pages and charts",
    "spatial": "grids, fields, warping",
    "clinic": "contours, QA, commissioning",
    "study": "evaluate, demo",
    "training": "stages of a training",
    "types": "frozen values",
}

if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
