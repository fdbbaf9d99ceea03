"""Templates: the mean intensity and shape of several images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy import linalg, ndimage

from regweave import io, notices
from regweave.errors import RegweaveError, UsageError
from regweave.io.disk.records import record_text, write_record
from regweave.io.labels import join_names, list_names
from regweave.io.modality import OUTSIDE_HU, Stated
from regweave.io.transforms.files import write_linear
from regweave.jobs.atlas import kind_of, require_alike
from regweave.jobs.batch import STORE, StudyOptions, batch
from regweave.jobs.table import Table, TableColumns, read_table
from regweave.options import called, described, option
from regweave.registration.initial import initial_affine
from regweave.run.fusion import fuse
from regweave.run.memory import allowed_threads
from regweave.run.read import Reading
from regweave.run.result import FILES
from regweave.spatial.voxels import default_window
from regweave.spatial.warp import chained, invert, warp_image, warp_labels
from regweave.threads import kernel_threads, side_by_side
from regweave.types import Ends, Field, Float64Array, Geometry, Transform, Volume

COLUMNS = TableColumns(
    ("id", "image"), ("labels", "mask"), ("image", "labels", "mask"), "each line names an image", least=2
)
STILL = 0.005  # Relative change of the template below which no round follows
MOST_BIAS = 0.02  # Voxels of the mean field at which its inverse is applied no more
CORRECTIONS = 6


@dataclass(frozen=True, kw_only=True)
class TemplateJob(StudyOptions):
    """Template of a list of images."""

    images: Table = field(kw_only=False, metadata=described(
        "List with the columns ``id``, ``image`` and if wanted ``labels`` and ``mask``.", typed=Path,
        metavar="LIST.csv",
    ))  # fmt: skip
    output: str | Path = field(kw_only=False, metadata=described(
        "Folder for the template, the transforms and the work.", typed=Path, metavar="FOLDER",
        flags=("--output", "-o"),
    ))  # fmt: skip
    rounds: int = option(4, "Most rounds; fewer where the template changes no more.", panel="Method", metavar="N")
    sharpen: float = option(0.5, "Share of the fine detail that is added to the mean.", panel="Method", metavar="X")
    resume: bool = option(False, "Continue what was interrupted.", flags=("--resume",))


@dataclass(frozen=True)
class _Person:
    """One image of the list; ``scale`` brings images of an arbitrary scale to one."""

    id: str
    row: dict[str, str]
    image: Volume
    scale: float
    structures: frozenset[int]  # label values, in the numbering of the list


@called(TemplateJob)
def build_template(job: TemplateJob) -> dict[str, Any]:
    """Build the unbiased mean of images.

    Each round registers all images to the template, moves it to their mean shape by the inverse of the mean field, and
    averages the images there, each interpolated once. The order of the list does not change a bit.

    The folder gets ``template.nii.gz``, ``labels.nii.gz`` by a vote where all images have labels, and for each image
    ``transforms/ID.h5``, which brings it onto the template, and ``transforms/ID_inverse.h5``. Structures are matched by
    their names, which ``labels.json`` holds.

    Returns
    -------
    dict
        ``rounds`` with the relative ``change`` of the template and the ``bias``, the mean field in voxels that is left.

    Raises
    ------
    RegweaveError
        E132 for the list, E101 for files, E112 for labels on another grid, E130 for names that contradict each other,
        E135 where a registration failed, E136 for labels that no other image has, E150 where the output is taken, E172
        where some images are CT and others not.
    """
    listed = read_table(job.images, COLUMNS)
    if job.rounds < 1 or not 0 <= job.sharpen <= 5:
        raise UsageError("E192", f"--rounds is {job.rounds}, --sharpen {job.sharpen:g}", "give 1 or more, and 0 to 5")
    rows = sorted((dict(row) for row in listed.rows), key=lambda row: (io.image_sha256(row["image"]), row["id"]))
    folder, done, reading = Path(job.output), list[dict[str, float]](), Reading()
    with (
        kernel_threads(allowed_threads(job.workers)),
        io.working_folder(folder, STORE, "a template", resume=job.resume),
    ):
        named = [reading.names_beside(row["labels"]) for row in rows if "labels" in row]
        reading = replace(reading, numbering=join_names(named))
        people = [_read(row, reading) for row in rows]
        for one in people:
            others = set[int]().union(*(other.structures for other in people if other is not one))
            if one.structures and others and not others & one.structures:
                message = f"'{one.row['labels']}' shares no structure with the other label maps: it shows "
                message += list_names(reading.numbering or {}, sorted(one.structures), 6)
                raise RegweaveError("E136", message, "give maps of the same structures, or leave its labels out")
        require_alike({one.id: kind_of(one.id, one.image) for one in people})
        grid, starts = _first_space(people)
        flat = [Transform(Field.zero(grid), matrix) for matrix in starts]
        template, maps = _mean(people, flat, grid, job.sharpen), flat
        for number in range(1, job.rounds + 1):
            maps = _registered(people, starts, template, folder / f"round{number}", job)
            maps, bias = unbiased(maps, grid)
            before, template = template, _mean(people, maps, grid, job.sharpen)
            change = float(np.abs(template.data - before.data).mean() / np.abs(before.data).mean())
            done.append({"change": change, "bias": bias})
            if change < STILL:
                break
        _write(people, maps, template, folder, reading)
        write_record(folder / "template.json", {"rounds": done, "images": [one.id for one in people]})
    return {"rounds": done}


def _read(row: dict[str, str], reading: Reading) -> _Person:
    image = reading.image(row["image"])
    labels = reading.labels(row.get("labels"), image.geometry)
    assert image.modality is not None
    low, high = (0.0, 1.0) if image.modality == "ct" else default_window(image.data, image.modality)
    shown = frozenset(() if labels is None else labels.values())
    return _Person(row["id"], row, image, 1.0 / max(high - min(low, 0.0), 1e-9), shown)


def _first_space(people: Sequence[_Person]) -> tuple[Geometry, list[Float64Array]]:
    """Return a grid of mean place and size, and the matrices from it to the images.

    The first image by its hash is only where the affine maps begin: their mean is taken out.
    """
    first = people[0].image
    others = side_by_side(lambda one: initial_affine(first, one.image, "affine"), people[1:])
    maps = [np.eye(4), *others]
    mean = np.real(linalg.expm(np.mean([linalg.logm(one) for one in maps], axis=0)))
    grow = np.maximum(np.linalg.norm(mean[:3, :3], axis=0), 1.0)
    x, y, z = np.ceil(np.array(first.geometry.shape) * grow).astype(int).tolist()
    centre = mean[:3, :3] @ first.geometry.points((np.array(first.geometry.shape) - 1) / 2.0) + mean[:3, 3]
    affine = first.geometry.affine.copy()
    affine[:3, 3] = centre - affine[:3, :3] @ ((np.array([x, y, z]) - 1) / 2.0)
    return Geometry((x, y, z), affine), [one @ np.linalg.inv(mean) for one in maps]


def _registered(
    people: Sequence[_Person], starts: Sequence[Float64Array], template: Volume, folder: Path, job: TemplateJob
) -> list[Transform]:
    folder.mkdir(exist_ok=True)
    io.write_image(folder / "template.nii.gz", template)
    rows = []
    for one, start in zip(people, starts, strict=True):
        write_linear(folder / f"{one.id}.tfm", start)
        source = {"fixed": folder / "template.nii.gz", "moving": one.row["image"], "init": folder / f"{one.id}.tfm"}
        rows.append({"id": one.id, **source, "moving_mask": one.row.get("mask")})
    modality: Stated = "ct" if template.modality == "ct" else "mr"
    with notices.muted():
        found = batch(
            rows, folder / "registrations", write=("transform",), preset=job.preset, device=job.device,
            workers=job.workers, on_progress=job.on_progress, resume=(folder / "registrations").exists(),
            fixed_modality=modality, moving_modality=modality,
        )  # fmt: skip
    if found.failures:
        name, text = next(iter(found.failures.items()))
        raise RegweaveError("E135", f"{name} cannot be registered: {text}", "repair it or take it off the list")
    where = folder / "registrations"
    return [io.read_transform(where / one.id / FILES["transform"], template.geometry) for one in people]


def unbiased(maps: Sequence[Transform], grid: Geometry) -> tuple[list[Transform], float]:
    """Let maps from a template begin where their mean is the identity; return them and the longest mean shift left.

    The mean of the displacements is inverted and applied first, a few times; its length is in voxels.
    """
    done = list(maps)
    for left in range(CORRECTIONS, -1, -1):
        shift = np.mean([_total(one, grid) for one in done], axis=0).astype(np.float32)
        bias = float(np.sqrt((shift**2).sum(axis=0)).mean() / grid.spacing_mm.mean())
        if bias <= MOST_BIAS or left == 0:
            break
        back = invert(Transform(Field(shift, grid)), grid)[0]
        done = side_by_side(partial(_after, back, grid), done)
    return done, bias


def _after(first: Transform, grid: Geometry, then: Transform) -> Transform:
    return chained([first, then], grid)


def _total(one: Transform, grid: Geometry) -> Float64Array:
    """Displacement (3, X, Y, Z) of a map on a grid, its matrix included."""
    points = grid.points(np.moveaxis(np.indices(grid.shape, dtype=np.float64), 0, -1))
    return np.moveaxis(one(points) - points, -1, 0)


def _mean(people: Sequence[_Person], maps: Sequence[Transform], grid: Geometry, sharpen: float) -> Volume:
    """Average the images on the template, each interpolated once, and add a share of the fine detail."""
    outside = OUTSIDE_HU if people[0].image.modality == "ct" else 0.0
    total = np.zeros(grid.shape)
    for one, path in zip(people, maps, strict=True):
        total += one.scale * warp_image(one.image, path, fill=io.fill_value(one.image)).data.astype(np.float64)
    mean = total / len(people)
    if sharpen:
        detail = mean - ndimage.gaussian_filter(mean, 1.0, mode="nearest")
        mean = np.clip(mean + sharpen * detail, min(outside, float(mean.min())), float(mean.max()))
    return Volume(mean.astype(np.float32), grid, people[0].image.modality)


def _write(
    people: Sequence[_Person], maps: Sequence[Transform], template: Volume, folder: Path, reading: Reading
) -> None:
    with io.owned_path(folder / "template.nii.gz") as part:
        io.write_image(part, template)
    (folder / "transforms").mkdir(exist_ok=True)
    labels = []
    for one, path in zip(people, maps, strict=True):
        there = Transform(path.field, path.affine, Ends("fixed_to_moving", template.geometry, one.image.geometry))
        io.write_transform(folder / "transforms" / f"{one.id}.h5", there)
        io.write_transform(folder / "transforms" / f"{one.id}_inverse.h5", invert(there)[0])
        if (own := reading.labels(one.row.get("labels"), one.image.geometry)) is not None:
            labels.append(warp_labels(own, path))
    if len(labels) == len(people):
        fused = fuse(template, [template] * len(labels), labels, "vote").labels
        with io.owned_path(folder / "labels.nii.gz") as part:
            io.write_labels(part, fused)
        if fused.names:
            with io.owned_path(folder / "labels.json") as part:
                part.write_text(record_text({str(v): name for v, name in fused.names.items()}), encoding="utf-8")
