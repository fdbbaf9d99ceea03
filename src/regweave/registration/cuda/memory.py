"""Memory of a GPU: what a registration needs, planned before it starts; devices that wait with theirs."""

from __future__ import annotations

import weakref
from collections import defaultdict
from math import prod
from typing import Any

from regweave.config.settings import Level, Settings
from regweave.errors import ResourceError
from regweave.spatial.control_grid import ControlGrid
from regweave.spatial.pyramid import shrink_geometry
from regweave.types import ImagePair

FLOAT, DOUBLE = 4, 8
FULL_FIELDS = 3  # Displacements at full resolution that are alive at once, in the level change at the end
LEVEL_IMAGES = 48
"""Arrays of the size of a level's image that a step keeps: views, features of twelve channels, fields, their copies."""
MESSAGES = 5  # Arrays (N, L) in float64 that message passing keeps: unaries, one message for each axis, room
_waiting: defaultdict[tuple[Any, int], list[Any]] = defaultdict(list)  # Idle devices, by kernels and number


def needed_bytes(pair: ImagePair, schedule: Settings) -> int:
    """Bytes that the levels and a refinement at the finest of them need at once."""
    fixed, moving = (prod(image.geometry.shape) for image in (pair.fixed, pair.moving))
    full = FLOAT * (fixed + moving + 3 * FULL_FIELDS * fixed)
    return full + max(_step_bytes(pair, schedule, level) for level in schedule.levels_for(pair.fixed.geometry))


def _step_bytes(pair: ImagePair, schedule: Settings, level: Level) -> int:
    """Bytes of one step of a level: images and fields of its size, costs, messages."""
    geometry = shrink_geometry(pair.fixed.geometry, level.factors(pair.fixed.geometry))
    nodes = ControlGrid.cover(geometry, level.spacing_mm, level.support).n_nodes
    volume = nodes * level.labels_per_axis**3 * (FLOAT * len(schedule.bank) + DOUBLE * MESSAGES)
    return FLOAT * LEVEL_IMAGES * prod(geometry.shape) + volume


def free_bytes(queue: Any, needed: int) -> int:
    """Bytes that are free; idle devices give theirs up where that is less than is needed."""
    if needed > queue.memory()[0]:
        release_idle()
    return int(queue.memory()[0])


def require_memory(queue: Any, pair: ImagePair, schedule: Settings) -> None:
    """Refuse a pair that does not fit into the memory of the GPU.

    Raises E140.
    """
    needed, total = needed_bytes(pair, schedule), queue.memory()[1]
    if needed > (free := free_bytes(queue, needed)):
        raise ResourceError(
            "E140",
            f"this registration needs about {needed / 2**20:.0f} MB of the GPU, of whose {total / 2**20:.0f} MB "
            f"{free / 2**20:.0f} MB are free",
            "use --device cpu, a coarser preset or smaller images, or end what else uses the GPU",
        )


class Opened:
    """Devices that one thread has opened, by number; they become idle when the thread, and so this, ends.

    A queue allocates and pins memory during its first registration, which takes longer than the registration, and a
    learner starts threads anew for each fit: the next thread takes an idle device with its memory.
    """

    def __init__(self) -> None:
        self._devices: dict[tuple[Any, int], Any] = {}
        weakref.finalize(self, _leave, self._devices).atexit = False

    def device(self, kernels: Any, number: int, make: Any) -> Any:
        """Return the device of a number: this thread's, an idle one, or one that is made now."""
        key = (kernels, number)
        if key not in self._devices:
            try:
                self._devices[key] = _waiting[key].pop()
            except IndexError:
                self._devices[key] = make()
        return self._devices[key]


def _leave(devices: dict[tuple[Any, int], Any]) -> None:
    for key, device in devices.items():
        _waiting[key].append(device)


def release_idle() -> None:
    """Give the memory of idle devices back."""
    _waiting.clear()
