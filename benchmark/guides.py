"""What do structures that guide gain, for themselves and for the others, and what do wrong ones cost?

Every pair is registered without guides, with all structures as guides, with one half of them and the other, with
borders that are wrong at random, and with a structure that one label map lacks; the Dice is that of the true labels.
ANTsPy's registration of labels gets the same labels in a Python of its own (--ants PYTHON). Finished rows are kept.
With --learn, a model is trained on few pairs of the first set, with the weights of its guides; on pairs of other people
these weights are compared with the usual share, by the same contours with the same error of drawing.
"""

import itertools
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy import ndimage

import regweave as rw
from _common import RESULTS, Claim, Rows, fingerprint, parser, write
from _pairs import SETS, PairName, choose_pairs, files, subject_of, test_pairs, training_pairs, write_csv
from regweave import notices
from regweave.config.settings import preset
from regweave.io import read_image, read_labels, write_image, write_labels
from regweave.measures.scores import dice
from regweave.measures.statistics import paired_bootstrap
from regweave.registration.guides import choose, exchanged, redrawn
from regweave.types import Image, LabelMap, Volume

FIVE = ("openkbp_head_neck", "btcv_abdomen", "ibsr18_64_affine", "mscmr_cardiac", "msd_hippocampus")
MULTI = "ibsr18_64_affine+inverted"  # the moving image inverted: two modalities
WRONG_DICE = 0.8
ERROR_MM, TRAINED = 1.5, 10  # error of drawing with which weights are learned, and training pairs
LEAST_LABELS = 3  # ANTsPy refuses fewer
ANTS = """
import sys, json, resource, numpy as np, ants
fi, mi, fl, ml, out, start, values = sys.argv[1:]
read = ants.image_read
labels = [read(fl), read(ml)]
masks = [[ants.from_numpy((i.numpy() == v).astype("float32") * v, i.origin, i.spacing, i.direction)
          for v in json.loads(values)] for i in labels]
one = [sum(m[1:], m[0]) for m in masks]
images = [[read(fi)], [read(mi)]]
found = ants.label_image_registration([one[0]], [one[1]], *images, initial_transforms=start)
warped = ants.apply_transforms(labels[0], labels[1], found["fwdtransforms"], interpolator="nearestNeighbor")
ants.image_write(warped, out)
"""


class Pair:
    """A pair in memory, with all labels that both images show."""

    def __init__(self, name: PairName, set_name: str) -> None:
        paths, self.name, self.set = files(name), replace(name, set=set_name), name.set
        self.fixed, self.moving = (read_image(paths[w]) for w in ("fixed", "moving"))
        self.fixed_labels, self.moving_labels = (read_labels(paths[f"{w}_labels"]) for w in ("fixed", "moving"))
        self.values = sorted(
            set(self.fixed_labels.values()) & set(self.moving_labels.values()) & set(SETS[self.set].labels)
        )
        self.words: dict[str, Any] = {}
        if set_name == MULTI:
            data = (self.moving.data.max() - self.moving.data) * (self.moving.data > 0)
            self.moving = Volume(np.ascontiguousarray(data), self.moving.geometry)
            self.words = {"fixed_modality": "t1", "moving_modality": "t2"}

    def usable(self) -> list[int]:
        """Structures that may guide."""
        images = [
            Image.of(v, labels) for v, labels in ((self.fixed, self.fixed_labels), (self.moving, self.moving_labels))
        ]
        return list(choose(*images, dict.fromkeys(self.values, 1.0)).weights)

    def registered(self, guide: Any, labels: LabelMap | None = None) -> dict[str, Any]:
        """Register, and return the Dice of every structure with the true labels, folds and seconds of the processor."""
        began = time.process_time()
        with notices.unheard():
            result = rw.register(
                self.fixed, self.moving, fixed_labels=labels or self.fixed_labels, moving_labels=self.moving_labels,
                guide=guide, init=SETS[self.set].init, threads=1, progress=False, **self.words,
            )  # fmt: skip
        assert result.warped_labels is not None
        found = dice(result.warped_labels.data, self.fixed_labels.data, self.values)
        row = {"dice": found, "folds": result.regularity["folding_fraction"], "seconds": time.process_time() - began}
        return {**row, "guided": list(result.guided), "error": None}

    def lacking(self, value: int) -> LabelMap:
        """Fixed labels without a structure."""
        data = np.where(self.fixed_labels.data == value, 0, self.fixed_labels.data)
        return replace(self.fixed_labels, data=data)


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
        found = np.mean(list(dice(bent(middle).data, labels.data, values).values()))
        low, high = (middle, high) if found > WRONG_DICE else (low, middle)
    return bent(low)


