"""What a registration gives: the transform, the warped images, and the numbers behind them."""

from __future__ import annotations

import json
import math
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from importlib import metadata
from pathlib import Path
from typing import Any

from regweave import __version__
from regweave.config.settings import Settings
from regweave.io import (
    atomic_path,
    prepare_output,
    smallest_displacement,
    write_displacement,
    write_image,
    write_labels,
    write_transform,
)
from regweave.measures.inverse import InverseError
from regweave.measures.rules import Rules, default_rules
from regweave.measures.scores import PairScore
from regweave.measures.verdict import Verdict, judge
from regweave.pipeline import outputs
from regweave.pipeline.inputs import ClassesFrom
from regweave.pipeline.node_evidence import NodeMaps
from regweave.pipeline.record import RunRecord
from regweave.pipeline.view import write_view
from regweave.registration.align import StepRecord
from regweave.registration.refine import RefineStep
from regweave.types import ImagePair, LabelMap, Transform, Volume, WeightTable

SCHEMA = 2
"""Layout of ``result.json``; 2 has states of structures, the inverse's error inside the body, and a verdict."""
NEEDS_SURFACES = "surface_distance_mm"
DEPENDENCIES = ("numpy", "scipy", "SimpleITK", "h5py", "nibabel", "pydantic")


