"""Turn a model that benchmark/ladder.py trained into one that comes with the package.

Its weights stay: held-out patients have judged them. Its class predictor is fitted anew to the images of all patients
of the set, of which there are few, and evaluation refuses these patients for such a model. The structures get the names
of the set, and the overlays, which show patients, are dropped:
`python benchmark/ship.py build/ladder/msd_hippocampus-default/joint.json msd_hippocampus hippocampus-t1`.
With ``--network FILE.npz`` the predictor is a network that was trained elsewhere, on a GPU, to all patients: its arrays
by name after ``w_``, ``classes``, ``strides``, ``spacing``, and ``mirrored`` where images are told both ways; such a
model is an archive. ``--maps FILE.npz`` are the maps of networks of the same kind that have not seen the person: their
Dice is what the card says. ``--background`` leaves the background of any model to the images, as training does now, and
changes nothing else: `python benchmark/ship.py head-neck-ct openkbp_head_neck head-neck-ct --background`.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from _common import ROOT
from _map_folder import check
from _pairs import SETS, PairName, cases_of, files, subject_of
from _split import folds_of
from regweave.config import settings as registration_settings
from regweave.io import read_image, read_labels
from regweave.io.orientation import nearest_axes
from regweave.jobs.methods import REFINE
from regweave.measures.overlap import dice
from regweave.model.model import Model
from regweave.model.shipped import find_model, shipped_models
from regweave.pipeline.reading import Reading
from regweave.predictors import Choice
from regweave.predictors._unet.network import Network
from regweave.predictors.unet import NetworkPredictor
from regweave.training.options import TrainOptions
from regweave.training.predictor_fits import PredictorFits, SegmentedImage
from regweave.training.refinement.background import background_of

MODELS = ROOT / "src" / "regweave" / "model"


def of_all_patients(model: Model, set_name: str) -> Model:
    """Return the model with a class predictor that has seen every patient of the set."""
    reading = Reading(classes=tuple(SETS[set_name].labels))
    images = []
    for case in cases_of(set_name):
        found = files(PairName(set_name, case, case, subject_of(case)))
        geometry = reading.image(found["fixed"]).geometry
        images.append(SegmentedImage(found["fixed"], found["fixed_labels"], geometry, frozenset({subject_of(case)})))
    options = TrainOptions()
    assert model.modality in ("ct", "mr")
    fit = PredictorFits(
        Choice(options.predictor), model.weights.classes, model.modality, reading, options.seed, options.max_memory_mb
    )
    people = sorted({subject_of(case) for case in cases_of(set_name)})
    record = model.training.with_parts(predictor_groups=people)
    return replace(model, predictor=fit(images, None), training=record)


def of_network(model: Model, set_name: str, path: Path) -> Model:
    """Return the model with a network that was trained on every patient of the set."""
    with np.load(path, allow_pickle=False) as stored:
        arrays = {name.removeprefix("w_"): stored[name] for name in stored if name.startswith("w_")}
        classes = tuple(int(c) for c in stored["classes"])
        x, y, z = (float(mm) for mm in stored["spacing"])
        mirrored = tuple(int(place) for place in stored["mirrored"]) if "mirrored" in stored else ()
        network = Network.of(arrays, stored["strides"].tolist())
    names = {0: "background", **SETS[set_name].labels}
    assert model.modality in ("ct", "mr")
    told = NetworkPredictor(
        classes, model.modality, (x, y, z), network, {c: n for c, n in names.items() if c},
        shape=_middle(set_name), mirrored=mirrored,
    )  # fmt: skip
    predictor = told.telling(model.weights.classes)
    people = sorted({subject_of(case) for case in cases_of(set_name)})
    return replace(model, predictor=predictor, training=model.training.with_parts(predictor_groups=people))


def _middle(set_name: str) -> tuple[int, int, int]:
    """Voxels of a middling image along L, P and S."""
    found = []
    for case in cases_of(set_name):
        image = read_image(files(PairName(set_name, case, case, subject_of(case)))["fixed"])
        found.append([image.geometry.shape[axis] for axis in nearest_axes(image.geometry.direction)])
    x, y, z = (int(n) for n in np.median(found, axis=0))
    return x, y, z


def left_out(set_name: str, path: Path, wanted: tuple[int, ...]) -> dict[str, Any]:
    """Dice of segmentations by networks that have not seen the person, as a predictor's record has it."""
    found: dict[int, list[float]] = {}
    with np.load(path, allow_pickle=False) as stored:
        check(set_name, stored, folds_of(set_name))
        classes = np.array([int(c) for c in stored["classes"]])
        for case in cases_of(set_name):
            labels = read_labels(files(PairName(set_name, case, case, subject_of(case)))["fixed_labels"]).data
            shares = stored[case][np.isin(classes[1:], wanted)].astype(np.int32)
            whole = np.concatenate([255 - shares.sum(axis=0, keepdims=True), shares])
            told = np.array(wanted)[whole.argmax(axis=0)]
            shown = [c for c in wanted[1:] if (labels == c).any()]
            for c, value in dice(told, labels, shown).items():
                found.setdefault(c, []).append(value)
    means = {str(c): float(np.mean(values)) for c, values in sorted(found.items())}
    return {"dice": means, "mean_dice": float(np.mean(list(means.values()))), "n_images": len(cases_of(set_name))}


