"""Shipped models on images that they are not for: are they refused or named before their network runs, and how fast?

    python benchmark/wrong_model.py

Each shipped model gets the first pair of every other set, and pairs of its own set with the moving image of another.
A registration is stopped where its network would begin. The seconds are those of the processor up to there. Images of
the model's own set that are named by mistake are counted too.
"""

import os
import time
import warnings
from pathlib import Path
from typing import Any

import _common
from regweave import notices
from regweave.errors import RegweaveError
from regweave.io import read_image
from regweave.model import shipped_models
from regweave.run.read import Reading
from regweave.run.register import register
from regweave.run.resolve import Recipe, misfits

OWN = {"hippocampus-t1": "msd_hippocampus", "head-neck-ct": "openkbp_head_neck"}
SETS = ("ibsr18_64", "ibsr18_native", "lpba40_80", "acdc_mm", "mscmr_cardiac", "chaos_mr_abdomen", "fvb_mouse_brain",
        "btcv_abdomen", "totalseg_abdomen", "popi_lung", "openkbp_head_neck", "msd_hippocampus")  # fmt: skip
NAMED = "W260"


class Reached(Exception):  # noqa: N818
    """The network would run now."""


def images(name: str) -> list[Path]:
    """Files of the images of a set."""
    return sorted((Path(os.environ["REGWEAVE_DATA"]) / name).glob("*/image.nii.gz"))


def stopped(*_given: Any, **_words: Any) -> Any:
    """Stand for the network."""
    raise Reached


def tried(model: str, fixed: Path, moving: Path) -> tuple[list[str], float]:
    """Return the codes that a registration with a model gives before its network, and the seconds until then."""
    pair = [read_image(path) for path in (fixed, moving)]
    began = time.process_time()
    with notices.muted(), notices.collected() as found:
        try:
            register(*pair, model=model, init="none", threads=1, progress=False)
        except Reached:
            codes = [text[:4] for text in found]
        except RegweaveError as error:
            codes = [error.code]
    return codes, time.process_time() - began


def main() -> None:
    """Try every combination, and write the counts."""
    Recipe.attach_structure_maps = stopped  # type: ignore[method-assign]
    Recipe.attach_labels = stopped  # type: ignore[method-assign]
    rows, claims = [], []
    for model, own in OWN.items():
        mine = images(own)
        for name in (name for name in SETS if name != own):
            other = images(name)
            for words, pair in (("both", (other[0], other[-1])), ("moving", (mine[0], other[0]))):
                codes, seconds = tried(model, *pair)
                named = any(code == NAMED or code.startswith("E") for code in codes)
                rows.append({"model": model, "set": name, "other": words, "codes": codes, "seconds": seconds,
                             "named": named})  # fmt: skip
        tries = [row for row in rows if row["model"] == model]
        shipped = {model: shipped_models()[model]}
        wrong = [path.parent.name for path in mine if misfits([Reading().image(path)], shipped)[model]]
        claims += [
            _common.Claim(f"{model}: wrong combinations that are refused or named before the network, of {len(tries)}",
                          sum(row["named"] for row in tries), ".0f", "", len(tries)),
            _common.Claim(f"{model}: slowest of them", max(row["seconds"] for row in tries), ".2f", " s", 1.0,
                          "at most"),
            _common.Claim(f"{model}: images of its own set named by mistake, of {len(mine)}", len(wrong), ".0f"),
        ]  # fmt: skip
    _common.write("wrong-model", 0, {"rows": rows}, claims)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main()
