"""Write docs/evidence.md and the chart of README.md from the JSON files of the benchmarks and nothing else."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from _common import RESULTS, ROOT, measured, target
from _crossval_table import crossval_table, segmentation_table
from _ladder_table import ladder_table, rungs_table
from _peer_methods import OURS
from _peer_table import peer_table, short_table
from regweave.report.charts import bar_chart

TITLE = "# Evidence\n\nMade from `benchmark/results/*.json` by `python benchmark/table.py`."
METHOD = """\
The first tables are cross-validations over *all* people of a set (`benchmark/crossval.py`): people are dealt to five
folds (four where there are few), two crops or two phases of one person to the same; test pairs are drawn inside a fold,
and what a fold uses was chosen on pairs of the others. Structure maps come from small U-Nets, for each person from one
that never saw them. What stays dependent: the network of another fold, whose maps the weights are chosen with, has seen
this fold's people; and the factor of the rival network's smoothness was chosen on people that it is later judged on.
*Segmentation alone* is the Dice of the U-Net's own segmentation of the fixed image, for which no registration is
needed. With and without the moving mask, weights were chosen apart. Pairs are few yet, the first of each fold; single
metrics were not all tried on every set (`singles_tried`): those that the ladder or the first pairs put last were left
out. The settings of maps that a fold may choose from are families (`mixes_tried`; `tried` has the mean of each): the
first of them, two without the mask and three with it, are what was left of eleven after the first pair of two sets:
time, not a choice by result, but scores had been seen; the families that begin with the structures were added for
head and neck and the hippocampus after the pairs that start worst had been seen to lose most. The networks were trained
on a GPU, 5,500 to 6,500 steps a fold for head and neck, 3,570 for the hippocampus (`width=16`, both told in a mirror
too), 2,700 for the abdomens and `lpba40_80`; folds and surfaces are measured on some pairs alone where there are many
(`n_measured`). Networks are trained by `benchmark/networks.py`, those of earlier rows by a script that it replaces; the
runs on the machine with the GPU name the commit that its copy came from, and say that it was modified.

In the other tables the first half of the patients of a set, by name, is for tuning and training, the second for the
test (`benchmark/_split.py`), for us and for every peer. One exception: the discrete levels of `default@1`, which
`default@5` keeps, were explored on five pairs of each set drawn from all patients; everything since, on training
patients alone, but for two steps of training that test patients led us to: a stricter gate (cardiac) and the trial
without a moving mask (head and neck). Intervals are by bootstrap over patients."""
CARE = """\
What the cross-validation says: compared maps of a network raise the Dice of the structures that it was trained for far
above the tuned uniform bank and the best single metric, without a fold. It is mostly segmentation carried by a field:
between people the result without the moving mask lies below the network's own segmentation of the fixed image, and
with the mask it is level with it, seldom above. Between two phases of one heart it is above on average, by what the
images add; there the mask adds nothing. Longer networks were worth more than any other setting: on head and neck .786
to .809 in segmentation alone; twice the steps of the refinement, maps in the levels, and both members of maps with the
mask were tried there and gave nothing. A start from structures helps pairs that start far apart (hippocampus +.003
without and +.002 with the mask, +.012 and +.006 on the worst quarter), and does nothing on head and neck. The posterior
hippocampus, withheld, gains .003 by maps of the anterior part, which chance could give, and .014 by its mask. Between
abdomens withheld organs gain where maps of the others are compared in the levels, one half of them beyond chance, and
lose in three cases of four where a start from structures drags them along, which chance could give. The rival network
saw the same people and masks for half a minute a fold, on a GPU; on two sets its best smoothness was the least that was
tried, so a longer search may raise it. convexAdam on the same maps chose between two settings, on two pairs of each
other fold.

How to read it: a model was taught by the masks of the training patients and is given the moving mask, which it
propagates; peers see images alone, and are tuned on pairs of the same training patients. The models that come with
the package have the same weights; their classifier has then seen all patients of the set, so they are not in the
table.