def named(model: Model, set_name: str) -> Model:
    """Return the model with names of structures and without pictures."""
    names = {0: "background", **SETS[set_name].labels}
    return replace(model, class_names=names, training=model.training.without("overlays"))


def with_card(model: Model, name: str) -> Model:
    """Return the model with the card of the one that is shipped by that name, where it has none of its own."""
    return (
        model if model.card is not None or name not in shipped_models() else replace(model, card=Model.load(name).card)
    )


def left_to_images(model: Model) -> Model:
    """Return the model with the background's weights and smoothness of its preset, with the moving mask and without."""
    schedule = model.settings.schedule(model.modality)
    rows = tuple(m.name for m in schedule.continuous if m.stage == "refine")
    start = schedule.start_weights(model.settings.smoothness, model.weights.classes)
    before = registration_settings.preset(model.settings.name).model_copy(update={"modality": model.modality})
    stiffness = REFINE.get(before) / REFINE.get(model.settings)
    blind = model.weights_without_mask
    return replace(
        model,
        weights=background_of(model.weights, start, rows, stiffness),
        weights_without_mask=None if blind is None else background_of(blind, start, rows, stiffness),
    )


def main() -> None:
    """Read, fit, name and write."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("model", help="model of the ladder, or a shipped one")
    options.add_argument("set", choices=sorted(SETS), help="set that it was trained on")
    options.add_argument("name", help="name of the shipped model")
    options.add_argument("--folder", type=Path, default=MODELS, help="where to write it")
    options.add_argument("--network", type=Path, help="network trained on all patients of the set")
    options.add_argument("--maps", type=Path, help="maps of networks that have not seen the person")
    options.add_argument("--background", action="store_true", help="leave the background to the images, no more")
    args = options.parse_args()
    model, network = Model.load(args.model), args.network
    if args.background:
        path = args.folder / find_model(args.model).name
        left_to_images(model).save(path)
        print(f"wrote {path.name}")
        return
    path = args.folder / f"{args.name}{'.json' if network is None else '.zip'}"
    known = of_all_patients(model, args.set) if network is None else of_network(model, args.set, network)
    if args.maps is not None:
        known = replace(
            known, predictor=replace(known.predictor, record=left_out(args.set, args.maps, known.predictor.classes))
        )
    with_card(named(known, args.set), args.name).save(path)
    print(f"wrote {path.name}")


if __name__ == "__main__":
    main()
