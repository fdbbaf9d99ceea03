"""Keep the numbers of `regweave reproduce`, and write docs/reproduced.md and its charts from them."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from _common import RESULTS, ROOT, Claim, write
from _reproduced_anchored import anchored, content_of
from _reproduced_claims import anchored_table, claims_table, difference, share_table
from regweave.io.records.schema import read_record
from regweave.report.charts import bar_chart, box_plot
from regweave.report.reproduce import tables
from regweave.report.reproduce.page import boxes, learned_weights
from regweave.report.reproduce.records import ExperimentRecord, ReproduceRecord
from regweave.study.reproduce.cost import COST
from regweave.study.reproduce.experiments import EXPERIMENTS

PAGE, IMAGES = ROOT / "docs" / "reproduced.md", ROOT / "docs" / "images"
DIGITS = 4
PER_LABEL = ("dice_before", "dice_after")
KEPT = ("name", "title", "paper_set", "classes", "paper_organs", "paper", "differences", "source", "overlay", "rules",
        "cases_found", "methods", "comparison", "gains", "truth_error_mm")  # fmt: skip
"""What is kept of an experiment as it is; cases, splits, runs and results are kept in part."""
TITLE = """\
# The paper's table, made again

Made from `benchmark/results/reproduced-*.json` by `python benchmark/reproduced.py`. What was run, on which data, how to
read it, and what agrees with the paper: [the paper's experiments](reproduce.md). The pictures of a run stay with who
ran it: some of the sets do not allow to publish them."""


def kept_of(experiment: Mapping[str, Any]) -> dict[str, Any]:
    """Shorten an experiment: Dice of each test pair and what was learned, nothing that names a case."""
    runs = [
        {
            k: run[k]
            for k in ("split", "method", "smoothness", "tuning", "weights", "registrations", "inferences")
            if k in run
        }
        for run in experiment["runs"]
    ]
    splits = [{**s, "train": [""] * len(s["train"]), "test": [""] * len(s["test"])} for s in experiment["splits"]]
    out = {**{k: experiment[k] for k in KEPT}, "cases": [""] * len(experiment["cases"]), "splits": splits, "runs": runs}
    out["results"] = [_result(row) for row in experiment["results"]]
    pairs = {m: difference(experiment, "model:mw", m) for m in experiment["methods"] if m.startswith("model:")}
    return {**out, "mw_minus": {m: d for m, d in pairs.items() if m != "model:mw"}}


def _result(row: Mapping[str, Any]) -> dict[str, Any]:
    if row["error"] is not None:
        return {"method": row["method"], "error": row["error"]}
    told = {c: {} if s["state"] == "scored" else {"state": s["state"]} for c, s in row["labels"].items()}
    labels = {c: {**told[c], **{k: _rounded(s[k]) for k in PER_LABEL}} for c, s in row["labels"].items()}
    folding = _rounded(row["folding_fraction"])
    return {"method": row["method"], "error": None, "labels": labels, "folding_fraction": folding}


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, DIGITS)


def keep(folder: Path, n_anchored: int, workers: int) -> None:
    """Write what documentation needs of a run to benchmark/results."""
    content = content_of(folder)
    experiments = [kept_of(e) for e in content["experiments"]]
    name = f"reproduced-{content['settings']['name'].replace('@', '')}"
    head = {k: content[k] for k in ("experiment", "quick", "max_pairs", "models", "timing")}
    head["max_folds"], head["cpu_seconds"] = None if content["quick"] else folds_run(content), cost_of(folder)
    path = RESULTS / f"{name}.json"
    before = _measured_before(path)
    for kept, e in zip(experiments, content["experiments"], strict=True):
        if n_anchored:
            kept["anchored"] = anchored(folder, e, n_anchored, workers)
        elif (found := before.get(kept["name"])) and found["runs"] == json.loads(json.dumps(kept["runs"])):
            kept["anchored"] = found.get("anchored")
    head, experiments = _joined(path, {**head, "seed": content["seed"]}, experiments)
    settings = {"name": content["settings"]["name"]}
    credit = " ".join(dict.fromkeys(e["source"].replace(" Do not publish the pictures.", "") for e in experiments))
    claims = [_claim(e, settings["name"], row) for e in experiments for row in e["gains"] if row["label"] is None]
    write(name, content["seed"], {**head, "settings": settings, "credit": credit, "experiments": experiments}, claims)
    path.write_text(_one_line_each(path.read_text(encoding="utf-8")), encoding="utf-8")


def folds_run(content: Mapping[str, Any]) -> int | None:
    """Folds of each experiment that were run, None for all."""
    planned = {p.name: p.folds for p in EXPERIMENTS["all"]}
    run = {e["name"]: len({s["fold"] for s in e["splits"]}) for e in content["experiments"]}
    return max((n for name, n in run.items() if n < planned[name]), default=None)


def cost_of(folder: Path) -> dict[str, float] | None:
    """Processor time by experiment, where the run kept it."""
    path = folder / COST
    return json.loads(path.read_text(encoding="utf-8"))["cpu_seconds"] if path.is_file() else None


def _joined(
    path: Path, head: dict[str, Any], experiments: list[dict[str, Any]]
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Join a run with what the same protocol gave before: experiments may be run one by one."""
    seed = head.pop("seed")
    if not path.is_file():
        return head, experiments
    earlier = json.loads(path.read_text(encoding="utf-8"))
    same = earlier["seed"] == seed and all(
        earlier.get(k) == head[k] for k in ("quick", "max_pairs", "models", "max_folds")
    )
    found = {e["name"]: e for e in experiments}
    others = {e["name"]: e for e in earlier["experiments"] if same and e["name"] not in found}
    if not others:
        return head, experiments
    order = [e.name for e in EXPERIMENTS["all"]]
    joined = sorted([*found.values(), *others.values()], key=lambda e: order.index(e["name"]))
    timing = {**earlier["timing"], **head["timing"]}
    cost = {**(earlier.get("cpu_seconds") or {}), **(head["cpu_seconds"] or {})}
    return {**head, "experiment": "all", "timing": timing, "cpu_seconds": cost or None}, joined


def _measured_before(path: Path) -> dict[str, dict[str, Any]]:
    """Experiments of an earlier call, by name: what was measured with the same models is measured once."""
    if not path.is_file():
        return {}
    return {e["name"]: e for e in json.loads(path.read_text(encoding="utf-8"))["experiments"]}


def _one_line_each(text: str) -> str:
    """Put every element of the long lists on a line of its own, which a difference of two versions then shows."""
    content = json.loads(text)
    experiments = content.pop("experiments")
    lists = []
    for e in experiments:
        long = {k: e.pop(k) for k in ("runs", "results")}
        rows = [
            f' "{k}": [\n' + ",\n".join(f"  {json.dumps(r, ensure_ascii=False)}" for r in v) + "]"
            for k, v in long.items()
        ]
        lists.append(json.dumps(e, ensure_ascii=False)[:-1] + ",\n" + ",\n".join(rows) + "}")
    return (
        json.dumps(content, indent=1, ensure_ascii=False)[:-2] + ',\n "experiments": [\n' + ",\n".join(lists) + "]}\n"
    )


def _claim(experiment: Mapping[str, Any], settings: str, row: Mapping[str, Any]) -> Claim:
    what = f"MW − {row['over']}, mean Dice, {experiment['name']}, {settings}"
    return Claim(what, float("nan") if row["mean"] is None else row["mean"], "+.4f")


def page(records: Sequence[ReproduceRecord]) -> str:
    """Return the page, and write its charts beside it."""
    parts = [TITLE]
    for record in records:
        parts += [f"## `{record.settings.name}`", _head(record), claims_table(record)]
        parts += [table for table in (anchored_table(record), share_table(record)) if table is not None]
        for e in record.experiments:
            parts += [f"### {e.title}", _protocol(e)]
            found = [tables.paper_table(e), tables.ladder_table(e), tables.gain_table(e), tables.truth_table(e)]
            parts += [
                t.markdown() for t in (*found, tables.cost_table(e, record.timing.get(e.name, {}))) if t is not None
            ]
            parts += [f"![{words}](images/{_chart(record, e, kind)})" for kind, words in CHARTS.items()]
            parts.append(e.source)
    return "\n\n".join(parts) + "\n"


def _head(record: ReproduceRecord) -> str:
    drawn = "" if record.max_pairs is None else f" --max-pairs {record.max_pairs}"
    extra = record.model_extra or {}
    asked = [name for name in extra["models"] if name != "mw"]
    models = "".join(f" --model {name}" for name in asked)
    names = ", ".join(f"`{e.name}`" for e in record.experiments)
    done = {e.name for e in record.experiments}
    lacking = ", ".join(f"`{p.name}`" for p in EXPERIMENTS[extra["experiment"]] if p.name not in done)
    quick = " --quick" if record.quick else "" if record.max_folds is None else f" --max-folds {record.max_folds}"
    command = f"regweave reproduce {extra['experiment']}{quick} --preset {record.settings.name}{drawn}{models}"
    told = f"`{command}`, seed {record.seed}: {names}." + (f" **Not finished: {lacking}.**" if lacking else "")
    return told + (f" {QUICK}" if record.quick else _fewer_draws(record))


def _fewer_draws(record: ReproduceRecord) -> str:
    """Say which experiments were run with fewer draws of training pairs than the protocol has."""
    planned = {p.name: p.repetitions for p in EXPERIMENTS["all"]}
    run = {e.name: max(s.repetition for s in e.splits) for e in record.experiments}
    told = [f"`{name}` {n} of {planned[name]}" for name, n in run.items() if n < planned[name]]
    return f" **Draws of training pairs: {', '.join(told)}.**" if told else ""


def _protocol(e: ExperimentRecord) -> str:
    train, test = ([len(getattr(s, key)) for s in e.splits] for key in ("train", "test"))
    found = "" if e.cases_found is None or e.rules is None else f" ({e.cases_found} cases found)"
    folds, draws = len({s.fold for s in e.splits}), max(s.repetition for s in e.splits)
    counts = f"{len(e.cases)} scans{found}; {folds} folds, {draws} draws of training pairs in each"
    return f"{counts}; {min(train)} training and {min(test)} test pairs. " + " ".join(e.differences)


QUICK = (
    "**A look, no evidence: one fold, one draw of two training pairs, at most four test pairs. Intervals by so few "
    "patients mean little.**"
)
CHARTS = {"dice": "Dice of the paper's methods", "weights": "weights that MW learned"}


def _chart(record: ReproduceRecord, e: ExperimentRecord, kind: str) -> str:
    name = f"reproduced-{record.settings.name.replace('@', '')}-{e.name}-{kind}.svg"
    if kind == "dice":
        drawn = box_plot(boxes(e), title=f"{e.title}: Dice, square mean, bar median", x_label="Dice", standalone=True)
    else:
        title = f"{e.title}: weights that MW learned, mean and spread over folds and draws"
        drawn = bar_chart(learned_weights(e, "model:mw"), title=title, x_label="share of the class", standalone=True)
    (IMAGES / name).write_text(str(drawn), encoding="utf-8")
    return name


def main() -> None:
    """Keep the numbers of runs, if any are given, and write the page."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--run", type=Path, action="append", default=[], help="folder of a run whose numbers to keep")
    options.add_argument(
        "--anchored", type=int, default=0, help="measure MW with classes at the nodes on so many pairs"
    )
    options.add_argument("--workers", type=int, default=1, help="processes for that")
    args = options.parse_args()
    for folder in args.run:
        keep(folder, args.anchored, args.workers)
    records = [read_record(ReproduceRecord, p) for p in sorted(RESULTS.glob("reproduced-*.json"), reverse=True)]
    if not records:
        raise SystemExit("no results under benchmark/results; give the folder of a run with --run")
    PAGE.write_text(page(records), encoding="utf-8")
    print(f"wrote {PAGE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
