"""What do structures that guide gain, for themselves and for the others, and what do wrong ones cost?

Every pair is registered without guides, with all structures as guides, with one half of them and the other, with
borders that are wrong at random, and with a structure that one label map lacks. The Dice is that of the true labels.
ANTsPy's registration of labels gets the same labels in a Python of its own (--ants PYTHON). Finished rows are kept.
With --learn a model is trained on few pairs of the first set, with the weights of its guides. On pairs of other people
these weights are compared with the usual share, by the same contours with the same error of drawing.
"""

import itertools
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy import ndimage

import _pairs as sets
import regweave as rw
from _common import RESULTS, Rows, claim, fingerprint, parser, with_python, write
from _pairs import SETS, PairName, mean_of
from regweave.io import read_image, write_image, write_labels
from regweave.measures.scores import dice
from regweave.registration.guides import choose, exchanged, redrawn
from regweave.types import LabelMap

FIVE = ("openkbp_head_neck", "btcv_abdomen", "ibsr18_64_affine", "mscmr_cardiac", "msd_hippocampus")
MULTI = "ibsr18_64_affine+inverted"  # the moving image inverted: two modalities
WRONG_DICE = 0.8
ERROR_MM, TRAINED = 1.5, 10  # error of drawing with which weights are learned, and training pairs
COMPARED = (("guided", "learned", "usual"), ("others", "learned", "usual"), ("guided", "usual", "none"))
LEAST_LABELS = 3  # ANTsPy refuses fewer
ANTS = """
import ants
files, out, start, values = given
labels, images = ([[ants.image_read(files[side + kind])] for side in ("fixed", "moving")] for kind in ("_labels", ""))
masks = []
for one, in labels:
    parts = [(one.numpy() == v).astype("float32") * v for v in values]
    masks.append(ants.from_numpy(sum(parts), one.origin, one.spacing, one.direction))
began = time.process_time()
found = ants.label_image_registration(masks[:1], masks[1:], *images, initial_transforms=start)
seconds = time.process_time() - began
warped = ants.apply_transforms(labels[0][0], labels[1][0], found["fwdtransforms"], interpolator="nearestNeighbor")
ants.image_write(warped, out)
print(seconds)
"""


class Pair:
    """A pair in memory, with all labels that both images show."""

    def __init__(self, name: PairName, set_name: str) -> None:
        self.name, self.set = replace(name, set=set_name), name.set
        self.fixed, self.moving = (sets.read_case(name.set, case) for case in (name.fixed, name.moving))
        self.labels: tuple[LabelMap, LabelMap] = (self.fixed.labels, self.moving.labels)  # type: ignore[assignment]
        self.values = sorted(set(SETS[self.set].labels).intersection(*(labels.values() for labels in self.labels)))
        self.words: dict[str, Any] = {"init": SETS[self.set].init}
        if set_name == MULTI:
            data = np.ascontiguousarray((self.moving.data.max() - self.moving.data) * (self.moving.data > 0))
            self.moving = replace(self.moving, data=data)
            self.words |= {"fixed_modality": "t1", "moving_modality": "t2"}
        self.usable = list(choose(self.fixed, self.moving, dict.fromkeys(self.values, 1.0)).weights)

    def registered(self, guides: list[int], labels: LabelMap | None = None) -> dict[str, Any]:
        """Register with structures as guides, perhaps with other fixed labels; Dice of all with the true labels."""
        truth, guide = self.labels[0], [self.labels[1].name(v) for v in guides]
        fixed = replace(self.fixed, labels=labels or truth)
        result, row = sets.registered(fixed, self.moving, truth, self.values, guide=guide or False, **self.words)
        return {**row, "guided": list(result.guided)}

    def with_ants(self, python: str) -> dict[str, Any]:
        """Register with ANTsPy's `label_image_registration`, one thread."""
        with tempfile.TemporaryDirectory() as folder:
            names = {which: str(Path(folder, f"{which}.nii.gz")) for which in sets.WHICH}
            for which, image in (("fixed", self.fixed), ("moving", self.moving)):
                write_image(Path(names[which]), image)
                write_labels(Path(names[f"{which}_labels"]), image.labels)
            start, out = "affine" if SETS[self.set].init == "affine" else "rigid", Path(folder, "out.nii.gz")
            seconds = with_python(python, ANTS, names, out, start, self.usable)
            found = dice(read_image(out).data.round().astype(np.int32), self.labels[0].data, self.values)
        return {"dice": found, "seconds": seconds}


