"""U-Nets of a cross-validation: for each fold one that never saw its people, and their maps.

`python benchmark/networks.py --set openkbp_head_neck --mirror --steps 6000 --output maps/openkbp_head_neck.npz` writes
the archive that `crossval.py` reads: 8-bit probabilities of every image by the network of its fold. Needs PyTorch; on a
GPU a fold of head and neck takes about a minute. Stopped, it goes on where it was.
"""

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from _pairs import SETS, PairName, cases_of, files, folds_of, subject_of
from regweave import predictors
from regweave.predictors import Examples
from regweave.predictors.unet import NetworkPredictor
from regweave.run.read import Reading
from regweave.types import LabelMap, Volume

Segmented = dict[str, tuple[Volume, LabelMap]]


def images_of(set_name: str) -> Segmented:
    """Image and labels of every case; labels that do not count are background, and structures have their names."""
    reading, names = Reading(classes=tuple(SETS[set_name].labels)), SETS[set_name].labels
    out = {}
    for case in cases_of(set_name):
        found = files(PairName(set_name, case, case, subject_of(case)))
        volume = reading.image(found["fixed"])
        labels = reading.labels(found["fixed_labels"], volume.geometry)
        assert labels is not None
        out[case] = (volume, LabelMap(labels.data, labels.geometry, names))
    return out


def fitted(images: Segmented, cases: Sequence[str], args: argparse.Namespace, name: str) -> NetworkPredictor:
    """Train a network on some cases."""
    volumes, labels = zip(*(images[case] for case in cases), strict=True)
    classes = (0, *SETS[args.set].labels)
    modality = "ct" if volumes[0].modality == "ct" else "mr"
    began = time.monotonic()

    def tell(step: int, steps: int, loss: float) -> None:
        if step % 500 == 0:
            print(f"{name}: step {step} of {steps}, loss {loss:.3f}, {time.monotonic() - began:.0f} s", flush=True)

    checkpoint = args.output.with_name(f"{args.output.stem}-{name}.safetensors")
    people = [subject_of(case) for case in cases]
    examples = Examples(volumes, labels, classes, modality, args.seed, people, tell, checkpoint)
    options = {key: getattr(args, key) for key in ("width", "steps", "minutes", "device", "mirror")}
    found = predictors.fit("unet", examples, **options)
    assert isinstance(found, NetworkPredictor)
    return found


def maps_of(network: NetworkPredictor, volume: Volume) -> Any:
    """8-bit probabilities of the structures on the grid of the image."""
    maps = network.maps(volume)
    if maps.shares.shape[1:] != volume.data.shape:
        raise SystemExit(f"maps of {maps.shares.shape[1:]} voxels for an image of {volume.data.shape}")
    return np.rint(255 * maps.shares).astype(np.uint8)


def cross_fitted(images: Segmented, args: argparse.Namespace) -> dict[str, Any]:
    """Maps of every case by the network of its fold."""
    folds = folds_of(args.set)
    out: dict[str, Any] = {"classes": np.array((0, *SETS[args.set].labels))}
    for fold in range(SETS[args.set].folds):
        network = fitted(images, [case for case, of in folds.items() if of != fold], args, f"fold{fold}")
        for case in (case for case, of in folds.items() if of == fold):
            out |= {case: maps_of(network, images[case][0]), f"fold_{case}": np.array(fold)}
    return out


def main() -> None:
    """Train and write."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--set", required=True, choices=sorted(SETS), help="set of REGWEAVE_DATA")
    options.add_argument("--output", type=Path, required=True, help="archive to write")
    options.add_argument("--width", type=int, default=24)
    options.add_argument("--steps", type=int, default=6000)
    options.add_argument("--minutes", type=float, default=60.0, help="of one network, at most")
    options.add_argument("--device", default="auto")
    options.add_argument("--mirror", action="store_true", help="sides are alike: left and right change places")
    options.add_argument("--seed", type=int, default=0)
    args = options.parse_args()
    images = images_of(args.set)
    content = cross_fitted(images, args)
    part = args.output.with_suffix(".part")
    with part.open("wb") as file:
        np.savez_compressed(file, **content)
    part.replace(args.output)
    print(f"wrote {args.output.name}")


if __name__ == "__main__":
    main()
