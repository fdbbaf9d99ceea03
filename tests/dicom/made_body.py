"""A small patient in DICOM, planned and scanned again a few millimetres away, for tests of `regweave contours`."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from made_dicom import Made, Roi, write_rtstruct, write_series

from regweave.contours import outlines

ORGANS = {
    "Liver": ((22.0, -5.0, 24.0), (12.0, 14.0, 16.0), 70.0),
    "Fat": ((-22.0, -5.0, 20.0), (12.0, 10.0, 14.0), -40.0),
}
"""Centre and half axes in mm, and Hounsfield units."""


@dataclass(frozen=True)
class Body(Made):
    """A trunk of two organs and a spine; ``shift`` moves it, ``hu`` is a slope and an offset of its values."""

    along: tuple[float, ...] = tuple(3.0 * k for k in range(16))
    size: tuple[int, int] = (60, 52)
    spacing: tuple[float, float] = (2.5, 2.5)
    origin: tuple[float, float, float] = (-75.0, -65.0, 0.0)
    shift: tuple[float, float, float] = (0.0, 0.0, 0.0)
    hu: tuple[float, float] = (1.0, 0.0)
    noise: float = 6.0
    seen_mm: float = 1e9

    def values(self, k: int) -> np.ndarray:
        """Hounsfield units [row, column]; beyond ``seen_mm`` of the middle of the scan nothing was measured."""
        u, v = (np.arange(n) * s for n, s in zip(self.size, self.spacing, strict=True))
        row, column = np.asarray(self.row), np.asarray(self.column)
        points = self.position(k) + v[:, None, None] * column + u[None, :, None] * row
        x, y, z = np.moveaxis(points - np.asarray(self.shift), -1, 0)
        out = np.where((x / 55) ** 2 + (y / 45) ** 2 < 1, 20.0, -1000.0)
        for centre, half, value in ORGANS.values():
            out[sum(((p - c) / h) ** 2 for p, c, h in zip((x, y, z), centre, half, strict=True)) < 1] = value
        out[(x / 9) ** 2 + ((y - 30) / 9) ** 2 < 1 + 0.3 * np.sin(z / 5)] = 700.0
        out += 8 * np.sin(x / 6) * np.cos(y / 7) * np.sin(z / 6) * (out > -500)
        out += np.random.default_rng(k + 17 * len(self.series)).normal(0, self.noise, out.shape)
        out = out * self.hu[0] + self.hu[1]
        middle = points.mean(axis=(0, 1))
        away = np.linalg.norm((points - middle) @ np.stack([row, column], axis=1), axis=-1)
        return np.where(away > self.seen_mm, -1000.0, out)

    def drawn(self, name: str) -> Roi:
        """Outlines of an organ on the slices that cut it."""
        (x, y, z), (a, b, c), _ = ORGANS[name]
        turn, rings = np.arange(60) * 2 * np.pi / 60, []
        for k in range(len(self.along)):
            at = self.position(k)
            left = 1 - ((at[2] - self.shift[2] - z) / c) ** 2
            if left > 0.02:
                across = x + self.shift[0] - at[0] + a * left**0.5 * np.cos(turn)
                rings.append((k, np.stack([across, y + self.shift[1] - at[1] + b * left**0.5 * np.sin(turn)], axis=1)))
        return Roi(name, tuple(rings))

    def drawn_at(self, name: str, level, kind: str = "ORGAN") -> Roi:
        """Outlines of what ``level`` (points (n, 3) to mm, negative inside) encloses, on slices of any direction."""
        u, v = (np.arange(0.0, n - 1, 0.25) * s for n, s in zip(self.size, self.spacing, strict=True))
        rings = []
        for k in range(len(self.along)):
            points = (
                self.position(k) + v[:, None, None] * np.asarray(self.column) + u[None, :, None] * np.asarray(self.row)
            )
            found = level(points.reshape(-1, 3) - self.shift).reshape(len(v), len(u))
            rings += [(k, ring) for ring in outlines(found, u, v)]
        return Roi(name, tuple(rings), kind=kind)


def skin(points: np.ndarray) -> np.ndarray:
    """Level of the outline of a `Head`: where its smooth edge falls below -300 Hounsfield units."""
    return (np.hypot(points[:, 0] / 55, points[:, 1] / 45) - 1) * 45 + 0.19 * EDGE_MM


def box(points: np.ndarray) -> np.ndarray:
    """Level of a box round the head and its ears."""
    return np.maximum(np.abs(points[:, 0]) - 68, np.abs(points[:, 1]) - 55)


def with_ears(points: np.ndarray) -> np.ndarray:
    """Level of the skin with the ears."""
    return np.minimum(skin(points), _ears(points))


def frame(points: np.ndarray) -> np.ndarray:
    """Level of a stereotactic frame: a ring round the head."""
    return np.abs(np.hypot(points[:, 0], points[:, 1]) - 66) - 2.5


def mark(points: np.ndarray) -> np.ndarray:
    """Level of a small mark in front of the skin."""
    return np.linalg.norm(points - [20.0, -54.0, 22.0], axis=1) - 4


def _ears(points: np.ndarray) -> np.ndarray:
    x, y, z = points.T
    return np.max([np.abs(np.abs(x) - 59) - 8, np.abs(y) - 1.9, np.abs(z - 22) - 10], axis=0)


EDGE_MM = 2.5


@dataclass(frozen=True)
class Head(Body):
    """A trunk whose skin has the edge of a scanner, with thin ears, a mask of 2 mm round it and a mark."""

    size: tuple[int, int] = (64, 64)
    origin: tuple[float, float, float] = (-80.0, -80.0, 0.0)

    def values(self, k: int) -> np.ndarray:
        """Hounsfield units [row, column]."""
        inner = super().values(k)
        u, v = (np.arange(n) * s for n, s in zip(self.size, self.spacing, strict=True))
        points = self.position(k) + v[:, None, None] * np.asarray(self.column) + u[None, :, None] * np.asarray(self.row)
        points = points.reshape(-1, 3) - self.shift
        mask = np.abs((np.hypot(points[:, 0] / 71, points[:, 1] / 61) - 1) * 61) - 1
        nearest = np.min([skin(points) - 0.19 * EDGE_MM, _ears(points), mask, mark(points)], axis=0)
        share = np.clip(0.5 - nearest / EDGE_MM, 0, 1).reshape(inner.shape)
        return np.where(share >= 1, np.maximum(inner, -100.0), -1000 + share * 1020.0)


PLAN = Body()
TODAY = Body(series="77", frame="7", study="7", shift=(4.0, -3.0, 2.0), origin=(-70.0, -66.0, 1.0))


def write_study(folder: Path, plan: Body = PLAN, today: Body = TODAY) -> Path:
    """Write ``plan``, with its structure set ``plan/set.dcm``, and ``today``."""
    write_series(folder / "plan", plan)
    write_series(folder / "today", today)
    write_rtstruct(folder / "plan" / "set.dcm", plan, [plan.drawn(name) for name in ORGANS])
    return folder