def wrong(labels: LabelMap, values: list[int], seed: int) -> LabelMap:
    """Bend labels at random, so that they have a mean Dice of `WRONG_DICE` with themselves."""
    rng, shape = np.random.default_rng(seed), labels.data.shape
    spacing = labels.geometry.spacing_mm[:, None, None, None]
    field = np.stack([ndimage.gaussian_filter(rng.normal(size=shape), 10.0 / spacing.ravel()) for _ in shape])
    field /= np.sqrt((field**2).sum(axis=0)).mean()
    grid, inner = np.indices(shape, dtype=np.float64), np.pad(np.ones([n - 2 for n in shape], dtype=bool), 1)

    def bent(size_mm: float) -> LabelMap:
        data = ndimage.map_coordinates(labels.data, grid + size_mm * field / spacing, order=0, mode="constant")
        return replace(labels, data=np.where(inner, data, labels.data))  # no border is moved out of the image

    low, high = 0.0, 30.0
    for _ in range(12):
        middle = (low + high) / 2
        found = mean_of(dice(bent(middle).data, labels.data, values).values())
        low, high = (middle, high) if found > WRONG_DICE else (low, middle)
    return bent(low)


def rows_of(pair: Pair, kept: Rows, code: str, python: str | None, first: bool) -> dict[str, Any]:
    """Measure a pair in every way; finished rows are not measured again."""
    usable, (fixed, _) = pair.usable, pair.labels
    ways = {
        "none": partial(pair.registered, []),
        "all": partial(pair.registered, usable),
        **{f"half {h}": partial(pair.registered, usable[h::2]) for h in (0, 1)},
        "wrong": lambda: pair.registered(usable, wrong(fixed, pair.values, 0)),
    }
    if first:
        lacking = replace(fixed, data=np.where(fixed.data == usable[0], 0, fixed.data))
        ways["missing"] = partial(pair.registered, usable, lacking)
        ways["dropped"] = partial(pair.registered, usable[1:])
    if python is not None and len(usable) >= LEAST_LABELS:
        ways["ants"] = partial(pair.with_ants, python)
    found: dict[str, Any] = {"usable": usable}
    for way, measure in ways.items():
        found[way] = kept.get((pair.name.set, pair.name, way, "peer" if way == "ants" else code), measure)
    return found


