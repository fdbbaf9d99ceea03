"""Tables that several commands print."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from rich import box
from rich.table import Table


def overlap_table(dice: Mapping[int, Mapping[str, Any]], *, plain: bool) -> Table:
    """Lay out the Dice overlap of each organ, with the mean as the last row; ``plain`` draws no lines."""
    table = Table(title="Dice overlap", box=None if plain else box.SIMPLE_HEAD, title_justify="left")
    table.add_column("organ", no_wrap=True)
    for heading in ("before", "after", "change"):
        table.add_column(heading, justify="right")
    means = {when: float(np.nanmean([row[when] for row in dice.values()])) for when in ("before", "after")}
    for row in (*dice.values(), {"name": "mean", **means}):
        before, after = row["before"], row["after"]
        table.add_row(row["name"], f"{before:.3f}", f"{after:.3f}", f"{after - before:+.3f}")
    return table
