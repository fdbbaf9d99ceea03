"""Content-addressed store of fitted predictors, and the segmented images that they learn from."""

import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from regweave import predictors
from regweave.jobs.table import PairFiles, deal_patients
from regweave.jobs.workers import content_hash, program_hash
from regweave.measures.scores import dice
from regweave.model.archive import read_archive, write_archive
from regweave.model.record import LeftOutDice, PredictorChoice
from regweave.predictors import Choice, Examples, Parts, Predictor
from regweave.run.read import Reading
from regweave.training.state import TrainingLog
from regweave.types import Geometry, LabelMap, Modality, Volume

logger = logging.getLogger(__name__)
BYTES_PER_VOXEL = 8.0  # an image and its labels in memory


@dataclass(frozen=True)
class SegmentedImage:
    """An image of the list with its labels, its grid, the patients that it may show, and the hashes of both files."""

    image: Path
    labels: Path
    geometry: Geometry
    patients: frozenset[str]
    sha256: tuple[str, str] = ("", "")

    def read(self, reading: Reading) -> tuple[Volume, LabelMap]:
        """Read both."""
        volume = reading.image(self.image)
        labels = reading.labels(self.labels, volume.geometry)
        assert isinstance(labels, LabelMap)
        return volume, labels


def segmented_images(
    pairs: Sequence[PairFiles],
    hashes: Callable[[PairFiles], Mapping[str, str]],
    grids: Callable[[PairFiles], Mapping[str, Geometry]],
) -> list[SegmentedImage]:
    """Each image of the list once, even under several names; moving images first.

    A pair of two patients leaves open which of them an image shows; those that all pairs with this image have in
    common do, mostly. ``hashes`` returns the SHA-256 of the files of a pair by column, ``grids`` its two grids.
    """
    patients: dict[str, set[str]] = {}
    for pair in pairs:
        for column in ("moving", "fixed"):
            known = patients.setdefault(hashes(pair)[column], set(pair.patients))
            known &= set(pair.patients)
    first: dict[str, SegmentedImage] = {}
    for column in ("moving", "fixed"):
        for pair in pairs:
            found = hashes(pair)
            file = found[column]
            shown = frozenset(patients[file]) or frozenset(pair.patients)
            files = (getattr(pair, column), getattr(pair, f"{column}_labels"))
            both = (file, found[f"{column}_labels"])
            first.setdefault(file, SegmentedImage(*files, grids(pair)[column], shown, both))
    return list(first.values())


def within(sizes: Iterable[float], limit: float, rng: np.random.Generator, most: int | None = None) -> list[int]:
    """Choose places at random until their sizes reach a limit, at least one, at most so many; ascending."""
    listed = list(sizes)
    order = rng.permutation(len(listed))[:most]
    total = np.cumsum([listed[i] for i in order])
    n = max(1, int((total <= limit).sum()))
    return sorted(int(i) for i in order[:n])


PARTS = 5  # parts into which the patients are dealt; a pair's predictor leaves out those of its patients
COSTLY_PARTS = 3  # parts where a fit takes minutes or more
SCORED_IMAGES = 12  # images whose segmentations are scored, at most


