"""Members of a bank: a metric with its source of features, its stage and its options."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from regweave import metrics
from regweave.errors import UsageError
from regweave.registry import Registry

Intensity = Annotated[float, Field(ge=-1e9, le=1e9)]
PluginOptions = Annotated[dict[str, Any], Field(default_factory=dict, exclude_if=lambda given: not given)]
"""Options of a plug-in, checked by its own model; no key in records where there are none."""
NARROWEST_WINDOW = 1e-12


class StrictModel(BaseModel):
    """Validated frozen settings: unknown keys are errors, and so are infinite numbers, which TOML has."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


def known(registry: Registry, name: str, options: Mapping[str, Any] | None = None) -> None:
    """Require a plug-in and its options; ValueError says what is there, or which option is wrong."""
    try:
        registry.options(name, options or {})
    except ValidationError as error:
        allowed = ", ".join(registry.get(name).Options.model_fields) or "none"
        problems = f"{describe_problems(error)}; options are: {allowed}"
        raise ValueError(f"options of {registry.noun} {name!r}: {problems}") from error
    except UsageError as error:
        if error.code == "E179":  # a plug-in is at fault, not the settings
            raise
        raise ValueError(f"{error.message}; {error.hint}") from error


class Member(StrictModel):
    """One configured metric of a bank."""

    name: str = Field(
        pattern=r"^[A-Za-z][A-Za-z0-9_-]*$", max_length=64,
        description="Name of the member in weights, reports and on the command line.",
    )  # fmt: skip
    metric: str = Field(
        description="Name of a metric: one of ``regweave.metrics`` or a plug-in. From Python also the metric itself."
    )
    source: Literal["image", "structures", "labels", "guides"] = Field(
        default="image", exclude_if=lambda given: given == "image",
        description="Compared data: the images; the structure maps that the predictor of a model makes of both; or "
        "those of the fixed image with maps of the moving labels. These two need a model, and so weight 0 until one "
        "has learned it. A run adds members that compare guides.",
    )  # fmt: skip
    window: tuple[Intensity, Intensity] | None = Field(
        default=None,
        description="Intensities mapped to [0, 1]; without it the body window for CT and percentiles for other images.",
    )
    support: int | None = Field(
        default=None, ge=2, le=64, description="Edge of the node's box in voxels; without it the level's."
    )
    sigma_voxels: float = Field(
        default=0.0, ge=0, le=5, description="Gaussian smoothing of both images before they are compared."
    )
    stage: Literal["levels", "refine", "both"] = Field(
        default="both",
        description="Stage of the member: the discrete levels, the continuous refinement, or both if it can.",
    )
    weight: float = Field(
        default=1.0, ge=0, le=1e6,
        description="Weight against the other members where a model gives none; 0 disables the member unless a model "
        "assigns it a weight.",
    )  # fmt: skip
    options: dict[str, Any] = Field(default_factory=dict, description="Options of the metric.")

    @field_validator("metric", mode="before")
    @classmethod
    def _add(cls, given: object) -> object:
        """Take an object or a function for a metric: it is added for this process under its own name."""
        name = str(getattr(given, "__name__", type(given).__name__)).rsplit(".", 1)[-1]
        return given if isinstance(given, str) else metrics.add(name, given)

    @model_validator(mode="after")
    def _check(self) -> Member:
        known(metrics.registry, self.metric, self.options)
        if self.window is not None and not self.window[1] - self.window[0] >= NARROWEST_WINDOW:
            raise ValueError(f"window {list(self.window)} of {self.name!r} is empty; give low < high")
        if self.stage == "refine" and not self.differentiable:
            raise ValueError(f"{self.metric!r} of {self.name!r} cannot be compared voxel by voxel; not for refine")
        if self.source != "image" and self.weight:
            raise ValueError(
                f"source {self.source!r} of {self.name!r} needs a model; give weight 0, found {self.weight:g}"
            )
        return self

    # The metric may be a module, which can be neither pickled nor copied: another process looks it up again.
    def __getstate__(self) -> dict[Any, Any]:
        state = super().__getstate__()
        return {**state, "__dict__": {k: v for k, v in state["__dict__"].items() if k in type(self).model_fields}}

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Member:
        return self

    @property
    def differentiable(self) -> bool:
        """True if the metric says how to compare voxel by voxel, as the refinement does."""
        return hasattr(self.implementation, "PENALTY")

    @cached_property
    def implementation(self) -> metrics.Metric:
        """The metric itself."""
        return metrics.get(self.metric)

    @cached_property
    def metric_options(self) -> metrics.Options:
        """Options as the metric's own model."""
        return metrics.registry.options(self.metric, self.options)


def plain_member(metric: str) -> Member:
    """Return a metric with its default options as the member of its own name."""
    metrics.get(metric)
    return Member(name=metric, metric=metric)


def describe_problems(error: ValidationError) -> str:
    """Every problem with its place, what is allowed and, for a number, what was found; the first ten of many."""
    errors = error.errors()
    # A list whose only item is wrong is also called too short.
    places = {e["loc"][: n + 1] for e in errors for n in range(len(e["loc"]) - 1)}
    errors = [e for e in errors if not (e["type"] == "too_short" and e["loc"] in places)]
    told = []
    for e in errors[:10]:
        found = f", found {e['input']!r}" if isinstance(e["input"], float | int) else ""
        place = ".".join(str(p)[:40] for p in e["loc"])
        told.append(f"{place + ': ' if place else ''}{e['msg'].removeprefix('Value error, ')}{found}")
    more = len(errors) - len(told)
    return "; ".join(told) + (f"; and {more} more" if more > 0 else "")
