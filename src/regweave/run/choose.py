"""Choice of a model by the images: which of some models fits them, and why the others do not."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from regweave.io.modality import bank_of
from regweave.model import shipped_models
from regweave.model.domain import ImageFacts
from regweave.model.model import Model
from regweave.run.job import AUTO, Job
from regweave.types import Volume


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


def with_model(job: Job) -> tuple[Job, str]:
    """Return a job with the model that fits its images in place of ``auto``, and why it was chosen."""
    if not isinstance(job.model, str | Path) or str(job.model) != AUTO:
        return job, ""
    sources: list[tuple[Any, ...]] = [
        (job.fixed, job.fixed_modality, job.fixed_series), (job.moving, job.moving_modality, job.moving_series),
    ]  # fmt: skip
    path, why = fitting([job.image(*words) for words in sources])
    return replace(job, model=path), f"model auto: {why}"