@dataclass(frozen=True)
class Predictors:
    """Fits of one kind of predictor to the images of a list, each computed once, when it is first used.

    Where a fit is costly as few are made as can be: fewer parts, and none for a pair across two of them.
    Patients of other pairs than ``pairs`` are never left out.
    """

    images: Sequence[SegmentedImage]
    pairs: Sequence[PairFiles]
    kind: Choice  # kind of predictor and its options
    classes: tuple[int, ...]  # label values, 0 first
    modality: Modality  # how intensities are mapped
    reading: Reading
    seed: int = 0  # deals the parts, draws voxels and images
    max_memory_mb: float = 1500.0  # images are drawn at random until they fill it
    store: Path | None = None  # folder in which fits are kept, named by a hash of all that they depend on
    tell: Callable[[str], None] = field(default=lambda _: None, compare=False)  # takes a line now and then
    _known: dict[frozenset[int], Predictor | None] = field(default_factory=dict, init=False, compare=False)

    def fit(self, images: Sequence[SegmentedImage], like: Predictor | None) -> Predictor:
        """Fit to images, or take the same fit from the store; ``like`` hands on choices made before.

        Raises ValueError where there is no image, or a class is too small to be seen at working resolution.
        """
        if not images:
            raise ValueError("there are no images to learn it from")
        sizes = [BYTES_PER_VOXEL * float(np.prod(i.geometry.shape)) / 2**20 for i in images]
        chosen = [images[k] for k in within(sizes, self.max_memory_mb, np.random.default_rng(self.seed))]
        if self.store is None:
            return self._fit(chosen, like, None)
        seen = [(i.sha256, sorted(i.patients)) for i in chosen]
        rules = (self.kind, self.classes, self.modality, self.seed, self.reading.to_json())
        key = content_hash([program_hash(), rules, seen, like])
        file, checkpoint = self.store / f"{key}.zip", self.store / f"{key}.safetensors"
        if file.exists() and (found := self._kept(file)) is not None:
            return found
        parts = self._fit(chosen, like, checkpoint).save()
        self.store.mkdir(parents=True, exist_ok=True)
        write_archive(file, json.dumps(parts.to_json(arrays=False)), parts.arrays)
        checkpoint.unlink(missing_ok=True)
        # The stored numbers, not the fitted ones: a training that continues later uses the same.
        return predictors.load(parts)

    def _kept(self, file: Path) -> Predictor | None:
        try:
            text, arrays = read_archive(file)
            return predictors.load(Parts.from_json(json.loads(text), arrays))
        except (OSError, ValueError, KeyError, TypeError):
            logger.warning("%s is damaged; the predictor is fitted again", file.name)
            return None

    def _fit(self, images: Sequence[SegmentedImage], like: Predictor | None, checkpoint: Path | None) -> Predictor:
        self.tell(f"{self.kind.name}: {len(images)} images")
        read = [i.read(self.reading) for i in images]
        patients = ["+".join(sorted(i.patients)) for i in images]
        examples = Examples(
            [volume for volume, _ in read], [labels for _, labels in read], self.classes, self.modality, self.seed,
            patients, lambda step, steps, loss: self.tell(f"{self.kind.name}: step {step} of {steps}, loss {loss:.4f}"),
            checkpoint,
        )  # fmt: skip
        return predictors.fit(self.kind.name, examples, like, **self.kind.options)

    @cached_property
    def _part(self) -> dict[str, int]:
        return deal_patients(self.pairs, COSTLY_PARTS if self.kind.costly else PARTS, self.seed)

    @cached_property
    def whole(self) -> Predictor:
        """The predictor of all patients.

        Raises ValueError where a class is too small to be seen at working resolution, or there are no images.
        """
        return self.fit(self.images, None)

    def judges(self, pair: PairFiles) -> bool:
        """Return whether a predictor without the patients of a pair is worth its fit."""
        return not self.kind.costly or len(self._parts(pair.patients)) == 1

    def without(self, pair: PairFiles) -> Predictor | None:
        """Return a predictor fitted without the patients of a pair; None where too little is left to learn from."""
        return self._without(self._parts(pair.patients)) if self.judges(pair) else None

    def left_out(self) -> LeftOutDice:
        """Score segmentations of some images, each by a predictor without its patients; empty if none could be."""
        parts = [self._parts(image.patients & self._part.keys()) for image in self.images]
        usable = [k for k, of in enumerate(parts) if len(of) == 1]
        order = np.random.default_rng([self.seed, 1]).permutation(len(usable))
        found: dict[int, list[float]] = {}
        n = 0
        for k in (usable[place] for place in sorted(order[:SCORED_IMAGES])):
            predictor = self._without(parts[k])
            if predictor is None:
                continue
            n += 1
            volume, truth = self.images[k].read(self.reading)
            shown = [c for c in self.classes[1:] if (truth.data == c).any()]
            for c, value in dice(predictor.labels(volume), truth, shown).items():
                found.setdefault(c, []).append(value)
        means: dict[str, float | None] = {str(c): float(np.mean(values)) for c, values in sorted(found.items())}
        if not means:
            return LeftOutDice()
        return LeftOutDice(dice=means, mean_dice=float(np.mean([*means.values()])), n_images=n)

    def _parts(self, patients: Iterable[str]) -> frozenset[int]:
        return frozenset(self._part[name] for name in patients)

    def _without(self, parts: frozenset[int]) -> Predictor | None:
        if parts not in self._known:
            left = [i for i in self.images if not parts & self._parts(i.patients & self._part.keys())]
            try:
                self._known[parts] = self.fit(left, self.whole) if left else None
            except ValueError:
                self._known[parts] = None
        return self._known[parts]


def choose_predictors(kinds: Sequence[Predictors], log: TrainingLog) -> tuple[Predictors, PredictorChoice | None]:
    """Choose the kind that segments left-out patients best, of equals the first.

    The record is None where there is no choice, and the one kind is cheap: it holds patients out in its fit.
    """
    if len(kinds) == 1 and not kinds[0].kind.costly:
        return kinds[0], None
    found: dict[str, LeftOutDice] = {}
    for predictor in kinds:
        name = predictor.kind.name
        log.report("predictor", f"{name}: fitted, each time without some patients")
        found[name] = predictor.left_out()
        log.report("predictor", f"{name}: {described(found[name])}")
    best = max(kinds, key=lambda predictor: found[predictor.kind.name].mean_dice or 0.0)
    return best, PredictorChoice(kind=best.kind.name, left_out=found)


def with_record(predictor: Predictor, choice: PredictorChoice | None) -> Predictor:
    """Return a predictor with the Dice of its kind on left-out patients, if its own record has none."""
    parts = predictor.save()
    if choice is None or "mean_dice" in parts.record:
        return predictor
    left_out = choice.left_out[choice.kind].model_dump(exclude_unset=True)
    return predictors.load(replace(parts, record={**parts.record, **left_out}))


def described(left_out: LeftOutDice) -> str:
    """Describe the Dice on left-out patients."""
    if left_out.mean_dice is None:
        return "too few patients to judge it"
    return f"mean Dice {left_out.mean_dice:.3f} on {left_out.n_images} images of left-out patients"