def with_ants(pair: Pair, python: str, values: list[int]) -> dict[str, Any]:
    """Register with ANTsPy's `label_image_registration`, one thread."""
    env = {**os.environ, "ITK_GLOBAL_DEFAULT_NUMBER_OF_THREADS": "1", "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder:
        names = {
            w: str(Path(folder, f"{w}.nii.gz")) for w in ("fixed", "moving", "fixed_labels", "moving_labels", "out")
        }
        for which in ("fixed", "moving"):
            write_image(Path(names[which]), getattr(pair, which))
            write_labels(Path(names[f"{which}_labels"]), getattr(pair, f"{which}_labels"))
        start = "affine" if SETS[pair.set].init == "affine" else "rigid"
        before = processor_s()
        subprocess.run(
            [python, "-c", ANTS, *names.values(), start, json.dumps(values)], check=True, env=env, capture_output=True
        )
        seconds = processor_s() - before
        found = dice(read_image(names["out"]).data.round().astype(np.int32), pair.fixed_labels.data, pair.values)
    return {"dice": found, "seconds": seconds, "error": None}


def processor_s() -> float:
    """Seconds that processes which this one has started worked."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def rows_of(pair: Pair, ledger: Rows, code: str, python: str | None, first: bool) -> dict[str, dict[str, Any]]:
    """Measure a pair in every way; what the ledger has is not measured again."""
    name = pair.moving_labels.name
    usable = pair.usable()
    ways: dict[str, Any] = {
        "none": lambda: pair.registered(False),
        "all": lambda: pair.registered([name(v) for v in usable]),
        **{f"half {h}": lambda h=h: pair.registered([name(v) for v in usable[h::2]]) for h in (0, 1)},
        "wrong": lambda: pair.registered([name(v) for v in usable], wrong(pair.fixed_labels, pair.values, 0)),
    }
    if first:
        rest = [name(v) for v in usable if v != usable[0]]
        ways["missing"] = lambda: pair.registered([name(v) for v in usable], pair.lacking(usable[0]))
        ways["dropped"] = lambda: pair.registered(rest)
    if python is not None and len(usable) >= LEAST_LABELS:
        ways["ants"] = lambda: with_ants(pair, python, usable)
    found = {}
    for way, measure in ways.items():
        key = (pair.name.set, str(pair.name), way, "peer" if way == "ants" else code)
        row = ledger.get(key, measure)
        found[way] = {**row, "dice": {int(v): d for v, d in row["dice"].items()}}
    return {**found, "usable": {"values": usable}}


def mean(scores: Mapping[int, float], values: Iterable[int]) -> float:
    """Mean Dice of some structures."""
    return float(np.mean([scores[v] for v in values]))


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Put the numbers of one set together: means over pairs, and the worst."""
    half = [
        mean(r[f"half {h}"]["dice"], others) - mean(r["none"]["dice"], others)
        for r in rows for h in (0, 1)
        if (others := [v for v in r["none"]["dice"] if v not in r[f"half {h}"]["guided"]])
    ]  # fmt: skip
    bad = [
        mean(r["wrong"]["dice"], r["usable"]["values"]) - mean(r["none"]["dice"], r["usable"]["values"]) for r in rows
    ]
    out = {
        "pairs": len(rows),
        "none": np.mean([mean(r["none"]["dice"], r["usable"]["values"]) for r in rows]),
        "guided": np.mean([mean(r["all"]["dice"], r["usable"]["values"]) for r in rows]),
        "folds": max(r[w]["folds"] for r in rows for w in r if "folds" in r[w]),
        "others": np.mean(half), "others_worst": min(half), "wrong": np.mean(bad), "wrong_worst": min(bad),
        "seconds": np.mean([r["all"]["seconds"] for r in rows]),
        "missing": max(abs(a - rows[0]["dropped"]["dice"][v]) for v, a in rows[0]["missing"]["dice"].items()),
    }  # fmt: skip
    peers = [r for r in rows if "ants" in r]
    if peers:
        out |= {
            "ants": np.mean([mean(r["ants"]["dice"], r["usable"]["values"]) for r in peers]),
            "ants_seconds": np.mean([r["ants"]["seconds"] for r in peers]),
        }
    return {k: v if isinstance(v, int) else float(v) for k, v in out.items()}


def exchanges(set_name: str, n: int, seed: int) -> dict[str, int]:
    """Exchange every two structures of some pairs: how many are named, and how many pairs are named without reason.

    Structures of which one lies in the other are counted apart: nothing names their exchange.
    """
    found = {"looked_at": 0, "false_alarms": 0, "exchanges": 0, "concentric": 0, "named": 0}
    rng = np.random.default_rng(seed)
    for name in choose_pairs(set_name, n, seed):
        pair = Pair(name, set_name)
        usable = pair.usable()
        found["looked_at"] += 1
        found["false_alarms"] += bool(exchanged(pair.fixed_labels, pair.moving_labels, usable))
        couples = list(itertools.combinations(usable, 2))
        for k in rng.permutation(len(couples))[:10]:
            data, (a, b) = pair.moving_labels.data.copy(), couples[k]
            data[pair.moving_labels.data == a], data[pair.moving_labels.data == b] = b, a
            named = exchanged(pair.fixed_labels, replace(pair.moving_labels, data=data), usable)
            inside = concentric(pair.fixed_labels, a, b) or concentric(pair.moving_labels, a, b)
            found["concentric" if inside else "exchanges"] += 1
            found["named"] += not inside and (a, b) in named
    return found


def compare_learned(set_name: str, n: int, seed: int) -> tuple[dict[str, Any], list[Claim]]:
    """Train with guides on a few pairs, and compare learned weights with the usual share on pairs of other people."""
    settings = preset("default").model_copy(update={"initial": SETS[set_name].init})
    with tempfile.TemporaryDirectory() as folder:
        write_csv(training_pairs(set_name, TRAINED), Path(folder, "pairs.csv"))
        model = rw.train(
            Path(folder, "pairs.csv"), config=settings, guide_error_mm=ERROR_MM, predictor=None, workers=1,
            on_progress=lambda p: print(getattr(p, "stage", ""), getattr(p, "message", ""), flush=True), seed=seed,
            alpha=1.0,
        )  # fmt: skip
    models = {"learned": model, "usual": replace(model, weights=model.weights.lacking("guides"))}
    rows = []
    listed = (Pair(name, set_name) for name in test_pairs(set_name, None))
    for pair in itertools.islice((p for p in listed if len(p.usable()) > 1), n):
        name, usable, word = pair.name, pair.usable(), pair.moving_labels.name
        drawn = redrawn(pair.fixed_labels, ERROR_MM, seed, str(name))
        row: dict[str, Any] = {
            "pair": str(name),
            "usable": usable,
            "people": "+".join(map(subject_of, (name.fixed, name.moving))),
        }
        for way, one in models.items():
            pair.words["model"] = one
            row[way] = pair.registered([word(v) for v in usable], drawn)
            for h in (0, 1):
                row[f"{way} half {h}"] = (
                    pair.registered([word(v) for v in usable[h::2]], drawn) if usable[h::2] else None
                )
        row["none"] = pair.registered(False)
        rows.append(row)
        print(name, {w: round(mean(row[w]["dice"], usable), 4) for w in ("none", "usual", "learned")}, flush=True)

    def interval(what: str, values: list[float]) -> list[Claim]:
        found = paired_bootstrap(values, [row["people"] for row in rows], seed=seed)
        text = f"{set_name}: {what}, {len(rows)} pairs, {found.low:+.4f} to {found.high:+.4f}"
        return [
            Claim(text, found.mean, "+.4f"),
            Claim(f"{set_name}: {what}, pairs that gain", sum(v > 0 for v in values), ".0f"),
        ]

    def others(row: dict[str, Any], way: str) -> float:
        halves = [h for h in (0, 1) if row[f"{way} half {h}"] is not None]
        return float(np.mean([mean(row[f"{way} half {h}"]["dice"], row["usable"][1 - h :: 2]) for h in halves]))

    claims = [
        *interval(
            "guided, learned − usual",
            [mean(r["learned"]["dice"], r["usable"]) - mean(r["usual"]["dice"], r["usable"]) for r in rows],
        ),
        *interval("others, learned − usual", [others(r, "learned") - others(r, "usual") for r in rows]),
        *interval(
            "guided, usual − no guide",
            [mean(r["usual"]["dice"], r["usable"]) - mean(r["none"]["dice"], r["usable"]) for r in rows],
        ),
        Claim(
            f"{set_name}: voxels folded",
            max(r[w]["folds"] for r in rows for w in (*models, "none")),
            "g",
            target=0.0,
            sense="at most",
        ),
    ]
    record = model.training.guides
    return {
        "error_mm": ERROR_MM,
        "trained_on": TRAINED,
        "weights": model.weights_table(),
        "training": record and record.model_dump(mode="json"),
        "rows": rows,
    }, claims


def concentric(labels: LabelMap, a: int, b: int) -> bool:
    """Whether the centre of one structure is nearer to that of another than the radius of the larger one."""
    index = [np.argwhere(labels.data == value) for value in (a, b)]
    apart = np.linalg.norm(np.subtract(*(labels.geometry.points(one.mean(axis=0)) for one in index)))
    volume = max(map(len, index)) * abs(np.linalg.det(labels.geometry.affine[:3, :3]))
    return bool(apart <= np.cbrt(3 * volume / (4 * np.pi)))


def main() -> None:
    options = parser(__doc__, pairs=3, seed=0, output=None)
    options.add_argument("--sets", default=",".join((*FIVE, MULTI)), help="sets, with commas between")
    options.add_argument("--train", action="store_true", help="pairs of training patients, to choose settings on")
    options.add_argument("--ants", help="Python that has antspyx")
    options.add_argument("--learn", action="store_true", help="compare learned weights with the usual share, one set")
    arguments = options.parse_args()
    if arguments.learn:
        found, claims = compare_learned(arguments.sets.split(",")[0], arguments.pairs or 6, arguments.seed)
        write(arguments.output or "guides-learned", arguments.seed, found, claims)
        return
    where = "guides-training" if arguments.train else "guides"
    RESULTS.mkdir(exist_ok=True)
    ledger, code, found, claims = Rows(RESULTS / f"{where}.rows.jsonl"), fingerprint(), {}, []
    for set_name in arguments.sets.split(","):
        source = set_name.partition("+")[0]
        listed = (Pair(p, set_name) for p in (training_pairs if arguments.train else test_pairs)(source, None))
        pairs = list(itertools.islice((p for p in listed if len(p.usable()) > 1), arguments.pairs or 3))
        rows = [rows_of(p, ledger, code, arguments.ants, n == 0) for n, p in enumerate(pairs)]
        found[set_name] = one = summary(rows) | exchanges(source, 6, arguments.seed)
        print(set_name, {k: round(v, 4) for k, v in one.items()}, flush=True)
        least = 0.8 if source == "btcv_abdomen" else 0.9
        claims += [
            Claim(f"{set_name}: Dice of guided structures", one["guided"], target=least),
            Claim(f"{set_name}: others, against no guide", one["others"], "+.3f", target=0.0),
            Claim(f"{set_name}: others, worst", one["others_worst"], "+.3f", target=-0.02),
            Claim(f"{set_name}: wrong guides, against none", one["wrong"], "+.3f", target=0.02),
            Claim(f"{set_name}: wrong guides, worst pair", one["wrong_worst"], "+.3f", target=-0.01),
            Claim(f"{set_name}: missing against left out", one["missing"], ".4f", target=0.005, sense="at most"),
            Claim(f"{set_name}: voxels folded", one["folds"], "g", target=0.0, sense="at most"),
            Claim(
                f"{set_name}: pairs named without reason",
                one["false_alarms"] / one["looked_at"],
                ".0%",
                "",
                0.02,
                "at most",
            ),
        ]
        if one["exchanges"]:
            claims.append(Claim(f"{set_name}: exchanges named", one["named"] / one["exchanges"], ".0%", target=1.0))
        if "ants" in one:
            claims.append(
                Claim(f"{set_name}: ahead of ANTsPy in Dice", one["guided"] - one["ants"], "+.3f", target=0.0)
            )
            faster = one["ants_seconds"] / one["seconds"]
            claims.append(Claim(f"{set_name}: times faster than ANTsPy, one thread", faster, ".1f", target=5.0))
    write(arguments.output or where, arguments.seed, {"sets": found}, claims)


if __name__ == "__main__":
    sys.exit(main())
