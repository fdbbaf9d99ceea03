"""Atlases: images with labels whose warped labels are joined to the segmentation of another image.

A folder holds a working copy of every atlas and one numbering of all structures. A segmentation chooses the atlases
that look most like the image where the structures lie, registers them as a batch, and fuses their labels.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, Self, get_args

import numpy as np
from pydantic import Field, model_validator
from scipy import ndimage, stats

from regweave import io, notices
from regweave.errors import RegweaveError, UsageError
from regweave.io.disk.files import is_file, write_tsv
from regweave.io.disk.outputs import working_folder
from regweave.io.disk.records import INDEX, RecordPart, SafeName, Text, read_record, record_text, write_record
from regweave.io.labels import in_numbering, join_names
from regweave.io.modality import label_values
from regweave.io.transforms.files import write_linear
from regweave.jobs.batch import FILES as WRITTEN, STORE, StudyOptions, batch, file_hashes, is_whole
from regweave.jobs.network import Measured, compared_rows, new_people, own_segmentation
from regweave.jobs.regions import region_table
from regweave.jobs.table import Table, TableColumns, read_table
from regweave.jobs.workers import Outcome, run_tasks, worker_count
from regweave.measures.scores import dice
from regweave.measures.statistics import patients_of
from regweave.model import find_model
from regweave.model.model import Model
from regweave.options import called, described, option
from regweave.registration.initial import initial_affine
from regweave.run.fusion import Fusion, fuse
from regweave.run.read import Reading
from regweave.run.result import FILES
from regweave.spatial.warp import warp_image, warp_labels
from regweave.types import Field as Displacement, Float32Array, LabelMap, Transform, Volume

RECORD, EVALUATION, IMAGE, LABELS = "atlas.json", "evaluation.json", "image.nii.gz", "labels.nii.gz"
NETWORK = "network.nii.gz"
REGISTRATIONS, STARTS = "registrations", "starts"
RESERVED = (STORE, REGISTRATIONS, STARTS, RECORD, EVALUATION)
MAPS = ("labels", "labels2", "labels3")  # Columns of label maps, which may overlap
MANIFEST = TableColumns(
    ("id", "image", "labels"), ("group", *MAPS[1:]), ("image", *MAPS), "each line names an image and its labels",
    RESERVED, 2,
)  # fmt: skip
SHARED = 1_000_000  # First value of voxels that several structures share
IMAGES = TableColumns(("id", "image"), (), ("image",), "each line names an image", RESERVED)
BINS = 32  # Of the joint histogram by which images are compared
MARGIN_MM = 10.0  # Around the structures
LEAST_LOSS = 0.001  # Mean Dice by which an atlas must lower the others to be named


class AtlasRow(RecordPart):
    """One atlas, and the patients that it shows."""

    id: SafeName
    group: Text
    sha256: Text = ""  # of the image that was given, which may be one of a model's training


class Atlas(RecordPart):
    """Images with labels in one numbering, ``atlas.json`` of their folder."""

    format: Literal["regweave-atlas"] = "regweave-atlas"
    modality: Literal["ct", "mr"]
    names: dict[int, Text]
    shared: dict[int, tuple[int, ...]] = Field(default={})  # values of voxels that several structures share, and these
    rows: tuple[AtlasRow, ...]
    folder: Path = Field(default=Path(), exclude=True)

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if len({row.id for row in self.rows}) < len(self.rows) or len(self.rows) < 2:
            raise ValueError("two or more atlases of different names are needed")
        if self.shared.keys() & self.names.keys():
            raise ValueError(f"label values from {SHARED} on are those of shared voxels")
        return self

    @classmethod
    def load(cls, folder: str | Path) -> Atlas:
        """Open a folder that `build_atlas` wrote; E101, E102 or E178 where it is none or is damaged."""
        found = read_record(cls, Path(folder) / RECORD)
        return found.model_copy(update={"folder": Path(folder).absolute()})

    def image(self, name: str) -> Path:
        """Return the file of an image."""
        return self.folder / name / IMAGE

    def labels(self, name: str) -> LabelMap:
        """Read labels, with their names."""
        return replace(io.read_labels(self.folder / name / LABELS, names_path=self.names or None), names=self.names)

    @property
    def layers(self) -> list[list[int]]:
        """Structures in as few lists as needed, so that those of one list never overlap."""
        found: list[list[int]] = []
        for value in self.names:
            others = {v for parts in self.shared.values() if value in parts for v in parts}
            layer = next((one for one in found if not others & {*one}), None)
            if layer is None:
                found.append([value])
            else:
                layer.append(value)
        return found

    def maps(self, labels: LabelMap) -> list[LabelMap]:
        """Return a label map for each of the layers; a shared voxel has its structure in each."""
        if not self.shared:
            return [labels]
        out = []
        for layer in self.layers:
            data = np.where(np.isin(labels.data, layer), labels.data, 0)
            for value, parts in self.shared.items():
                data[labels.data == value] = max({0, *parts} & {0, *layer})
            out.append(replace(labels, data=data))
        return out

    def dice(self, a: LabelMap, b: LabelMap) -> dict[int, float]:
        """Return the Dice of each structure of the second label map."""
        both = zip(self.maps(a), self.maps(b), strict=True)
        return {v: score for one, other in both for v, score in dice(one, other, other.values()).items()}


def build_atlas(
    manifest: Table, output: str | Path, *, label_names: str | Path | Mapping[int, str] | None = None,
    overwrite: bool = False,
) -> Atlas:  # fmt: skip
    """Build a folder of atlases from images with labels.

    Parameters
    ----------
    manifest : path or rows
        List with the columns ``id``, ``image``, ``labels`` and if wanted ``group``, the patient, and ``labels2`` and
        ``labels3``, more label maps, whose structures may overlap with the others.
    output : path
        New folder.
    label_names : path or mapping, optional
        Names of the labels of all maps; by default a file beside each map.
    overwrite : bool
        Replace an earlier folder of atlases.

    Returns
    -------
    Atlas

    Raises E132 for the list, E101 for files, E112 where labels lie on another grid, E131 for empty labels, E130 where
    maps of one image have the same label, E136 where the maps have no structure in common, E172 where some images are
    CT and others are not, or one looks like a label map.
    """
    listed = read_table(manifest, MANIFEST)
    reading = Reading(label_names=label_names)
    names = join_names(reading.names_beside(row[of]) for row in listed.rows for of in MAPS if of in row)
    shared: dict[tuple[int, ...], int] = {}
    kinds: dict[str, str] = {}
    values: dict[str, set[int]] = {}
    with io.prepare_output(output, overwrite=overwrite) as folder:
        for row in listed.rows:
            image, drawn = reading.image(row["image"]), list[LabelMap]()
            for path in (row[of] for of in MAPS if of in row):
                labels = io.read_labels(path, names_path=reading.label_names)
                labels = replace(labels, geometry=io.check_same_grid(image.geometry, labels.geometry, path))
                drawn.append(in_numbering(labels, names, f"'{path}'", "the other atlases"))
                if not labels.values():
                    raise RegweaveError("E131", f"'{path}' holds no label", "draw the structures, or leave it out")
                names |= {v: name for v, name in drawn[-1].names.items() if v not in names}
            kinds[row["id"]] = kind_of(row["id"], image)
            counts = Counter(v for one in drawn for v in one.values())
            if twice := [v for v, n in counts.items() if n > 1]:
                message = f"{row['id']}: several of its label maps have the label {twice[0]}"
                raise RegweaveError("E130", message, "give each structure a value or a name of its own")
            values[row["id"]] = set(counts)
            labels = _joined(drawn, shared)
            (folder / row["id"]).mkdir()
            io.write_image(folder / row["id"] / IMAGE, image)
            io.write_labels(folder / row["id"] / LABELS, labels)
        require_alike(kinds)
        if not set.intersection(*values.values()):
            first = "; ".join(f"{name} has {sorted(found)[:6]}" for name, found in list(values.items())[:3])
            message = f"the label maps have no structure in common: {first}"
            raise RegweaveError("E136", message, "give maps that share some")
        rows = tuple(
            AtlasRow(id=row["id"], group=row.get("group", row["id"]), sha256=io.image_sha256(row["image"]))
            for row in listed.rows
        )
        kept = {v: names.get(v, str(v)) for v in sorted(set().union(*values.values()))}
        found = Atlas(
            modality="ct" if "ct" in kinds.values() else "mr", names=kept, rows=rows,
            shared={value: parts for parts, value in shared.items()},
        )  # fmt: skip
        write_record(folder / RECORD, found.content())
    return found.model_copy(update={"folder": Path(output).absolute()})


def _joined(maps: Sequence[LabelMap], shared: dict[tuple[int, ...], int]) -> LabelMap:
    """Join the label maps of an image; voxels of several structures get a value for them together."""
    out = maps[0]
    for one in maps[1:]:
        parts = {value: of for of, value in shared.items()}
        data = np.where(out.data > 0, out.data, one.data).astype(np.int32)
        both = (out.data > 0) & (one.data > 0)
        for a, b in np.unique(np.stack([out.data[both], one.data[both]]), axis=1).T.tolist():
            if b not in (together := parts.get(a, (a,))):
                value = shared.setdefault(tuple(sorted((*together, b))), SHARED + len(shared))
                data[(out.data == a) & (one.data == b)] = value
        out = LabelMap(data, out.geometry, {**one.names, **out.names})
    return out


def kind_of(name: str, image: Volume) -> str:
    """Return ct, or mr for any other image. Raises E172 for one that looks like a label map."""
    if n := label_values(image):
        message = f"{name} looks like a label map: {n} whole values in flat regions"
        raise RegweaveError("E172", message, "give the scan as the image")
    return "ct" if image.modality == "ct" else "mr"


def require_alike(kinds: Mapping[str, str]) -> None:
    """Raise E172 where some images are CT and others are not."""
    if len(set(kinds.values())) > 1:
        fewer = min(("ct", "mr"), key=list(kinds.values()).count)
        named = ", ".join(name for name, kind in kinds.items() if kind == fewer)
        words = {"ct": "CT and the others are not", "mr": "no CT and the others are"}[fewer]
        raise RegweaveError("E172", f"{named}: these images are {words}", "give images of one kind")


@dataclass(frozen=True, kw_only=True)
class AtlasOptions(StudyOptions):
    """How atlases are chosen, registered and fused."""

    top: int = option(8, "Atlases that are registered to an image: those most like it.", panel="Method", metavar="N")
    fusion: Fusion = option("joint", "Way to join the labels: joint, vote or staple.", panel="Method", metavar="WORD")
    model: str | Path | None = option(
        None, "Model for the registrations; its own segmentation is written too. A file or a shipped name.",
        panel="Method",
        typed=Path | None, metavar="MODEL", complete="model",
    )  # fmt: skip
    resume: bool = option(False, "Continue what was interrupted.", flags=("--resume",))


@dataclass(frozen=True, kw_only=True)
class SegmentJob(AtlasOptions):
    """Images to segment with atlases."""

    images: Table = field(kw_only=False, metadata=described(
        "Image, or a list with the columns ``id`` and ``image``.", typed=Path, metavar="IMAGE|LIST.csv",
    ))  # fmt: skip
    atlas: str | Path = field(kw_only=False, metadata=described(
        "Folder that ``regweave atlas build`` wrote.", typed=Path, metavar="ATLAS", flags=("--atlas",),
    ))  # fmt: skip
    output: str | Path = field(kw_only=False, metadata=described(
        "Folder for the results, one folder an image.", typed=Path, metavar="FOLDER", flags=("--output", "-o"),
    ))  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class EvaluateJob(AtlasOptions):
    """Leave-one-out evaluation of atlases."""

    atlas: str | Path = field(kw_only=False, metadata=described(
        "Folder that ``regweave atlas build`` wrote.", typed=Path, metavar="ATLAS"
    ))  # fmt: skip
    output: str | Path = field(kw_only=False, metadata=described(
        "Folder for the work and the scores.", typed=Path, metavar="FOLDER", flags=("--output", "-o"),
    ))  # fmt: skip


@called(SegmentJob)
def segment(job: SegmentJob) -> list[dict[str, Any]]:
    """Segment images by fused labels of atlases.

    Each image gets a folder with ``labels.nii.gz``, ``labels.tsv``, ``agreement.nii.gz``, the share of the atlases that
    have the chosen label, ``posterior.nii.gz``, its share of the weighted votes, and the page ``index.html``. With a
    model that segments, ``network.nii.gz`` is its own segmentation, and the page compares both.

    Returns
    -------
    list of dict
        A row for each structure of each image: ``id``, ``label``, ``name``, ``voxels``, ``volume_ml`` and
        ``estimated_dice``, by reverse classification; an image that failed has one row with its ``error``. With a model
        that segments also ``network_ml``, ``dice_between`` both, and ``better`` with the mean ``atlas_dice`` and
        ``network_dice`` of the people that ``measured_on`` counts.

    Raises E101, E102 and E178 for the folder of atlases, E132 for the list, E150 where the output is taken.
    """
    atlas, images = Atlas.load(job.atlas), job.images
    if isinstance(images, str | Path) and Path(images).suffix.lower() != ".csv":
        images = [{"id": "image", "image": str(images)}]
    every = [row.id for row in atlas.rows]
    targets = {row["id"]: Target(row["image"], every) for row in read_table(images, IMAGES).rows}
    rows: list[dict[str, Any]] = []
    for name, outcome in _segmented(targets, atlas, job).items():
        found = [{"error": outcome.error}] if outcome.error is not None else outcome.value["structures"]
        rows += [{"id": name, **row} for row in found]
    return rows


@dataclass(frozen=True)
class Target:
    """Image to segment, the atlases that may be used, and its true labels where they are known."""

    image: str
    atlases: Sequence[str]
    truth: str | None = None


def _segmented(targets: Mapping[str, Target], atlas: Atlas, job: SegmentJob | EvaluateJob) -> dict[str, Outcome]:
    """Rank, register and fuse; every step is resumed from what is in the folder."""
    if job.top < 1:
        raise UsageError("E192", f"--top is {job.top}", "give 1 or more")
    if job.fusion not in get_args(Fusion):
        raise UsageError("E192", f"unknown fusion {job.fusion!r}", f"use {', '.join(get_args(Fusion))}")
    worker_count(job.workers, None)
    folder = Path(job.output).absolute()
    path = atlas.folder / EVALUATION
    known = read_record(Measured, path).content() if is_file(path) else None
    model = None if job.model is None else find_model(job.model)
    segments = None if model is None else {"path": str(model), "sha256": io.sha256(model)}
    with working_folder(folder, STORE, "segmentations", resume=job.resume):
        ranked = run_tasks(
            [(name, _task(one, atlas, one.atlases)) for name, one in targets.items()], rank_atlases,
            workers=job.workers, store=folder / STORE,
        )  # fmt: skip
        found = {outcome.key: outcome for outcome in ranked if outcome.error is not None}
        chosen, rows, failed = dict[str, list[str]](), list[dict[str, Any]](), dict[str, str]()
        (folder / STARTS).mkdir(exist_ok=True)
        for name, fits in ((outcome.key, outcome.value) for outcome in ranked if outcome.key not in found):
            chosen[name] = sorted(fits, key=lambda one: -fits[one]["likeness"])[: job.top]
            for one in chosen[name]:
                start = folder / STARTS / f"{name}--{one}.tfm"
                write_linear(start, np.array(fits[one]["matrix"]))
                source = {"fixed": targets[name].image, "moving": atlas.image(one), "init": start}
                rows.append({"id": start.stem, **source, "moving_labels": atlas.folder / one / LABELS})
        if rows:
            with notices.muted():
                done = batch(
                    rows, folder / REGISTRATIONS, write=("warped", "labels", "inverse"), preset=job.preset,
                    model=job.model, device=job.device, workers=job.workers, on_progress=job.on_progress,
                    label_names=atlas.names, resume=(folder / REGISTRATIONS).exists(),
                )  # fmt: skip
            failed = done.failures
        tasks = []
        for name, best in chosen.items():
            if not (used := [one for one in best if f"{name}--{one}" not in failed]):
                found[name] = Outcome(name, None, failed[f"{name}--{best[0]}"])
                continue
            words: dict[str, Any] = {"folder": str(folder), "name": name, "fusion": job.fusion, "measured": known}
            # Another registration is another fusion.
            warped = [folder / REGISTRATIONS / f"{name}--{one}" / FILES["warped"] for one in used]
            words |= {"registered": list(map(io.sha256, warped)), "names": {**atlas.names}, "model": segments}
            tasks.append((name, {**_task(targets[name], atlas, used), **words}))
        fused = run_tasks(
            tasks, fuse_labels, workers=job.workers, store=folder / STORE, whole=partial(is_whole, folder)
        )
    found |= {outcome.key: outcome for outcome in fused}
    return {name: found[name] for name in targets}


def _task(target: Target, atlas: Atlas, used: Sequence[str]) -> dict[str, Any]:
    """Arguments of a worker; hashes of files are among them, so that a changed file is another task."""
    files = (path for one in used for path in (atlas.image(one), atlas.folder / one / LABELS))
    hashes = [io.image_sha256(target.image), *map(io.sha256, files)]
    return {
        "image": target.image, "truth": target.truth, "atlas": str(atlas.folder), "used": list(used), "sha256": hashes
    }  # fmt: skip


def rank_atlases(task: Mapping[str, Any]) -> dict[str, Any]:
    """Fit each atlas to an image by an affine map, and measure how alike both are where the structures lie."""
    atlas, found = Atlas.load(task["atlas"]), {}
    with notices.muted():
        target = Reading().image(task["image"])
        if (kind := kind_of(f"'{task['image']}'", target)) != atlas.modality:
            message = f"'{task['image']}' is {kind.upper()}, the atlases are {atlas.modality.upper()}"
            raise RegweaveError("E172", message, "use atlases of the same kind of image")
        for name in task["used"]:
            moving, labels = io.read_image(atlas.image(name)), atlas.labels(name)
            io.check_same_grid(moving.geometry, labels.geometry, atlas.folder / name / LABELS)
            matrix = initial_affine(target, moving, "affine")
            start = Transform(Displacement.zero(target.geometry), matrix)
            where = _box(warp_labels(labels, start))
            likeness = mutual_information(target.data[where], warp_image(moving, start).data[where])
            found[name] = {"matrix": matrix.tolist(), "likeness": likeness}
    return found


def _box(labels: LabelMap) -> tuple[slice, ...]:
    found = ndimage.find_objects((labels.data > 0).astype(np.uint8))
    if not found:
        return (slice(None),) * 3
    room = np.ceil(MARGIN_MM / labels.geometry.spacing_mm).astype(int).tolist()
    return tuple(slice(max(0, s.start - more), s.stop + more) for s, more in zip(found[0], room, strict=True))


def mutual_information(a: Float32Array, b: Float32Array) -> float:
    """Return the normalised mutual information of two images, from 1 for independent ones to 2 for equal ones."""
    joint = np.histogram2d(a.ravel(), b.ravel(), BINS)[0]
    joint /= joint.sum()

    def entropy(share: Any) -> float:
        present = share[share > 0]
        return float(-(present * np.log(present)).sum())

    both = entropy(joint)
    return (entropy(joint.sum(axis=0)) + entropy(joint.sum(axis=1))) / both if both > 0 else 1.0


def fuse_labels(task: Mapping[str, Any]) -> dict[str, Any]:
    """Fuse the warped labels of an image, write its folder, and return its structures; with the truth their Dice."""
    from regweave.report.segmentation import write_page  # noqa: PLC0415 (pages import what jobs write)

    atlas, used = Atlas.load(task["atlas"]), task["used"]
    folder, name = Path(task["folder"]), task["name"]
    places = [folder / REGISTRATIONS / f"{name}--{one}" for one in used]
    with notices.muted():
        target = Reading().image(task["image"])
        images = [io.read_image(place / FILES["warped"]) for place in places]
        warped = [io.read_labels(place / FILES["labels"], names_path=atlas.names) for place in places]
        fused = fuse(target, images, warped, task["fusion"])
        labels = replace(fused.labels, names=atlas.names, geometry=target.geometry)
        estimates = _estimates(atlas, used, places, labels)
        network = None if task["model"] is None else own_segmentation(task["model"], target, atlas.names)
    known = None if task["measured"] is None else Measured.model_validate(task["measured"])
    maps = atlas.maps(labels)
    rows = [row for one in maps for row in region_table(one)]
    if network is not None:
        rows = compared_rows(rows, zip(maps, atlas.layers, strict=True), network, known)
    for row in rows:
        found = row["estimated_dice"] = estimates.get(row["label"])
        if found is not None and known is not None:
            row["estimated_dice"] = float(np.clip(known.slope * found + known.intercept, 0.0, 1.0))
    with io.prepare_output(folder / name, overwrite=True) as part:
        for number, one in enumerate(maps, start=1):
            io.write_labels(part / (LABELS if number == 1 else f"labels{number}.nii.gz"), one)
        for word, volume in (("agreement", fused.agreement), ("posterior", fused.posterior)):
            io.write_image(part / f"{word}.nii.gz", volume)
        if network is not None:
            io.write_labels(part / NETWORK, network.labels)
        with (part / "labels.tsv").open("w", encoding="utf-8", newline="") as stream:
            columns = ["index", *list(rows[0])[1:]] if rows else ["index", "name"]
            write_tsv(stream, [{"index": row["label"], **row} for row in rows], columns)
        write_page(part / INDEX, name, target, labels, None if network is None else network.labels, rows)
    content: dict[str, Any] = {"structures": rows, "used": used, WRITTEN: file_hashes(folder / name)}
    if task["truth"] is not None:
        truth = replace(io.read_labels(task["truth"], names_path=atlas.names), names=atlas.names)
        content["dice"] = {str(v): score for v, score in atlas.dice(labels, truth).items()}
        content["estimates"] = {str(v): score for v, score in estimates.items()}
        if network is not None:
            content["network"] = {
                str(v): score
                for one in atlas.maps(truth)
                for v, score in dice(network.labels, one, one.values()).items()
                if v in network.left_out
            }
        content["alone"] = [float(np.mean(list(atlas.dice(one, truth).values()))) for one in warped]
        votes = []
        for out in (None, *range(len(used))):  # all atlases, then all but one
            kept = [k for k in range(len(warped)) if k != out] or [0]
            voted = fuse(target, [images[k] for k in kept], [warped[k] for k in kept], "vote")
            votes.append(float(np.mean(list(atlas.dice(voted.labels, truth).values()))))
        content["vote"], content["vote_without"] = votes[0], votes[1:]
    return content


def _estimates(atlas: Atlas, used: Sequence[str], places: Sequence[Path], labels: LabelMap) -> dict[int, float]:
    """Carry a segmentation back to each atlas, and return the mean Dice with the atlas' own labels by structure.

    References
    ----------
    Valindria et al. (2017), "Reverse classification accuracy".
    """
    found: dict[int, list[float]] = {}
    for name, place in zip(used, places, strict=True):
        drawn = atlas.labels(name)
        back = warp_labels(labels, io.read_transform(place / FILES["inverse"], drawn.geometry))
        for value, score in atlas.dice(back, drawn).items():
            found.setdefault(value, []).append(score)
    return {value: float(np.mean(scores)) for value, scores in found.items()}


@called(EvaluateJob)
def evaluate_atlas(job: EvaluateJob) -> dict[str, Any]:
    """Segment every atlas with the others, and compare with its own labels.

    Atlases of the same group are left out together. The relation of the estimated to the measured Dice is kept in the
    folder of the atlases, and corrects later estimates.

    Returns
    -------
    dict
        ``structures`` with their mean Dice, beside that of the model's network on the people that are new to it;
        ``dice``, ``vote``, ``best_single`` and ``most_alike`` over all people;
        ``lowering``, the atlases that lower the vote of the others; ``estimate`` with ``rho``; ``failed``.

    Raises E134 where no atlas is left for one, E135 where none could be segmented; and as `segment`.
    """
    atlas = Atlas.load(job.atlas)
    groups = {row.id: set(patients_of(row.group)) for row in atlas.rows}
    targets = {
        name: Target(
            str(atlas.image(name)), [other for other in groups if not groups[name] & groups[other]],
            str(atlas.folder / name / LABELS),
        )
        for name in groups
    }  # fmt: skip
    alone = [name for name, one in targets.items() if not one.atlases]
    if alone:
        message = f"the group of '{alone[0]}' has all atlases: none is left to segment it with"
        raise RegweaveError("E134", message, "add atlases of other patients")
    found = _segmented(targets, atlas, job)
    done = {name: outcome.value for name, outcome in found.items() if outcome.error is None}
    if not done:
        raise RegweaveError("E135", f"no atlas could be segmented: {next(iter(found.values())).error}", "look at it")
    by_structure, pairs = dict[str, list[float]](), list[tuple[float, float]]()
    effect: dict[str, list[float]] = {name: [] for name in groups}
    for one in done.values():
        for value, score in one["dice"].items():
            by_structure.setdefault(value, []).append(score)
            if value in one["estimates"]:
                pairs.append((one["estimates"][value], score))
        for name, without in zip(one["used"], one["vote_without"], strict=True):
            effect[name].append(one["vote"] - without)
    compared: dict[str, dict[str, Any]] = {}
    if job.model is not None:
        listed = [(row.id, row.sha256, row.group) for row in atlas.rows]
        new = [done[n] for n in new_people(Model.load(job.model), listed) if n in done]
        for v in by_structure:
            both = [
                (one["dice"][v], one["network"][v]) for one in new if v in one.get("network", {}) and v in one["dice"]
            ]
            if both:
                mine, theirs = np.mean(both, axis=0).tolist()
                compared[v] = {"atlas": mine, "network": theirs, "people": len(both)}
    structures = [
        {"label": int(v), "name": atlas.names.get(int(v), v), "people": len(scores), "dice": float(np.mean(scores))}
        for v, scores in sorted(by_structure.items(), key=lambda pair: int(pair[0]))
    ]
    content: dict[str, Any] = {
        "fusion": job.fusion, "top": job.top,
        "structures": [{**row, "compared": compared.get(str(row["label"]))} for row in structures],
        "dice": float(np.mean([np.mean(list(one["dice"].values())) for one in done.values()])),
        "vote": float(np.mean([one["vote"] for one in done.values()])),
        "best_single": float(np.mean([max(one["alone"]) for one in done.values()])),
        "most_alike": float(np.mean([one["alone"][0] for one in done.values()])),
        "lowering": {n: float(np.mean(e)) for n, e in effect.items() if e and np.mean(e) < -LEAST_LOSS},
        "failed": {name: outcome.error for name, outcome in found.items() if outcome.error is not None},
    }  # fmt: skip
    x, y = np.array(pairs).T
    rho = float(stats.spearmanr(x, y).statistic) if len(pairs) > 2 and x.std() > 0 and y.std() > 0 else 0.0
    slope = float(np.cov(x, y)[0, 1] / x.var(ddof=1)) if rho > 0 else 0.0
    line = {"slope": slope, "intercept": float(y.mean() - slope * x.mean()), "rho": rho}
    content["estimate"] = {**line, "pairs": len(pairs)}
    write_record(Path(job.output) / EVALUATION, content)
    kept = {"dice": {str(row["label"]): row["dice"] for row in structures}, "compared": compared}
    sha256 = "" if job.model is None else io.sha256(find_model(job.model))
    with io.owned_path(atlas.folder / EVALUATION) as part:
        part.write_text(record_text({**line, **kept, "model": sha256}), encoding="utf-8")
    return content
