"""Out-of-fold class predictors: the model's own, and for each pair one that has seen none of its patients."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from regweave.datasets.coverage import deal_patients
from regweave.datasets.manifest import PairFiles
from regweave.measures.overlap import dice
from regweave.predictors import Choice, Predictor
from regweave.training.predictor_fits import PredictorFits, SegmentedImage

PARTS = 5
"""Parts into which the patients are dealt; a pair's predictor leaves out those of its own patients."""
COSTLY_PARTS = 3
"""Parts where a fit takes minutes or more."""
SCORED_IMAGES = 12
"""Images whose segmentations are scored, at most."""


class Predictors:
    """Fits class predictors to the images of a list, each when it is first asked for.

    Where a fit is costly as few are made as can be: fewer parts, and none for a pair that lies across two of them.

    Parameters
    ----------
    images : sequence of SegmentedImage
        What to learn from.
    fit : PredictorFits
        Fits one kind to some of them.
    pairs : sequence of PairFiles
        Pairs that will be asked for; patients of others are never left out.
    seed : int
        Deals the parts, and draws images that are scored.
    """

    def __init__(
        self, images: Sequence[SegmentedImage], fit: PredictorFits, pairs: Sequence[PairFiles], seed: int = 0
    ) -> None:
        self._images, self._fit, self._seed = images, fit, seed
        self._part = deal_patients(pairs, COSTLY_PARTS if fit.kind.costly else PARTS, seed)
        self._known: dict[frozenset[int], Predictor | None] = {}

    @property
    def kind(self) -> Choice:
        """Kind of predictor and its options."""
        return self._fit.kind

    @cached_property
    def whole(self) -> Predictor:
        """The predictor of all patients.

        Raises
        ------
        ValueError
            Where a class is too small to be seen at working resolution, or there are no images.
        """
        return self._fit(self._images, None)

    def judges(self, pair: PairFiles) -> bool:
        """Tell whether a predictor without the patients of a pair is worth its fit."""
        return not self.kind.costly or len(self._parts(pair.patients)) == 1

    def without(self, pair: PairFiles) -> Predictor | None:
        """Return a predictor that knows no patient of a pair; None where too little is left to learn from."""
        return self._without(self._parts(pair.patients)) if self.judges(pair) else None

    def left_out(self) -> dict[str, Any]:
        """Score segmentations of some images, each by a predictor that knows none of its patients.

        Returns
        -------
        dict
            ``dice`` by class, their ``mean_dice``, and ``n_images``; empty where no predictor could be judged.
        """
        parts = [self._parts(image.patients & self._part.keys()) for image in self._images]
        usable = [k for k, of in enumerate(parts) if len(of) == 1]
        order = np.random.default_rng([self._seed, 1]).permutation(len(usable))
        found: dict[int, list[float]] = {}
        n = 0
        for k in (usable[place] for place in sorted(order[:SCORED_IMAGES])):
            predictor = self._without(parts[k])
            if predictor is None:
                continue
            n += 1
            volume, truth = self._images[k].read(self._fit.reading)
            shown = [c for c in self._fit.classes[1:] if (truth.data == c).any()]
            for c, value in dice(predictor.labels(volume), truth, shown).items():
                found.setdefault(c, []).append(value)
        means = {str(c): float(np.mean(values)) for c, values in sorted(found.items())}
        return {"dice": means, "mean_dice": float(np.mean(list(means.values()))), "n_images": n} if means else {}

    def _parts(self, patients: Iterable[str]) -> frozenset[int]:
        return frozenset(self._part[name] for name in patients)

    def _without(self, parts: frozenset[int]) -> Predictor | None:
        if parts not in self._known:
            left = [i for i in self._images if not parts & self._parts(i.patients & self._part.keys())]
            try:
                self._known[parts] = self._fit(left, self.whole) if left else None
            except ValueError:
                self._known[parts] = None
        return self._known[parts]
