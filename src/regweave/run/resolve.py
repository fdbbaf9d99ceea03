"""Resolved configuration of one run: settings, bank, weights, predictor and classes.

Everything that follows from a request and from the images is decided here once and handed on; what does not fit is
refused before anything is computed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeVar

import numpy as np

from regweave import notices
from regweave.config.settings import BANKS, Settings, with_refinement_of_preset
from regweave.errors import RegweaveError, UsageError
from regweave.io.labels import StructureMatch, list_names, match_structures, real_names
from regweave.io.modality import BankName, Stated, bank_of
from regweave.model import shipped_models
from regweave.model.domain import ImageFacts, volumes_ml
from regweave.model.model import Model
from regweave.predictors import Predictor, maps_from_labels
from regweave.registration.guides import COARSE, FINE, usual_weights
from regweave.registration.initial import STRUCTURES
from regweave.run.memory import check_memory
from regweave.run.read import Inputs, Reading
from regweave.types import Image, ImagePair, LabelMap, Volume, WeightTable

R = TypeVar("R", bound=Reading)
FINER = 2.0
"""Times that the voxels of an image may be finer than those of a predictor's training images: beyond, maps are off."""

LISTED = 6  # classes of a model that a message lists
HALF = 0.5  # probability from which on a voxel is of a structure
LEAST_OVERLAP = 0.5  # mean Dice of a model's segmentation and given labels below which either is doubtful
VOLUMES_APART = 4.0  # times that a label may be larger or smaller than what the model segments under its number

ClassesFrom = Literal["labels", "predicted", "none"]
"""What told the classes that choose the weights: the moving labels, the model's class predictor, or nothing."""