def mean(row: dict[str, Any], values: list[int]) -> float:
    """Mean Dice of some structures."""
    return mean_of(row["dice"][str(v)] for v in values)


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Put the numbers of one set together: means over pairs, and the worst."""
    none, guided, bad = ([mean(r[way], r["usable"]) for r in rows] for way in ("none", "all", "wrong"))
    half = []
    for row, h in itertools.product(rows, (0, 1)):
        one = row[f"half {h}"]
        if others := [int(v) for v in row["none"]["dice"] if int(v) not in one["guided"]]:
            half.append(mean(one, others) - mean(row["none"], others))
    losses = np.subtract(bad, none)
    out = {
        "pairs": len(rows), "none": mean_of(none), "guided": mean_of(guided),
        "folds": max(r[way].get("folds", 0.0) for r in rows for way in r if way != "usable"),
        "others": mean_of(half), "others_worst": min(half), "wrong": float(losses.mean()),
        "wrong_worst": float(losses.min()), "seconds": mean_of(r["all"]["seconds"] for r in rows),
        "missing": max(abs(d - rows[0]["dropped"]["dice"][v]) for v, d in rows[0]["missing"]["dice"].items()),
    }  # fmt: skip
    if peers := [r for r in rows if "ants" in r]:
        out["ants"] = mean_of(mean(r["ants"], r["usable"]) for r in peers)
        out["ants_seconds"] = mean_of(r["ants"]["seconds"] for r in peers)
    return out


def exchanges(set_name: str, n: int, seed: int) -> dict[str, int]:
    """Exchange every two structures of some pairs: how many are named, and how many pairs are named without reason.

    Structures of which one lies in the other are counted apart: nothing names their exchange.
    """
    found, rng = (
        {"looked_at": 0, "false_alarms": 0, "exchanges": 0, "concentric": 0, "named": 0},
        np.random.default_rng(seed),
    )
    for name in sets.choose_pairs(set_name, n, seed):
        pair = Pair(name, set_name)
        fixed, moving = pair.labels
        found["looked_at"] += 1
        found["false_alarms"] += bool(exchanged(fixed, moving, pair.usable))
        couples = list(itertools.combinations(pair.usable, 2))
        for k in rng.permutation(len(couples))[:10]:
            data, (a, b) = moving.data.copy(), couples[k]
            data[moving.data == a], data[moving.data == b] = b, a
            named = exchanged(fixed, replace(moving, data=data), pair.usable)
            inside = concentric(fixed, a, b) or concentric(moving, a, b)
            found["concentric" if inside else "exchanges"] += 1
            found["named"] += not inside and (a, b) in named
    return found


def concentric(labels: LabelMap, a: int, b: int) -> bool:
    """Whether the centre of one structure is nearer to that of another than the radius of the larger one."""
    index = [np.argwhere(labels.data == value) for value in (a, b)]
    apart = np.linalg.norm(np.subtract(*(labels.geometry.points(one.mean(axis=0)) for one in index)))
    volume = max(map(len, index)) * abs(np.linalg.det(labels.geometry.affine[:3, :3]))
    return bool(apart <= np.cbrt(3 * volume / (4 * np.pi)))


def claims_of(name: str, one: dict[str, Any]) -> list[dict[str, Any]]:
    """Targets of one set."""
    out = [
        claim(f"{name}: Dice of guided structures", one["guided"], least=0.8 if name == "btcv_abdomen" else 0.9),
        claim(f"{name}: others, against no guide", one["others"], "+.3f", least=0.0),
        claim(f"{name}: others, worst", one["others_worst"], "+.3f", least=-0.02),
        claim(f"{name}: wrong guides, against none", one["wrong"], "+.3f", least=0.02),
        claim(f"{name}: wrong guides, worst pair", one["wrong_worst"], "+.3f", least=-0.01),
        claim(f"{name}: missing against left out", one["missing"], ".4f", most=0.005),
        claim(f"{name}: voxels folded", one["folds"], "g", most=0.0),
        claim(f"{name}: pairs named without reason", one["false_alarms"] / one["looked_at"], ".0%", most=0.02),
    ]
    if one["exchanges"]:
        out.append(claim(f"{name}: exchanges named", one["named"] / one["exchanges"], ".0%", least=1.0))
    if "ants" in one:
        faster = one["ants_seconds"] / one["seconds"]
        out.append(claim(f"{name}: ahead of ANTsPy in Dice", one["guided"] - one["ants"], "+.3f", least=0.0))
        out.append(claim(f"{name}: times faster than ANTsPy, one thread", faster, ".1f", least=5.0))
    return out


def first_pairs(name: str, of: Callable[[str, None], list[PairName]], n: int) -> list[Pair]:
    """The first pairs of a walk with at least two structures that may guide."""
    listed = (Pair(one, name) for one in of(name.partition("+")[0], None))
    return list(itertools.islice((pair for pair in listed if len(pair.usable) > 1), n))


def learned(name: str, n: int, seed: int) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Train with guides on a few pairs, and compare learned weights with the usual share on pairs of other people."""
    settings = sets.settings_of("default").model_copy(update={"initial": SETS[name].init})
    with tempfile.TemporaryDirectory() as folder:
        listed = Path(folder, "pairs.csv")
        sets.write_csv(sets.training_pairs(name, TRAINED), listed)
        model = rw.train(
            listed, config=settings, guide_error_mm=ERROR_MM, predictor=None, workers=1, seed=seed, alpha=1.0
        )
    models = {"learned": model, "usual": replace(model, weights=model.weights.lacking("guides"))}
    rows = []
    for pair in first_pairs(name, sets.test_pairs, n):
        row: dict[str, Any] = {"people": "+".join(map(sets.subject_of, (pair.name.fixed, pair.name.moving)))}
        drawn = redrawn(pair.labels[0], ERROR_MM, seed, str(pair.name))
        for way, one in models.items():
            pair.words["model"] = one
            row[way] = pair.registered(pair.usable, drawn)
            halves = [pair.usable[h::2] for h in (0, 1)]
            others = [mean(pair.registered(half, drawn), rest) for half, rest in itertools.permutations(halves, 2)]
            row[way] |= {"guided": mean(row[way], pair.usable), "others": mean_of(others)}
        row["none"] = pair.registered([])
        row["none"]["guided"] = mean(row["none"], pair.usable)
        rows.append({"pair": str(pair.name), **row})
        print(pair.name, {way: round(row[way]["guided"], 4) for way in ("none", *models)}, flush=True)
    claims = []
    for key, one, other in COMPARED:
        gains = [row[one][key] - row[other][key] for row in rows]
        found = sets.mean_interval(gains, [row["people"] for row in rows], seed)
        what = f"{name}: {key}, {one} − {'no guide' if other == 'none' else other}"
        claims.append(
            claim(f"{what}, {len(rows)} pairs, {found['low']:+.4f} to {found['high']:+.4f}", found["mean"], "+.4f")
        )
        claims.append(claim(f"{what}, pairs that gain", sum(gain > 0 for gain in gains), ".0f"))
    folds = max(row[way]["folds"] for row in rows for way in (*models, "none"))
    claims.append(claim(f"{name}: voxels folded", folds, "g", most=0.0))
    record = model.training.guides
    content = {"error_mm": ERROR_MM, "trained_on": TRAINED, "weights": model.weights_table(), "rows": rows}
    return {**content, "training": record and record.model_dump(mode="json")}, claims