Where it is not the best: without a model, tuned greedy (6.4 s, with folds) is ahead on the hippocampus and demons
ties; on head and neck four training patients were enough for the gate of `outline`, but the test patients do not bear
it out (−.002 above, +.006 on the ladder's pairs, where the brainstem loses .021), and without the moving mask nothing
is left of it; at full resolution (`ibsr18_native`) the model for the brain lost .004;
on images so much finer than its training images it now leaves maps and smoothness out (W238,
[predictors](predictors.md)).
Weights of the levels alone help less than the papers promise; what pays is to compare what a classifier learned from
the same masks ([what was tried](decisions.md))."""
SMOKE = "smoke-"
CHART = ROOT / "docs" / "images" / "evidence.svg"
SHOWN = {
    "start": "before",
    "ants_syn": "ANTs SyN",
    "sitk_demons": "demons",
    "greedy_ncc": "greedy",
    OURS: "regweave",
    "regweave:joint": "regweave, learned",
}
"""Methods of the chart: those that ran on all pairs of every set but the one of full size."""
NAMES = {
    "acdc_cardiac": "heart, MR",
    "ibsr18_64_affine": "brain, MR",
    "msd_hippocampus": "hippocampus, MR",
    "openkbp_head_neck": "head and neck, CT",
}
VERDICT = {True: "yes", False: "**no**", None: ""}


STAGES = {
    "paper@1 levels": "`paper@1`",
    "default@4 levels": "`default@4`, levels only",
    "default@4 refined": "`default@4`",
    "default@5 levels": "`default@5`, levels only",
    "default@5 refined": "`default@5`",
}


def of_kind(results: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    """Results of one benchmark."""
    return [r for r in results if r["benchmark"] == kind]


def table(results: list[dict[str, Any]]) -> str:
    """Return the Markdown of all results, with where they were measured and whom to thank for the data."""
    parts = []
    for kind, tables in TABLES.items():
        found = of_kind(results, kind)
        for lines_of in tables if found else ():
            parts += [*lines_of(found), ""]
    others = [r for r in results if r["benchmark"] not in {"accuracy", "peers", "convex_maps", "segmentation"}]
    if others:
        parts += ["| what | measured | wanted | reached |", "| --- | --- | --- | --- |"]
        parts += [_claim_row(c) for r in others for c in r["claims"]]
    commands = dict.fromkeys(f"- `{r['command']}`" for r in results)
    places = dict.fromkeys(f"- {_place(r)}" for r in results)
    credits_ = dict.fromkeys(f"- {r['credit']}" for r in results if "credit" in r)
    return "\n".join(
        [*parts, "", "Commands:", "", *commands, "", "Measured on:", "", *places, "", "Data:", "", *credits_]
    )


def summary(results: list[dict[str, Any]]) -> str:
    """Return the tables that the page begins with: peers, the ladder, and every target that is missed."""
    parts = []
    first = {"crossval": crossval_table, "segmentation": segmentation_table, "peers": short_table}
    for kind, lines_of in {**first, "ladder": ladder_table}.items():
        if found := of_kind(results, kind):
            parts += [*lines_of(found), ""]
    missed = [c for r in results for c in r["claims"] if c["met"] is False]
    met = sum(c["met"] is True for r in results for c in r["claims"])
    parts += [f"Of {met + len(missed)} targets that the benchmarks check, {met} are reached. Missed:", ""]
    return "\n".join([*parts, *(f"- {c['what']}: {measured(c)}, wanted {target(c)}" for c in missed)])


def chart(results: list[dict[str, Any]]) -> str:
    """Draw the mean Dice of the methods that ran on all pairs, set by set."""
    groups = {}
    for result in of_kind(results, "peers"):
        methods = {name: result["methods"].get(name) for name in SHOWN}
        whole = result["methods"][OURS]["summary"]["n"]
        if all(m is not None and m["summary"]["n"] == whole for m in methods.values()):
            scores = {
                SHOWN[n]: (m["summary"]["dice"]["mean"], float("nan")) for n, m in methods.items() if m is not None
            }
            groups[NAMES.get(result["data"], result["data"])] = scores
    title = "Mean Dice of test patients"
    return str(bar_chart(groups, title=title, x_label="mean Dice", standalone=True))


def _accuracy_table(results: list[dict[str, Any]]) -> list[str]:
    """One row for each data set: mean Dice before and after, gain with its interval, folding."""
    shown = [name for name in STAGES if any(name in result["summary"] for result in results)]
    lines = [
        "Mean Dice (gain, 95 % interval by subject), uniform weights:",
        "",
        "| set | pairs | before | " + " | ".join(STAGES[name] for name in shown) + " | folded voxels |",
        "| --- | --- | --- | " + " --- |" * len(shown) + " --- |",
    ]
    for result in results:
        stages = {name: result["summary"][name] for name in shown if name in result["summary"]}
        first = next(iter(stages.values()))
        folded = max(s["folding_fraction"] for s in stages.values())
        cells = [f"`{result['data']}`", str(first["n"]), f"{first['before']:.3f}"]
        cells += [_gain(stages[name]) if name in stages else "" for name in shown]
        lines.append("| " + " | ".join([*cells, f"{folded:.0e}" if folded else "0"]) + " |")
    return lines


def _gain(stage: dict[str, Any]) -> str:
    g = stage["gain"]
    return f"{stage['after']:.3f} ({g['mean']:+.3f}, {g['low']:+.3f} to {g['high']:+.3f})"


def _claim_row(claim: dict[str, Any]) -> str:
    cells = [claim["what"], measured(claim), target(claim), VERDICT[claim["met"]]]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _place(result: dict[str, Any]) -> str:
    m, commit = result["machine"], result["commit"]
    code = commit["hash"][:10] if commit["hash"] else "no commit"
    code += " with changes" if commit["modified"] else ""
    return (
        f"{result['benchmark']}: {m['processor']}, {m['cores']} cores, {m['memory_gb']} GB, {m['system']}; "
        f"commit {code}, {result['date']}"
    )


TABLES = {"peers": (peer_table,), "ladder": (ladder_table, rungs_table), "accuracy": (_accuracy_table,)}


def main() -> None:
    """Write or print the table."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("results", nargs="*", type=Path, help="JSON files; by default all but those of smoke runs")
    options.add_argument("--print", action="store_true", help="print the tables instead of writing the page")
    args = options.parse_args()
    paths = args.results or sorted(p for p in RESULTS.glob("*.json") if not p.name.startswith(SMOKE))
    if not paths:
        raise SystemExit("no results under benchmark/results; run the benchmarks first")
    results = [r for p in paths if "benchmark" in (r := json.loads(p.read_text(encoding="utf-8")))]
    if args.print:
        print(table(results))
        return
    CHART.write_text(chart(results), encoding="utf-8")
    parts = [TITLE, METHOD, summary(results), CARE, table(results)]
    (ROOT / "docs" / "evidence.md").write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    print(f"wrote what {len(results)} files say to docs/evidence.md and {CHART.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