@dataclass(frozen=True)
class Recipe:
    """All decisions of one registration."""

    settings: Settings  # settings of the run, those of the model where it brings them
    schedule: Settings  # levels and the bank for the modalities of the pair
    weights: WeightTable  # w of the finest level and of the refinement
    coarse: WeightTable | None = None  # w of the other levels, where a model acts at the finest one only
    model: Model | None = None  # where the weights come from
    predictor: Predictor | None = None  # class predictor of the model
    match: StructureMatch | None = None  # which moving label is which class of the model
    blind: WeightTable | None = None  # w for pairs without moving labels, where training found another
    # the model's structure maps are left out, because the images are far finer than in training
    without_maps: bool = False

    @classmethod
    def resolve(
        cls, settings: Settings, inputs: Inputs, model: Model | None = None,
        metrics: Mapping[str, float] | None = None,
    ) -> Recipe:  # fmt: skip
        """Decide what runs on a pair of images, or refuse it; ``metrics`` are weights of members by hand."""
        schedule = settings.for_bank(bank_for(inputs, model))
        weights = _weights(settings, schedule, model, metrics)
        # A model that acts at the finest level only leaves the uniform bank to the others.
        coarse = None if model is None or model.levels == "all" else schedule.start_weights(model.weights.pairwise)
        predictor = predictor_of(model)
        blind = None if model is None else model.weights_without_mask
        labels, matched = inputs.moving.labels, None
        if model is not None and labels is not None and len(model.weights.classes) > 1:
            known = {c: model.class_names.get(c, str(c)) for c in model.weights.classes if c != 0}
            matched = match_structures(labels, known, "the moving labels", "the model")
            _doubt_numbers(matched, model)
        if model is not None:
            _doubt_domain(model, inputs)
        found = cls(settings, schedule, weights.lacking(FINE.name), coarse, model, predictor, matched, blind)
        if predictor is None and found.compares_maps:
            message = "the model weighs what its class predictor makes out in the images, and has none"
            raise RegweaveError("E170", message, "train it again with `regweave train`")
        trained, finest = getattr(predictor, "trained_mm", None), float(inputs.fixed.geometry.spacing_mm.min())
        if trained is not None and trained > FINER * finest and found.compares_maps:
            notices.warn(
                f"W238: the voxels of the fixed image are {finest:.2g} mm wide, those of the model's training images "
                f"{trained:.2g} mm: its structure maps and the smoothness that goes with them are left out; to use "
                "them, register copies with voxels as the model knows them"
            )
            # The learned parts of the refinement are left out too.
            plain, unmasked = (
                table and replace(schedule.without_map_members(table), stiffness=None) for table in (weights, blind)
            )
            assert plain is not None
            settings = with_refinement_of_preset(settings)
            found = replace(found, settings=settings, weights=plain, blind=unmasked, without_maps=True)
        structures = len(found.weights.classes) - 1 if found.compares_maps else 0
        asked = found.predictor if structures or labels is None else None
        grids = inputs.fixed.geometry, inputs.moving.geometry
        check_memory(*grids, found.settings, schedule.bank_name, structures, asked, inputs.masked_voxels)
        return found

    @property
    def compares_maps(self) -> bool:
        """True if a member with a weight compares structure maps, with moving labels or without."""
        return any(self.schedule.compares_maps(w) for w in (self.weights, self.blind) if w is not None)

    def model_use(self, classes_from: ClassesFrom, start: str) -> tuple[str, str]:
        """Return how much of the model is used, all, part or none of it, and why not all."""
        reasons = []
        if self.without_maps:
            reasons.append("its structure maps and smoothness are left out: the voxels are finer than in training")
        several = len(self.weights.classes) > 1
        unknown = classes_from == "labels" and self.match is not None and not self.match.to
        if several and classes_from == "none":
            reasons.append("there are no moving labels and it segments no images: weights of the background everywhere")
        if unknown:
            reasons.append("it knows none of the moving labels: weights of the background everywhere")
        if not reasons:
            return "all", ""
        matrix = self.weights.matrix
        if unknown or classes_from == "none":
            matrix = matrix[:, [self.weights.classes.index(0)]]
        unlearned = self.schedule.start_weights(self.weights.pairwise).matrix
        nothing = start != STRUCTURES and np.allclose(matrix / matrix.sum(axis=0), unlearned)
        return "none" if nothing else "part", "; ".join(reasons)

    def name_structures(self, inputs: Inputs) -> Inputs:
        """Show which class of the model each label without a name is matched with; the name is not the label's own."""
        if self.model is None or self.match is None or self.match.by == "name":
            return inputs
        classes = real_names(self.model.class_names, self.match.to)
        names = {value: f"{value} (model: {name})" for value, name in classes.items()}

        def named(image: Image) -> Image:
            labels = image.labels
            return replace(image, labels=labels and replace(labels, names={**names, **labels.names}))

        return replace(inputs, fixed=named(inputs.fixed), moving=named(inputs.moving))

    def attach_classes(self, pair: ImagePair, *, predict: bool) -> tuple[ImagePair, ClassesFrom]:
        """Return the pair with the moving labels that choose the weights, and where they come from.

        With ``predict`` the predictor is used even where labels are given. Where a member compares structure maps, the
        pair has those of its images and of these labels.
        """
        classes_from: ClassesFrom = "none"
        labels = pair.moving.labels
        if len(self.weights.classes) > 1 and labels is not None and not predict:
            labels, classes_from = labels if self.match is None else self.match.apply(labels), "labels"
        elif len(self.weights.classes) > 1 and self.predictor is not None:
            labels, classes_from = self.predictor.labels(pair.moving), "predicted"
        elif len(self.weights.classes) > 1:
            labels = None
            if self.model is not None:
                notices.warn(
                    "W262: the model chooses no weights: there are no moving labels and it segments no images; "
                    "those of its background serve everywhere"
                )
        pair = pair if labels is pair.moving.labels else pair.with_moving(labels=labels)
        return with_structure_maps(pair, self.predictor) if self.compares_maps else pair, classes_from

    def guided(self, *, levels: bool, only: bool) -> Recipe:
        """Return the recipe with members that compare guides: of the refinement, and of the levels where asked.

        They get a share of the weight of their stage; the others keep their proportions. With ``only`` they are all.
        """
        if only:
            schedule = self.schedule.with_bank((COARSE, FINE))
            weights = WeightTable.constant({COARSE.name: 1, FINE.name: 1}, self.weights.pairwise)
            return replace(self, schedule=schedule, weights=weights, coarse=None, blind=None)
        added = [(COARSE, self.schedule.discrete)] if levels else []
        added.append((FINE, self.schedule.continuous))

        def with_guides(table: WeightTable) -> WeightTable:
            rows = [usual_weights(table, bank, new.stage) for new, bank in added]
            names = (*table.members, *(member.name for member, _ in added))
            found = replace(table, matrix=np.vstack([table.matrix, *rows]), members=names)
            return replace(found, matrix=found.matrix * (table.matrix.sum(axis=0) / found.matrix.sum(axis=0)))

        return replace(
            self, schedule=self.schedule.with_bank((*self.schedule.bank, *(member for member, _ in added))),
            weights=with_guides(self.weights), coarse=None if self.coarse is None else with_guides(self.coarse),
        )  # fmt: skip

    @property
    def learned_guides(self) -> dict[int, float] | None:
        """Weights of guides by class that the model has learned, against the usual ones; None where it has not."""
        table = None if self.model is None else self.model.weights
        if table is None or FINE.name not in table.members:
            return None
        usual, row = usual_weights(table, self.schedule.continuous, FINE.stage), table.members.index(FINE.name)
        return dict(zip(table.classes, (table.matrix[row] / np.where(usual > 0, usual, 1)).tolist(), strict=True))

    def drop_label_members(self, classes_from: ClassesFrom) -> Recipe:
        """Take the weights for pairs without labels, or those without label-based members, as training chose."""
        if classes_from == "labels" or self.model is None:
            return self
        if self.blind is not None:
            return replace(self, weights=self.blind)
        if self.model.outline_without_mask:
            return self
        return replace(self, weights=self.schedule.without_label_members(self.weights))


