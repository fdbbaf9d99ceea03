"""Latent SVM on the costs of the refinement: columns of its members by structure.

The refinement follows a gradient and has no labels. Around the result of the levels its members are compared at full
resolution for small displacements of control points instead, as a last discrete level would: there prediction,
imputation and the most violated constraint are the same inference with other unaries, and the learner of the levels
serves as it is. Columns stay near the common one by the proximity term of the programme.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from regweave.config.settings import Schedule
from regweave.datasets.manifest import PairFiles
from regweave.jobs.store import content_hash
from regweave.run.prepare import Request, Stopwatch, afresh, align_levels, prepare
from regweave.spatial.warp import to_field
from regweave.training.columns.learner import ColumnLearner
from regweave.training.refinement.columns import Preferences
from regweave.types import ImagePair, WeightTable

DIGITS = 4
"""Decimals of what a structure is said to trust: the programme leaves traces of 1e-17 where a member is not used."""


@dataclass(frozen=True)
class RefinementSvm:
    """Learner of the refinement's columns from pairs.

    Parameters
    ----------
    learner : ColumnLearner
        Of the levels: options, schedule, candidates, memory and threads.
    common : WeightTable
        The mix that all structures share; its rows of the refinement are the start.
    predicted : bool
        As if there were no moving labels.
    """

    learner: ColumnLearner
    common: WeightTable
    predicted: bool = False

    def __call__(self, pairs: Sequence[PairFiles]) -> tuple[WeightTable, Preferences]:
        """Columns that these pairs ask for, and the weight of each member in them against the largest common one."""
        levels, learner = self.learner, self._of_refinement()
        used = levels.sampled(pairs)
        found = learner.learn(self.common, used, levels.options.grid()[0]).weights
        return found, trust(self.common, found, [m.name for m in learner.schedule.bank])

    def _of_refinement(self) -> ColumnLearner:
        """Return the learner of the levels with one level of the refinement's members instead."""
        options = replace(self.learner.options, method="lssvm-joint", levels="all")
        schedule = as_level(self.learner.schedule, self.common)
        mark = content_hash([self.common, self.predicted])
        return replace(self.learner, options=options, schedule=schedule, load=self._load, mark=mark)

    def _load(self, pair: PairFiles) -> ImagePair:
        """Return a pair as the refinement finds it: the displacement of the levels is its start."""
        candidates = self.learner.candidates
        request = Request(
            candidates.settings, **pair.files, model=candidates.model(self.common, pair),
            predict_classes=self.predicted, reading=candidates.run.reading,
        )  # fmt: skip
        run = prepare(request, afresh, Stopwatch())
        aligned = align_levels(run, afresh)
        return replace(run.seen, initial_field=to_field(aligned.displacement, run.pair.fixed.geometry))


def as_level(schedule: Schedule, weights: WeightTable) -> Schedule:
    """Return a schedule whose one level searches with the refinement's members at full resolution.

    Members that compare structure maps take part where they have a weight; the control points are those of the last
    level, the displacements those of its first step.
    """
    given = {m for m, row in zip(weights.members, weights.matrix, strict=True) if row.any()}
    bank = tuple(
        m.model_copy(update={"stage": "both"}) for m in schedule.continuous if m.source == "image" or m.name in given
    )
    level = schedule.levels[-1].model_copy(update={"shrink": 1, "voxels_per_spacing": None, "steps": 1})
    return schedule.model_copy(update={"levels": (level,), "bank": bank})


def trust(common: WeightTable, found: WeightTable, members: Sequence[str]) -> Preferences:
    """Weight of each member in the column of each structure, against the largest that the common column has."""
    rows = common.rows(members)
    unit = float(np.abs(common.matrix[rows, 0]).max())
    return {
        name: {c: round(float(found.matrix[row, k] / unit), DIGITS) for k, c in enumerate(common.classes) if c != 0}
        for name, row in zip(members, rows, strict=True)
    }
