"""U-Nets of a cross-validation: for each fold one that never saw its people, and their maps.

`python benchmark/networks.py --set openkbp_head_neck --mirror --steps 6000 --output maps/openkbp_head_neck.npz` writes
the archive that `crossval.py` reads: 8-bit probabilities of every image by the network of its fold. Needs PyTorch; on a
GPU a fold of head and neck takes about a minute. Stopped, it goes on where it was.
"""

import time
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from _common import parser
from _pairs import SETS, cases_of, folds_of, segmented, subject_of
from regweave import predictors
from regweave.predictors import Examples
from regweave.types import LabelMap, Volume


def fitted(images: Mapping[str, tuple[Volume, LabelMap]], args: Namespace, fold: int) -> Any:
    """Train the network of a fold on the images of all others."""
    volumes, labels = zip(*images.values(), strict=True)
    began = time.monotonic()

    def tell(step: int, steps: int, loss: float) -> None:
        if step % 500 == 0:
            print(f"fold {fold}: step {step} of {steps}, loss {loss:.3f}, {time.monotonic() - began:.0f} s", flush=True)

    checkpoint = args.output.with_name(f"{args.output.stem}-fold{fold}.safetensors")
    modality, people = "ct" if volumes[0].modality == "ct" else "mr", list(map(subject_of, images))
    examples = Examples(volumes, labels, (0, *SETS[args.set].labels), modality, args.seed, people, tell, checkpoint)
    return predictors.fit(
        "unet", examples, **{k: getattr(args, k) for k in ("width", "steps", "minutes", "device", "mirror")}
    )


def main() -> None:
    """Train and write."""
    options = parser(__doc__, set="msd_hippocampus", seed=0)
    options.add_argument("--output", type=Path, required=True, help="archive to write")
    options.add_argument("--width", type=int, default=24, help="channels of the first layer")
    options.add_argument("--steps", type=int, default=6000, help="steps of one network")
    options.add_argument("--minutes", type=float, default=60.0, help="of one network, at most")
    options.add_argument("--device", default="auto", help="device of the network")
    options.add_argument("--mirror", action="store_true", help="sides are alike: left and right change places")
    args = options.parse_args()
    images, folds = {case: segmented(args.set, case) for case in cases_of(args.set)}, folds_of(args.set)
    content: dict[str, Any] = {"classes": np.array((0, *SETS[args.set].labels))}
    for fold in range(SETS[args.set].folds):
        network = fitted({case: of for case, of in images.items() if folds[case] != fold}, args, fold)
        for case in (case for case, of in folds.items() if of == fold):
            shares = network.maps(images[case][0]).shares
            content |= {case: np.rint(255 * shares).astype(np.uint8), f"fold_{case}": np.array(fold)}
    part = args.output.with_suffix(".part")
    with part.open("wb") as file:
        np.savez_compressed(file, **content)
    part.replace(args.output)
    print(f"wrote {args.output.name}")


if __name__ == "__main__":
    main()