def with_structure_maps(pair: ImagePair, predictor: Predictor | None) -> ImagePair:
    """Return the pair with the structure maps of both images by a predictor, and those of its moving labels."""
    assert predictor is not None  # `Recipe.resolve` has seen to it
    fixed, moving = predictor.maps(pair.fixed), predictor.maps(pair.moving)
    outline = moving if pair.moving.labels is None else maps_from_labels(pair.moving.labels, predictor)
    return pair.with_fixed(maps=fixed).with_moving(maps=moving, label_maps=outline)


def with_stated(reading: R, settings: Settings, model: Model | None) -> R:
    """Return a reading with the modality of the settings, for images of no stated one, unless a model brings them."""
    stated: Stated = "auto" if settings.modality == "multi" else settings.modality
    if stated == "auto" or model is not None:
        return reading
    fixed = stated if reading.fixed_modality == "auto" else reading.fixed_modality
    moving = stated if reading.moving_modality == "auto" else reading.moving_modality
    return replace(reading, fixed_modality=fixed, moving_modality=moving)


def bank_for(inputs: Inputs, model: Model | None) -> BankName:
    """Return the bank for the modalities of a pair, or refuse a model that was trained on another.

    Raises E172 where images and model differ.
    """
    found = bank_of(*inputs.modalities)
    if model is None or model.modality == found:
        return found
    fixed, moving = inputs.modalities
    fitting = [name for name, path in shipped_models().items() if Model.load(path).modality == found]
    others = f"use a model for such images (shipped: {', '.join(fitting)}), or" if fitting else ""
    images = f"the fixed image is {fixed.upper()}, the moving image {moving.upper()}"
    hint = f"leave the model out, {others} state what the images are with fixed_modality and moving_modality"
    raise RegweaveError("E172", f"the model was trained on {BANKS[model.modality]}; {images}", hint)


