"""Memory of a GPU that a registration needs, planned before it starts."""

from __future__ import annotations

from math import prod
from typing import Any

from regweave.config.settings import Level, Schedule
from regweave.errors import ResourceError
from regweave.spatial.control_grid import ControlGrid
from regweave.spatial.pyramid import shrink_geometry
from regweave.types import ImagePair

FLOAT, DOUBLE = 4, 8
FULL_FIELDS = 3
"""Displacements at full resolution that are alive at once, in the level change at the end."""
LEVEL_IMAGES = 48
"""Arrays of the size of a level's image that a step keeps: views, features of twelve channels, fields, their copies."""
MESSAGES = 5
"""Arrays (N, L) in float64 that message passing keeps: unaries, one message for each axis, room."""


def needed_bytes(pair: ImagePair, schedule: Schedule) -> int:
    """Bytes that the levels and a refinement at the finest of them need at once.

    Examples
    --------
    >>> from regweave.config.settings import preset
    >>> from regweave.datasets.phantom import make_phantom
    >>> pair = make_phantom(0, (32, 32, 32), (4.0, 4.0, 4.0)).pair
    >>> 5e6 < needed_bytes(pair, preset("default").schedule("mr")) < 5e7
    True
    """
    fixed, moving = (prod(image.geometry.shape) for image in (pair.fixed, pair.moving))
    full = FLOAT * (fixed + moving + 3 * FULL_FIELDS * fixed)
    return full + max(_step_bytes(pair, schedule, level) for level in schedule.levels_for(pair.fixed.geometry))


def _step_bytes(pair: ImagePair, schedule: Schedule, level: Level) -> int:
    """Bytes of one step of a level: images and fields of its size, costs, messages."""
    geometry = shrink_geometry(pair.fixed.geometry, level.factors(pair.fixed.geometry))
    nodes = ControlGrid.cover(geometry, level.spacing_mm, level.support).n_nodes
    volume = nodes * level.labels_per_axis**3 * (FLOAT * len(schedule.bank) + DOUBLE * MESSAGES)
    return FLOAT * LEVEL_IMAGES * prod(geometry.shape) + volume


def require_memory(queue: Any, pair: ImagePair, schedule: Schedule) -> None:
    """Refuse a pair that does not fit into the memory of the GPU.

    Raises
    ------
    ResourceError
        E140.
    """
    needed, (free, total) = needed_bytes(pair, schedule), queue.memory()
    if needed > free:
        raise ResourceError(
            "E140",
            f"this registration needs about {needed / 2**20:.0f} MB of the GPU, of whose {total / 2**20:.0f} MB "
            f"{free / 2**20:.0f} MB are free",
            "use --device cpu, a coarser preset or smaller images, or end what else uses the GPU",
        )