@dataclass(frozen=True)
class Result:
    """Result of one registration.

    Parameters
    ----------
    transform, inverse : Transform
        Fixed to moving points, and back.
    warped, warped_labels
        The moving image and labels on the fixed grid, interpolated once from the originals.
    score : PairScore
        State, Dice and volumes of each structure; empty unless both label maps were given.
    steps, refinement
        Record of the discrete steps, with energy and lower bound, and of the gradient steps.
    regularity, inverse_consistency_mm : mapping
        Folding, SDlogJ, Jacobians; mean, 95th percentile and maximum of the inverse error.
    inverse_error : InverseError
        What the inverse leaves inside the body.
    seconds : mapping
        Wall time of each stage.
    classes_from : "labels", "predicted" or "none"
        What told the classes that chose the weights.
    pair : ImagePair, optional
        What was registered, at its start.
    keep_view : bool
        Whether `write` adds the folder ``view``, from which ``regweave report`` makes a page.
    nodes : NodeMaps, optional
        Evidence of the last discrete step, for the view.
    sources : mapping
        Path of each input that was a file.
    record : RunRecord, optional
        What ran: start, model, modality, structures, and the rest of the call.
    rules : Rules
        Acceptance criteria of the verdict; `dataclasses.replace` gives the result others.
    """

    transform: Transform
    inverse: Transform
    warped: Volume
    warped_labels: LabelMap | None
    score: PairScore
    steps: Sequence[StepRecord]
    refinement: Sequence[RefineStep]
    regularity: Mapping[str, float]
    inverse_consistency_mm: Mapping[str, float]
    inverse_error: InverseError
    seconds: Mapping[str, float]
    peak_memory_mb: float
    warnings: Sequence[str]
    weights: WeightTable
    settings: Settings
    modality: str
    hashes: Mapping[str, str]
    threads: int
    classes_from: ClassesFrom = "none"
    pair: ImagePair | None = None
    keep_view: bool = False
    nodes: NodeMaps | None = None
    sources: Mapping[str, str] = field(default_factory=dict)
    record: RunRecord | None = None
    rules: Rules = field(default_factory=default_rules)

    @property
    def dice(self) -> dict[int, dict[str, Any]]:
        """Name, state, Dice before and after by label; the Dice of a structure that does not count is NaN."""
        return {
            s.label: {"name": s.name, "state": s.state, "before": s.dice_before, "after": s.dice_after}
            for s in self.score.structures
        }

    @property
    def mean_dice(self) -> dict[str, float]:
        """Mean Dice ``before`` and ``after`` over the same structures; empty where none counts."""
        return self.score.means()

    def with_command(self, words: Sequence[str]) -> Result:
        """Return the result with the command line that made it in its record."""
        return self if self.record is None else replace(self, record=replace(self.record, command=tuple(words)))

    def structures(self) -> list[dict[str, Any]]:
        """State, Dice, distances of surfaces and volumes of each structure; the distances are measured when asked."""
        return [s.record() for s in self._with_surfaces.structures]

    @cached_property
    def _with_surfaces(self) -> PairScore:
        if self.pair is None or self.pair.fixed_labels is None or self.warped_labels is None:
            return self.score
        return self.score.with_surfaces(self.pair.fixed_labels, self.warped_labels)

    @property
    def verdict(self) -> Verdict:
        """Pass, look or fail by the rules, with the reasons."""
        score = self._with_surfaces if NEEDS_SURFACES in self.rules.limits else self.score
        return judge({**self.regularity, "inverse_error": self.inverse_error.record()}, score, self.rules)

    def summary(self) -> dict[str, Any]:
        """Everything but the images; ``result.json`` has `structures` besides."""
        w = self.weights
        return {
            "schema": SCHEMA,
            "verdict": self.verdict.record(),
            "rules": self.rules.record(),
            "dice": {str(v): dict(row) for v, row in self.dice.items()},
            "mean_dice": self.mean_dice,
            "steps": [asdict(s) for s in self.steps],
            "refinement": [asdict(s) for s in self.refinement],
            "seconds": {**self.seconds, "total": sum(self.seconds.values())},
            "peak_memory_mb": self.peak_memory_mb,
            **self.regularity,
            "inverse_consistency_mm": dict(self.inverse_consistency_mm),
            "inverse_error": self.inverse_error.record(),
            "warnings": list(self.warnings),
            "weights": {
                "members": list(w.members),
                "classes": list(w.classes),
                "matrix": w.matrix.tolist(),
                "pairwise": w.pairwise,
            },
            "provenance": {
                "regweave": __version__,
                "python": platform.python_version(),
                "dependencies": {name: metadata.version(name) for name in DEPENDENCIES},
                "platform": platform.system() + "-" + platform.machine(),
                "threads": self.threads,
                **({} if self.record is None else self.record.content()),
                "classes_from": self.classes_from,
                "inputs_sha256": dict(self.hashes),
                "settings": self.settings.model_dump(mode="json"),
            },
        }

    def usual_outputs(self) -> tuple[str, ...]:
        """Names of the files that `save` writes where nobody chooses."""
        return outputs.usual_outputs(self.warped.data.size)

    def write(self, folder: Path, write: Sequence[str] | None = None) -> None:
        """Write the chosen files, and ``result.json``, into an existing folder."""
        wanted = self.usual_outputs() if write is None else outputs.check_outputs(write)
        chosen = {name: folder / outputs.FILES[name] for name in wanted}
        if "warped" in chosen:
            write_image(chosen["warped"], self.warped)
        if "labels" in chosen and self.warped_labels is not None:
            write_labels(chosen["labels"], self.warped_labels)
        if "transform" in chosen:
            write_transform(chosen["transform"], self.transform)
        if "inverse" in chosen:
            write_transform(chosen["inverse"], self.inverse)
        if "displacement" in chosen:
            write_displacement(chosen["displacement"], smallest_displacement(self.transform), self.transform.ends)
        if "report" in chosen and self.keep_view and self.pair is not None:
            shown = {name: "/".join(Path(path).parts[-2:]) for name, path in self.sources.items()}
            write_view(folder, self.pair, self.nodes, shown)
        content = {**self.summary(), "structures": self.structures()}
        with atomic_path(folder / "result.json") as part:
            part.write_text(json.dumps(_plain(content), indent=2) + "\n", encoding="utf-8")

    def save(self, folder: str | Path, *, overwrite: bool = False, write: Sequence[str] | None = None) -> None:
        """Write files into a new folder, which appears when it is complete.

        Parameters
        ----------
        folder : path
        overwrite : bool
            Replace an earlier result.
        write : sequence of str, optional
            Some of warped, labels, transform, inverse, displacement, report; ``result.json`` is always there. By
            default all, but the displacement of images up to a million voxels only.
        """
        with prepare_output(folder, overwrite=overwrite) as part:
            self.write(part, write)


def _plain(value: Any) -> Any:
    """Replace what JSON has no word for: numbers that are not finite become null."""
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