def main() -> None:
    """Measure all sets, and print."""
    options = parser(__doc__, pairs=3, seed=0, output=None)
    options.add_argument("--sets", default=",".join((*FIVE, MULTI)), help="sets, with commas between")
    options.add_argument("--ants", help="Python that has antspyx")
    options.add_argument("--train", action="store_true", help="pairs of training patients, to choose settings on")
    options.add_argument("--learn", action="store_true", help="compare learned weights with the usual share, one set")
    given = options.parse_args()
    if given.learn:
        content, claims = learned(given.sets.split(",")[0], given.pairs, given.seed)
        write(given.output or "guides-learned", given.seed, content, claims)
        return
    where = "guides-training" if given.train else "guides"
    kept, code, found, claims = Rows(RESULTS / f"{where}.rows.jsonl"), fingerprint(), {}, []
    for name in given.sets.split(","):
        source = name.partition("+")[0]
        pairs = first_pairs(name, sets.training_pairs if given.train else sets.test_pairs, given.pairs)
        rows = [rows_of(p, kept, code, given.ants, n == 0) for n, p in enumerate(pairs)]
        found[name] = summary(rows) | exchanges(source, 6, given.seed)
        claims += claims_of(name, found[name])
    write(given.output or where, given.seed, {"sets": found}, claims)


if __name__ == "__main__":
    main()
