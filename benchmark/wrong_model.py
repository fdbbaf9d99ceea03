"""Shipped models on images that they are not for: are they refused or named before their network runs, and how fast?

Each shipped model gets the first pair of every other set, and pairs of its own set with the moving image of another.
A registration is stopped where its network would begin. The seconds are those of the processor up to there. Images of
the model's own set that are named by mistake are counted too.
"""

import time
import warnings
from pathlib import Path
from typing import Any

from _common import claim, parser, write
from _pairs import cases_of, image_file
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


def stopped(*_given: Any, **_words: Any) -> Any:
    """Stand for the network."""
    raise Reached


def tried(model: str, fixed: Path, moving: Path) -> tuple[list[str], float]:
    """Return the codes that a registration with a model gives before its network, and the seconds until then."""
    pair = [read_image(path) for path in (fixed, moving)]
    began = time.process_time()
    with notices.muted(), notices.collected() as found:
        try:
            register(*pair, model=model, threads=1, progress=False)
        except Reached:
            codes = [text[:4] for text in found]
        except RegweaveError as problem:
            codes = [problem.code]
    return codes, time.process_time() - began


def main() -> None:
    """Try every combination, and write the counts."""
    parser(__doc__).parse_args()
    warnings.simplefilter("ignore")
    Recipe.attach_structure_maps = stopped  # type: ignore[method-assign]
    Recipe.attach_labels = stopped  # type: ignore[method-assign]
    rows, claims = [], []
    for model, own in OWN.items():
        mine, tries = [image_file(own, case) for case in cases_of(own)], []
        for name in (name for name in SETS if name != own):
            other = [image_file(name, case) for case in cases_of(name)]
            for words, pair in (("both", (other[0], other[-1])), ("moving", (mine[0], other[0]))):
                codes, seconds = tried(model, *pair)
                named = any(code == NAMED or code.startswith("E") for code in codes)
                about = {"model": model, "set": name, "other": words}
                tries.append({**about, "codes": codes, "seconds": seconds, "named": named})
        shipped = {model: shipped_models()[model]}
        wrong = sum(bool(misfits([Reading().image(path)], shipped)[model]) for path in mine)
        what = f"{model}: wrong combinations that are refused or named before the network, of {len(tries)}"
        claims += [
            claim(what, sum(row["named"] for row in tries), ".0f", least=len(tries)),
            claim(f"{model}: slowest of them", max(row["seconds"] for row in tries), ".2f s", most=1.0),
            claim(f"{model}: images of its own set named by mistake, of {len(mine)}", wrong, ".0f"),
        ]
        rows += tries
    write("wrong-model", 0, {"rows": rows}, claims)


if __name__ == "__main__":
    main()
