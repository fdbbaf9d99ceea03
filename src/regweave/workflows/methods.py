"""What an evaluation compares: models, a preset, and baselines with a smoothness tuned as carefully as a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from regweave.errors import RegweaveError, UsageError
from regweave.io import sha256
from regweave.io.manifest import PairFiles
from regweave.io.model import Model, read_model
from regweave.pyramid.intensity import Modality, modality_of
from regweave.registration import settings as registration_settings
from regweave.registration.settings import Member, Settings
from regweave.workflows.batch import Outcome
from regweave.workflows.inputs import Reading, class_predictor
from regweave.workflows.scoring import mean_dice

FACTORS = tuple(float(f) for f in 10.0 ** np.linspace(-1.5, 1.5, 9))
"""Smoothness values that tuning tries, against that of the settings: nine over three decades."""


@dataclass(frozen=True)
class Method:
    """One method of an evaluation.

    Parameters
    ----------
    name : str
        ``uniform``, ``single:NAME``, ``preset:NAME``, ``global`` or ``model:FILE-STEM``, with ``+predicted`` where the
        moving labels do not choose the weights.
    settings : Settings
        Settings of its registrations; for a model, those stored with it.
    model : (path, SHA-256), optional
        Model file.
    predicted : bool
        True if the model's class predictor chooses the weights.
    tunable : bool
        True for a baseline.
    tuning : mapping
        Mean Dice on the training pairs by smoothness, after tuning.
    """

    name: str
    settings: Settings
    model: tuple[Path, str] | None = None
    predicted: bool = False
    tunable: bool = False
    tuning: Mapping[float, float] = field(default_factory=dict)

    def candidates(self) -> list[Method]:
        """Return the method with each smoothness that tuning tries."""
        values = [self.settings.smoothness * factor for factor in FACTORS]
        return [replace(self, settings=self.settings.model_copy(update={"smoothness": v})) for v in values]

    def tuned(self, found: Mapping[float, float]) -> Method:
        """Take the smoothness with the best Dice, of equals the larger; where there is none, keep the settings'."""
        if not found:
            return self
        best = max(found, key=lambda smoothness: (found[smoothness], smoothness))
        return replace(self, settings=self.settings.model_copy(update={"smoothness": best}), tuning=dict(found))

    def describe(self) -> dict[str, Any]:
        """Everything that says what was run, as JSON values."""
        return {
            "name": self.name,
            "settings": self.settings.model_dump(mode="json"),
            "model": None if self.model is None else {"file": self.model[0].name, "sha256": self.model[1]},
            "predicted_classes": self.predicted,
            "tuning": [{"smoothness": s, "mean_dice": d} for s, d in self.tuning.items()],
        }


def model_methods(paths: Sequence[Path]) -> list[tuple[Method, Model]]:
    """Read models and name their methods: ``global`` for a file of that name, else ``model:`` and the stem.

    A model that brings a class predictor is two methods, with the true moving labels and with predicted ones.
    """
    out = []
    for path in paths:
        model = read_model(path)
        name = "global" if path.stem == "global" else f"model:{path.stem}"
        settings = registration_settings.validate(model.settings, str(path))
        method = Method(name, settings, (path.absolute(), sha256(path)))
        out.append((method, model))
        if class_predictor(model) is not None:
            out.append((replace(method, name=f"{name}+predicted", predicted=True), model))
    names = [method.name for method, _ in out]
    if len(set(names)) < len(names):
        raise UsageError("E192", f"models have the same name: {', '.join(names)}", "rename the files")
    return out


def baseline_methods(base: Settings, modality: Modality) -> list[Method]:
    """Return the uniform mix, and each member of the bank of a modality on its own."""
    pinned = base.model_copy(update={"modality": modality})
    bank = pinned.schedule(modality).bank
    return [Method("uniform", pinned, tunable=True), *(_single(pinned, modality, member) for member in bank)]


def _single(base: Settings, modality: Modality, member: Member) -> Method:
    """One member in both stages; refinement is left out where it cannot compare voxel by voxel."""
    alone = member.model_copy(update={"stage": "both"})
    content = base.model_dump(mode="json") | {"banks": {modality: [alone.model_dump(mode="json")]}}
    if not member.differentiable:
        content["refine"]["steps"] = 0
    settings = registration_settings.validate(content, f"the baseline {member.name}")
    return Method(f"single:{member.name}", settings, tunable=True)


def modality_of_list(settings: Settings, pairs: Sequence[PairFiles], reading: Reading) -> Modality:
    """Return the modality that settings name, or that of the first pair whose images can be read."""
    if settings.modality != "auto":
        return settings.modality
    problem: RegweaveError | None = None
    for pair in pairs:
        try:
            return modality_of(reading.image(pair.fixed), reading.image(pair.moving))
        except RegweaveError as error:
            problem = problem or error
    assert problem is not None
    raise problem


def tune(
    methods: Sequence[Method],
    pairs: Sequence[PairFiles],
    run: Callable[[list[tuple[str, Method, PairFiles]]], list[Outcome]],
) -> list[Method]:
    """Choose the smoothness of each baseline on training pairs; all get the same number of registrations.

    Parameters
    ----------
    methods : sequence of Method
        Those that are not tunable come back as they are.
    pairs : sequence of PairFiles
        Training pairs. One that fails with any smoothness of a method is left out for this method.
    run : callable
        Runs (key, method, pair) triples and returns an outcome for each, in order.
    """
    plan = [
        (f"tune/{method.name}/{candidate.settings.smoothness!r}/{pair.id}", candidate, pair)
        for method in methods
        if method.tunable
        for candidate in method.candidates()
        for pair in pairs
    ]
    outcomes = run(plan)
    dice: dict[str, dict[float, list[float]]] = {}
    for (_, candidate, _), outcome in zip(plan, outcomes, strict=True):
        score = float("nan") if outcome.error is not None else mean_dice(outcome.value)
        dice.setdefault(candidate.name, {}).setdefault(candidate.settings.smoothness, []).append(score)
    return [method.tuned(_means(dice.get(method.name, {}))) for method in methods]


def _means(dice: Mapping[float, Sequence[float]]) -> dict[float, float]:
    """Mean over the pairs that have a number for every smoothness."""
    if not dice:
        return {}
    table = np.array(list(dice.values()))
    whole = ~np.isnan(table).any(axis=0)
    if not whole.any():
        return {}
    return dict(zip(dice, table[:, whole].mean(axis=1).tolist(), strict=True))