def _weights(
    settings: Settings, schedule: Settings, model: Model | None, members: Mapping[str, float] | None
) -> WeightTable:
    """W of a run: the model's, those given by hand, or those that the members start with."""
    if model is not None:
        names = tuple(m.name for m in schedule.bank)
        for table in (model.weights, model.weights_without_mask):
            if table is not None and table.lacking(FINE.name).members != names:
                message = f"the model is for members {', '.join(table.members)}, the bank has {', '.join(names)}"
                raise RegweaveError("E170", message, "use the settings stored with the model")
        if not 0 <= model.weights.pairwise < np.inf:
            message = f"the model's pairwise weight is {model.weights.pairwise}, allowed is 0 or more"
            raise RegweaveError("E170", message, "train it again")
        return model.weights
    start = schedule.start_weights(settings.smoothness)
    if not members:
        return start
    given = np.array([[members[n]] for n in start.members], dtype=np.float64)
    if not (np.isfinite(given).all() and given.min() >= 0 and given.sum() > 0):
        raise UsageError("E188", f"weights of metrics are {given.ravel().tolist()}", "give numbers ≥ 0, not all zero")
    return replace(start, matrix=given / given.sum())


def _doubt_numbers(match: StructureMatch, model: Model) -> None:
    """Warn where the model has none of the moving labels, or where labels are matched by number in another set."""
    classes = [c for c in model.weights.classes if c != 0]
    labels, known = sorted((*match.to, *match.unknown)), list_names(model.class_names, classes, LISTED)
    if not match.to:
        notices.warn(
            f"W248: none of the {len(labels)} moving labels is known to the model, which has "
            f"{known}: all of them get the weights of the background; leave the model out, or give "
            "the names of the labels with --label-names"
        )
    elif match.by == "number" and labels != classes:
        one = min(match.to)
        notices.warn(
            f"W247: labels and model have no names in common and are matched by number, and their numbers differ: "
            f"{len(labels)} moving labels, {len(classes)} of the model ({known}). Whether label "
            f"{one} is the model's {model.class_names.get(one, one)} is not known: give the names with --label-names, "
            "or leave the model out"
        )


def doubt_volumes(pair: ImagePair, recipe: Recipe) -> None:
    """Warn where labels matched by number have other volumes than the structures that the model segments."""
    labels, maps, match = pair.moving.labels, pair.moving.maps, recipe.match
    if labels is None or maps is None or match is None or match.by == "name" or recipe.model is None:
        return
    voxels_ml = [abs(float(np.linalg.det(g.affine[:3, :3]))) / 1000.0 for g in (labels.geometry, maps.geometry)]
    segmented = {c: voxels_ml[1] * float(share.sum()) for c, share in zip(maps.classes, maps.shares, strict=True)}
    found = {c: voxels_ml[0] * float((labels.data == c).sum()) for c in match.to.values()}
    odd = [
        f"label {c} has {found[c]:.3g} ml, the model segments {segmented[c]:.3g} ml of "
        f"{recipe.model.class_names.get(c, c)}"
        for c in sorted(found.keys() & segmented.keys())
        if not 1 / VOLUMES_APART <= found[c] / max(segmented[c], 1e-9) <= VOLUMES_APART
    ]
    if odd:
        notices.warn(
            f"W247: labels and model are matched by number, and their volumes differ: {'; '.join(odd[:3])}. Give the "
            "names of the labels with --label-names, or leave the model out"
        )


def _doubt_domain(model: Model, inputs: Inputs) -> None:
    """Warn of images unlike those that a model was trained on, before its network runs."""
    if model.domain is None:
        return
    for name, image in (("fixed", inputs.fixed), ("moving", inputs.moving)):
        if found := model.domain.misfits(ImageFacts.of(image)):
            part = "" if model.card is None or model.card.body_part is None else f" of {model.card.body_part}"
            notices.warn(
                f"W260: the {name} image is not one that the model{part} is for: {'; '.join(found)}. Leave the model "
                "out, or use one for such images (regweave models suggest IMAGE)"
            )


