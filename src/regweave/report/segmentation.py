"""Page of a segmentation by atlases: its outlines, its volumes, and the network of a model beside them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from regweave.report.page import render
from regweave.report.pictures import outlined, sheet
from regweave.types import LabelMap, Volume

HEIGHT = 260


def write_page(
    path: Path, title: str, image: Volume, labels: LabelMap, network: LabelMap | None, rows: Sequence[Mapping[str, Any]]
) -> None:
    """Write the page of one image; ``rows`` are its structures."""
    picture = sheet([outlined(image, image, [network, labels], HEIGHT)])
    context = {"name": title, "rows": rows, "picture": picture, "beside": network is not None}
    path.write_text(render("segmentation.j2", context), encoding="utf-8")
