"""Segmentation by a model's own network beside that of atlases, and which of them is better for which structure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from pydantic import Field

from regweave.io.disk.records import Count, Number, RecordPart, Text
from regweave.io.labels import match_structures
from regweave.jobs.regions import region_table
from regweave.measures.scores import dice
from regweave.measures.statistics import patients_of
from regweave.model.model import Model
from regweave.run.resolve import predictor_of
from regweave.types import Geometry, LabelMap, Volume

LEVEL = 0.005  # Mean Dice by which one must be above the other to be better


class Compared(RecordPart):
    """Mean Dice of a structure by atlases and by a network, of the same people, whom the network has not seen."""

    atlas: Number
    network: Number
    people: Count


class Measured(RecordPart):
    """Results of leave-one-out: Dice by structure, and the line from the estimate of a Dice to the measured one."""

    slope: Number
    intercept: Number
    rho: Number
    dice: dict[int, Number] = Field(default={})
    model: Text = ""  # SHA-256 of the model whose network was compared
    compared: dict[int, Compared] = Field(default={})


@dataclass(frozen=True)
class OwnSegmentation:
    """Segmentation of an image by a model's own network."""

    labels: LabelMap  # in the numbering of the atlases
    left_out: Mapping[int, float | None]  # structures of the network, and their Dice on left-out training images
    images: int  # left-out images
    model: str  # SHA-256

    def better(self, value: int, known: Measured | None) -> dict[str, Any]:
        """Return which is better for a structure, atlas or network, the Dice of both, and what these were measured on.

        The same people decide, whom the network has not seen. Where there are none, leave-one-out of the atlases is
        compared with the Dice of images that were left out when the model was trained.
        """
        pair = None if known is None or known.model != self.model else known.compared.get(value)
        network = self.left_out.get(value)
        atlas, on = None if known is None else known.dice.get(value), f"{self.images} images left out of training"
        if pair is not None:
            atlas, network, on = pair.atlas, pair.network, f"{pair.people} people new to the model"
        elif value not in self.left_out:
            return {"better": "atlas", "atlas_dice": atlas, "network_dice": None, "measured_on": "not in the model"}
        elif atlas is None:
            on = "nothing: run atlas evaluate with this model"
        elif network is None:
            on = "nothing: no atlas is surely new to the model, and it has no Dice of left-out images"
        word = "unknown"
        if atlas is not None and network is not None:
            word = "level" if abs(atlas - network) < LEVEL else "atlas" if atlas > network else "network"
        return {"better": word, "atlas_dice": atlas, "network_dice": network, "measured_on": on}


def own_segmentation(given: Mapping[str, str], image: Volume, names: Mapping[int, str]) -> OwnSegmentation | None:
    """Segment an image by the network of a model, given by path and hash, or return None where it has none."""
    model = Model.load(given["path"])
    predictor = predictor_of(model)
    if predictor is None:
        return None
    classes = np.array(predictor.classes).reshape(-1, 1, 1)
    every = LabelMap(classes, Geometry(classes.shape, np.eye(4)), model.class_names)
    match = match_structures(every, names, "the model", "the atlases")
    record = predictor.save().record
    scores: Mapping[str, Any] = record.get("dice", {})
    labels = match.apply(replace(predictor.labels(image), names=model.class_names))
    left_out = {there: scores.get(str(here)) for here, there in match.to.items()}
    return OwnSegmentation(
        replace(labels, names=dict(names)), left_out, int(record.get("n_images", 0)), given["sha256"]
    )


def compared_rows(
    rows: Sequence[dict[str, Any]], maps: Iterable[tuple[LabelMap, Sequence[int]]], own: OwnSegmentation,
    known: Measured | None,
) -> list[dict[str, Any]]:  # fmt: skip
    """Return the structures of atlases and network: volumes of both, Dice between them, and which is better.

    ``maps`` are those of the atlases with their structures, ``rows`` the table of them.
    """
    ours, theirs = ({row["label"]: row for row in table} for table in (rows, region_table(own.labels)))
    found = {v: score for one, layer in maps for v, score in dice(one, own.labels, layer).items()}
    out = []
    for value, between in sorted((v, score) for v, score in found.items() if not np.isnan(score)):
        row = ours.get(value) or {**theirs[value], "voxels": 0, "volume_ml": 0.0}
        volume = theirs[value]["volume_ml"] if value in theirs else 0.0
        out.append({**row, "network_ml": volume, "dice_between": between, **own.better(value, known)})
    return out


def new_people(model: Model, images: Sequence[tuple[str, str, str]]) -> list[str]:
    """Return the ids of images, given with hash and group, that the record of a model excludes from its training.

    None is excluded where the record lacks the hashes of its images.
    """
    record = model.training
    if not record.pairs or not set(record.predictor_groups) <= set(record.groups):
        return []
    known = {digest for files in record.pairs.values() for digest in files.values()}
    patients = {name for group in record.trained_on for name in patients_of(group)}
    return [n for n, digest, group in images if digest and digest not in known and not patients & {*patients_of(group)}]
