"""Settings of few steps, and the files of a pair."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from regweave.config.settings import Settings
from regweave.io import write_image, write_labels
from regweave.types import Image, ImagePair

SAD, NCC = ({"name": name, "metric": name} for name in ("sad", "ncc"))


def small_settings(*levels: tuple[float, int, int], refine: int = 0, **more: Any) -> Settings:
    """Return settings with levels as (spacing in mm, shrink, steps) and so many steps of refinement."""
    words = ("spacing_mm", "shrink", "steps")
    content: dict[str, Any] = {"name": "small", "smoothness": 0.1, "banks": {"mr": [SAD, NCC]}}
    content |= {"levels": [dict(zip(words, level, strict=True)) for level in levels], "refine": {"steps": refine}}
    return Settings.model_validate(content | more)


def bare(image: Any) -> Any:
    """Return an image without the labels and the mask that those of phantoms have."""
    return replace(image, labels=None, mask=None) if isinstance(image, Image) else image


def write_pair(folder: Path, pair: ImagePair) -> dict[str, Path]:
    """Write the images and label maps of a pair; return their paths by the arguments of ``register``."""
    paths = {name: folder / f"{name}.nii.gz" for name in ("fixed", "moving", "fixed_labels", "moving_labels")}
    for name, path in paths.items():
        (write_labels if name.endswith("labels") else write_image)(path, getattr(pair, name))
    return paths
