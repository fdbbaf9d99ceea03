"""Reference device in NumPy and SciPy: slow, obvious, with none of the compiled kernels of its own verbs.

Its arrays are opaque, so a loop that looks into one fails. It has kernels for two metrics and one penalty;
all others go through the host, as those of any device may.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from scipy import ndimage

from regweave import metrics
from regweave.energy import assemble, cost_volume, fit_scales
from regweave.registration import forces as steps
from regweave.registration.cpu import VALID_SHARE
from regweave.registration.forces import (
    SMALL_DIFFERENCE,
    DataTerm,
    counted_once,
    host_forces,
    stretch,
)
from regweave.registration.scene import Scene, View
from regweave.spatial.control_grid import shift
from regweave.types import Terms

METRICS = {"sad", "ncc"}
PLAIN = View(None, 0.0, None)


@dataclass(frozen=True)
class Held:
    """A value on the device."""

    value: object


@dataclass(frozen=True)
class ReferenceScene:
    host: Scene

    @property
    def factors(self):
        return self.host.factors

    @property
    def geometry(self):
        return self.host.geometry

    def at(self, resolution):
        return ReferenceScene(self.host.at(resolution))

    @cached_property
    def _shape(self):
        return self.host.moving_channels.view(PLAIN, self.host.moving_factors).shape

    def positions(self, u):
        """Voxel of the moving image that each fixed voxel goes to, (3, X, Y, Z)."""
        there = np.indices(u.shape[1:]) + u.astype(np.float64)
        return np.einsum("ab,bxyz->axyz", self.host.matrix[:, :3], there) + self.host.matrix[:, 3, None, None, None]

    def images(self, u):
        """Fixed image and moved image, (X, Y, Z) each."""
        moving = self.host.moving_channels.view(PLAIN, self.host.moving_factors)
        return self.host.fixed_channels.view(PLAIN, self.host.factors), sample(moving, self.positions(u))

    def valid(self, u):
        p, n = self.positions(u), np.array(self._shape)[:, None, None, None]
        return ((p >= -0.5) & (p <= n - 0.5)).all(axis=0).astype(np.float32)


class ReferenceDevice:
    name = "reference"

    def __init__(self):
        self.uploads = []

    def upload(self, array):
        self.uploads.append(array.shape)
        return Held(array.copy())

    def download(self, held):
        return held.value.copy()

    def scene(self, pair, schedule):
        return ReferenceScene(Scene.whole(pair, schedule))

    def change_level(self, u, before, after, shape):
        b, a = np.array(before, dtype=float), np.array(after, dtype=float)
        at = np.indices(shape) * (a / b)[:, None, None, None] + ((a - b) / (2 * b))[:, None, None, None]
        return Held(np.stack([sample(c, at) for c in u.value]) * (b / a).astype(np.float32)[:, None, None, None])

    def measure(self, scene, u, around, scales):
        fixed, moved = scene.images(u.value)
        members, grid = around.schedule.bank, around.grid
        unknown = [m for m in members if m.metric not in METRICS]
        compared = scene.host.compare(unknown, self.download(u)) if unknown else []
        by_host = iter(cost_volume(compared, grid, around.labels))
        rows = []
        for member in members:
            if member.metric not in METRICS:
                rows.append(self.upload(next(by_host)).value)
                continue
            metric, options = metrics.get(member.metric), member.metric_options
            pairs = ((fixed[None], shift(moved[None], d)) for d in around.labels.vectors)
            rows.append(np.stack([metric.cost(f, m, grid, options) for f, m in pairs], axis=1))
        costs = np.stack(rows)
        scales = Held(fit_scales(costs)) if scales is None else scales
        costs = (costs / scales.value[:, None, None]).astype(np.float32)
        costs[:, grid.pool(scene.valid(u.value)) < VALID_SHARE] = 0
        assert len(around.classes) == 1
        shares = np.ones((grid.n_nodes, 1), dtype=np.float32)
        return Held(Terms(costs, shares, grid.nodes, around.labels.in_units_of(grid.spacing))), scales

    def terms(self, terms):
        return terms.value

    def minimize(self, terms, weights, schedule):
        found = schedule.solver(assemble(terms.value, weights))
        return replace(found, labels=Held(found.labels))

    def compose(self, u, around, labels):
        chosen = around.labels.vectors[labels.value].T.reshape(3, *around.grid.nodes)
        return Held(composed(u.value, free_form(chosen, around.grid)))

    def smoothed(self, u, sigma_mm, geometry):
        out = [ndimage.gaussian_filter(c, sigma_mm / geometry.spacing_mm, mode="nearest", truncate=3) for c in u.value]
        assert determinant(np.stack(out)).min() > steps.LEAST_JACOBIAN
        return Held(np.stack(out))

    def data_terms(self, scene, u, members, weights, settings):
        table = counted_once(scene.host, members, weights.select(tuple(m.name for m in members))).matrix
        out = []
        for member, (weight,) in zip(members, table, strict=True):
            radius = settings.radius_voxels if member.support is None else member.support // 2
            term = DataTerm(member, scene.valid(u.value), radius)
            _, force = self._data(scene, [term], u)
            squares = (force**2).sum(axis=0)
            typical = max(np.sqrt((squares**2).sum() / squares.sum()), 1e-3)
            out.append(replace(term, weight=np.float32(term.weight * weight / typical)))
        return Held(out)

    def forces(self, scene, terms, u, smoothness):
        s = stretch(scene.geometry)
        smooth, force = 0.0, np.zeros(u.value.shape)
        for axis in range(3):
            factor = ((s / s[axis]) ** 2)[:, None, None, None]
            difference = np.diff(u.value.astype(np.float64), axis=axis + 1)
            smooth += 0.5 * (factor * difference**2).sum()
            ends = [(0, 0)] * 4
            ends[axis + 1] = (1, 1)
            force -= factor * np.diff(np.pad(difference, ends), axis=axis + 1)
        data, pull = self._data(scene, terms.value, u)
        return data, smoothness * smooth, Held((smoothness * force + pull).astype(np.float32))

    def _data(self, scene, terms, u):
        """Cost and force of the data: absolute differences of intensities here, the others by the host."""
        own = [t for t in terms if t.member.metric == "sad"]
        others = [t for t in terms if t not in own]
        force = np.zeros_like(u.value)
        cost = host_forces(scene.host, others, self.download(u), force) if others else 0.0
        force = self.upload(force).value.astype(np.float64)
        fixed, moved = (i.astype(np.float64) for i in scene.images(u.value))
        root = np.sqrt((moved - fixed) ** 2 + SMALL_DIFFERENCE**2)
        for term in own:
            cost += (term.weight * (root - SMALL_DIFFERENCE)).sum()
            force += term.weight * (moved - fixed) / root * np.stack(np.gradient(moved))
        return float(cost), force

    def descent(self, settings, grid, geometry):
        return ReferenceDescent(settings.rate, grid, stretch(geometry)[:, None, None, None])

    def held_back(self, u, update, grid):
        update = update.value
        for attempt in range(steps.ATTEMPTS):
            out = composed(u.value, free_form(update, grid))
            folding = (determinant(out) < steps.LEAST_JACOBIAN) & (determinant(out) < determinant(u.value))
            if not folding.any():
                return Held(out)
            wide = ndimage.binary_dilation(folding, iterations=attempt + 1).astype(float)
            update = np.where(adjoint(wide[None], grid) > 0, 0, update)
        return u

    def unfolded(self, u, factors, shape):
        fine = self.change_level(u, factors, (1, 1, 1), shape)
        assert determinant(fine.value).min() > 0
        return u, fine


class ReferenceDescent:
    """Adam, one line for each line of the algorithm."""

    def __init__(self, rate, grid, scale):
        self.rate, self.grid, self.scale, self.m, self.v, self.t = rate, grid, scale, 0.0, 0.0, 0

    def update(self, force):
        self.t += 1
        g = adjoint(force.value, self.grid) / self.scale
        squared = (g**2).sum(axis=0)
        self.m = 0.9 * self.m + 0.1 * g
        self.v = 0.99 * self.v + 0.01 * squared
        m, v = self.m / (1 - 0.9**self.t), self.v / (1 - 0.99**self.t)
        spacing = self.grid.spacing[0]
        d = -self.rate * spacing * m / (np.sqrt(v) + 0.1 * np.sqrt(squared.mean()))
        return Held((d / self.scale).clip(-0.4 * spacing, 0.4 * spacing).astype(np.float32))


def sample(image, at):
    return ndimage.map_coordinates(image, at, order=1, mode="nearest", output=np.float32)


def composed(u, d):
    there = np.indices(d.shape[1:]) + d.astype(np.float64)
    return (d + np.stack([sample(c, there) for c in u])).astype(np.float32)


def determinant(u):
    gradient = np.stack([np.stack(np.gradient(c.astype(np.float64))) for c in u])
    return np.linalg.det(np.moveaxis(gradient + np.eye(3)[:, :, None, None, None], (0, 1), (-2, -1)))


def spline(t):
    t = np.abs(t)
    return np.where(t < 1, 2 / 3 - t**2 + t**3 / 2, np.where(t < 2, (2 - t) ** 3 / 6, 0))


def matrices(grid):
    """Cubic B-splines of the control points along each axis, (voxels, nodes); points beyond the ends equal the ends."""
    out = []
    for n, nodes, origin, spacing in zip(grid.image_shape, grid.nodes, grid.origin, grid.spacing, strict=True):
        matrix = np.zeros((n, nodes))
        for node in range(-4, nodes + 4):
            matrix[:, min(max(node, 0), nodes - 1)] += spline((np.arange(n) - origin) / spacing - node)
        out.append(matrix)
    return out


def free_form(coefficients, grid):
    return np.einsum("cabd,xa,yb,zd->cxyz", coefficients, *matrices(grid), optimize=True).astype(np.float32)


def adjoint(dense, grid):
    return np.einsum("cxyz,xa,yb,zd->cabd", dense, *matrices(grid), optimize=True)
