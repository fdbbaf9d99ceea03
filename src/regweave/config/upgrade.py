"""Upgrade of settings that earlier versions wrote: frozen presets, models and records."""

from __future__ import annotations

from typing import Any

OLD_FLOOR = 1e-2
"""Variance floor of the former metric ``anatomy``, whose default was not that of ``ncc``."""


def upgrade_member(content: Any) -> Any:
    """Return a member of a bank in today's words; what is of today comes back as it is.

    ``anatomy`` was a metric; it is the correlation of structure maps, which are a source of features. Its option
    ``outline`` took the moving labels for the maps of the moving image.

    Examples
    --------
    >>> upgrade_member({"name": "outline", "metric": "anatomy", "options": {"outline": True}})
    {'name': 'outline', 'metric': 'ncc', 'options': {'variance_floor': 0.01}, 'source': 'labels'}
    """
    if not isinstance(content, dict) or content.get("metric") != "anatomy" or "source" in content:
        return content
    options = dict(content.get("options") or {})
    source = "labels" if options.pop("outline", False) is True else "structures"
    return {**content, "metric": "ncc", "options": {"variance_floor": OLD_FLOOR, **options}, "source": source}
