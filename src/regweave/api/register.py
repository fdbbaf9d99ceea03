"""Registration of two images, with the words of the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Unpack

from numpy.typing import ArrayLike

from regweave.config.presets import Metrics
from regweave.config.settings import Settings
from regweave.errors import UsageError
from regweave.measures.landmarks import LandmarkPairs
from regweave.measures.verdict import Rules, read_rules
from regweave.model.model import Model
from regweave.progress import OnProgress, RegistrationBar
from regweave.run import register as pipeline
from regweave.run.read import ImageLike, ReadingWords, reading_of
from regweave.run.result import Result
from regweave.types import Image, Transform


def register(
    fixed: ImageLike,
    moving: ImageLike,
    *,
    moving_labels: ImageLike | None = None,
    fixed_labels: ImageLike | None = None,
    fixed_mask: ImageLike | None = None,
    moving_mask: ImageLike | None = None,
    fixed_points: str | Path | ArrayLike | None = None,
    moving_points: str | Path | ArrayLike | None = None,
    preset: str | None = None,
    config: str | Path | Settings | None = None,
    model: str | Path | Model | None = None,
    metrics: Metrics | None = None,
    init: str | Path | Transform | ArrayLike | None = None,
    engine: str | None = None,
    predict_classes: bool = False,
    threads: int | None = None,
    device: str | None = None,
    rules: str | Path | Rules | None = None,
    progress: bool = True,
    on_progress: OnProgress | None = None,
    **reading: Unpack[ReadingWords],
) -> Result:
    """Register a moving image to a fixed one.

    Parameters
    ----------
    fixed, moving : ImageLike
        Paths, images of SimpleITK, nibabel, ANTsPy, TorchIO or MONAI, (array, RAS affine) tuples, Volumes, or
        an `Image` with its labels and mask.
    moving_labels, fixed_labels : ImageLike, optional
        Segmentations, given as images are. The moving one chooses the weights of a model; both together give Dice.
        Without it a model's class predictor, if it has one, tells the classes; what it tells is not in the result.
    fixed_mask, moving_mask : ImageLike, optional
        Regions that count, on the grids of their images; 0 is outside. A lesion, a couch or what lies beyond the field
        of view then has no say.
    fixed_points, moving_points : path or (P, 3) array, optional
        Corresponding landmarks, in files or in LPS millimetres; the result has their errors before and after. They
        do not guide the registration.
    preset : str, optional
        Name of the settings, by default ``default``; see `preset_names`.
    config : path or Settings, optional
        Settings instead of a preset.
    model : path, name or Model, optional
        Weights per structure; brings its own settings unless ``preset`` or ``config`` is given.
    metrics : mapping or sequence, optional
        Members (or metrics) to use instead of the bank of the settings: weights by name, names, or "name=weight".
    init : "none", "moments", "rigid", "affine", "structures", path, Transform or matrix, optional
        Start; by default what the settings say. A (4, 4) matrix, or a transform of SimpleITK, takes fixed points to
        moving points in LPS millimetres.
    engine : str, optional
        Inference engine instead of that of the settings.
    predict_classes : bool
        Let the class predictor choose the weights even where moving labels are given; these are warped and scored.
    threads : int, optional
        Threads of the kernels; the result does not depend on it.
    device : str, optional
        What computes: ``cpu``, the default, ``cuda``, ``cuda:N``, or ``auto``, a GPU where there is one.
    rules : path or Rules, optional
        Acceptance criteria of the verdict; by default the shipped ones.
    progress : bool
        Show a bar on a terminal and in a notebook.
    on_progress : callable, optional
        Called with a `Progress` after every step, in place of the bar.
    **reading
        How files are read: ``label_names`` (names of the labels: a file, or ``{1: "liver"}``), ``classes`` (label
        values that are kept), ``fixed_modality`` and ``moving_modality``, ``nifti_frame``, ``nonfinite``,
        ``follow_links``, ``fixed_series`` and ``moving_series`` (a DICOM series by its hash, where a folder holds
        several).

    Returns
    -------
    Result
        Transform, inverse, warped images and all measurements; ``save`` writes them.

    Examples
    --------
    >>> import regweave as rw
    >>> from regweave.study.phantoms import make_phantom
    >>> pair = make_phantom(shape=(24, 24, 24), spacing_mm=(8.0, 8.0, 8.0)).pair
    >>> result = rw.register(pair.fixed, pair.moving, fixed_labels=pair.fixed_labels, moving_labels=pair.moving_labels)
    >>> result.regularity["folding_fraction"]
    0.0
    """
    if preset is not None and config is not None:
        raise UsageError("E189", "a preset and settings (config) are both given", "give one of them")
    rule = reading_of(reading, register)
    judged_by = read_rules(rules) if isinstance(rules, str | Path) else rules
    given = fixed_points is not None or moving_points is not None
    pairs = LandmarkPairs.read(fixed_points, moving_points) if given else None
    if isinstance(fixed, Image):
        fixed_labels = fixed.labels if fixed_labels is None else fixed_labels
        fixed_mask = fixed.mask if fixed_mask is None else fixed_mask
    if isinstance(moving, Image):
        moving_labels = moving.labels if moving_labels is None else moving_labels
        moving_mask = moving.mask if moving_mask is None else moving_mask
    with RegistrationBar(shown=progress and on_progress is None) as bar:
        result = pipeline.register(
            fixed, moving, moving_labels=moving_labels, fixed_labels=fixed_labels, fixed_mask=fixed_mask,
            moving_mask=moving_mask, preset=preset, config=config,
            model=model, metrics=metrics, init=init, engine=engine, predict_classes=predict_classes, threads=threads,
            device=device, reading=rule, on_progress=on_progress or bar, keep_view=True,
        )  # fmt: skip
    result = result if pairs is None else result.with_landmarks(pairs)
    return result if judged_by is None else result.model_copy(update={"rules": judged_by})