def doubt_segmentation(pair: ImagePair, recipe: Recipe, *, given: bool) -> None:
    """Warn where the model segments implausible volumes, or something else than the ``given`` moving labels show."""
    model = recipe.model
    if model is None:
        return
    for name, image in (("fixed", pair.fixed), ("moving", pair.moving)):
        labels, maps = image.labels if name == "moving" and not given else None, image.maps
        if maps is not None:
            classes = np.array((0, *maps.classes))
            best = classes[np.where(maps.shares.max(axis=0) >= HALF, 1 + maps.shares.argmax(axis=0), 0)]
            labels = LabelMap(best, maps.geometry)
        if labels is None:
            continue
        odd = [] if model.domain is None else model.domain.odd_volumes(volumes_ml(labels), model.class_names)
        if odd:
            notices.warn(
                f"W261: the model segments implausible volumes in the {name} image: {'; '.join(odd[:3])}. Look at its "
                "labels, or leave the model out"
            )
        if name == "moving" and given and image.labels is not None:
            shared = overlaps(labels, image.labels)
            if shared and (mean := sum(shared.values()) / len(shared)) < LEAST_OVERLAP:
                notices.warn(
                    f"W261: what the model segments in the moving image overlaps little with its labels: mean Dice "
                    f"{mean:.2f}, at least {LEAST_OVERLAP:g} is usual. Check that the model is for such images, or "
                    "leave it out"
                )


def overlaps(segmented: LabelMap, given: LabelMap) -> dict[int, float]:
    """Return the Dice of each structure of given labels that a segmentation on another grid can have."""
    at = given.geometry.index(segmented.geometry.points(np.argwhere(segmented.data != 0).astype(np.float64)))
    index = np.rint(at).astype(np.intp)
    inside = ((index >= 0) & (index < np.array(given.geometry.shape))).all(axis=1)
    found, classes = np.zeros(len(index), dtype=np.int64), segmented.data[segmented.data != 0]
    found[inside] = given.data[tuple(index[inside].T)]
    volume = abs(float(np.linalg.det(segmented.geometry.affine[:3, :3]))) / 1000.0
    sizes, ml = volumes_ml(segmented), volumes_ml(given)
    return {
        c: 2 * volume * float(((found == c) & (classes == c)).sum()) / (size + sizes.get(c, 0.0))
        for c, size in ml.items()
    }


def misfits(images: Sequence[Volume], models: Mapping[str, Path]) -> dict[str, list[str]]:
    """Return by model why it does not fit one image, or a pair; the list is empty for one that fits.

    A model without a domain fits nothing: what it was trained on is not recorded.
    """
    facts, found = [ImageFacts.of(image) for image in images], {}
    modalities = [image.modality or "mr" for image in images]
    bank = bank_of(modalities[0], modalities[-1])
    for name, path in models.items():
        model = Model.load(path)
        if model.modality != bank:
            found[name] = [f"it is for {model.modality.upper()}, the images are {bank.upper()}"]
        elif model.domain is None:
            found[name] = ["it has no record of its training images"]
        else:
            found[name] = list(dict.fromkeys(text for one in facts for text in model.domain.misfits(one)))
    return found


def fitting(images: Sequence[Volume]) -> tuple[Path | None, str]:
    """Return the shipped model that fits, None where none does, and why."""
    shipped = shipped_models()
    found = misfits(images, shipped)
    fits = [name for name, why in found.items() if not why]
    reasons = [f"{name}: {why[0]}" for name, why in found.items() if why]
    if not fits:
        return None, f"no model fits ({'; '.join(reasons)})"
    return shipped[fits[0]], f"{fits[0]} fits: field of view, voxels and intensities are as in its training images"


def predictor_of(model: Model | None) -> Predictor | None:
    """Return the class predictor of a model that has columns to choose."""
    return None if model is None or len(model.weights.classes) == 1 else model.predictor
