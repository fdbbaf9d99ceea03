"""Write the pages of results and the chart of README.md from the JSON files of the benchmarks and nothing else."""

import argparse
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from _common import RESULTS, ROOT, measured, target
from peers import OURS, OWN, START, load
from regweave.report.charts import LIGHT, bar_chart, tag

TEXTS = ROOT / "benchmark" / "evidence"
"""Words of the page, and tables of studies that are finished."""
SMOKE = "smoke-"
KEPT_AT = "fca9bc2"
"""Commit with the scripts of studies that are finished."""
CHART = ROOT / "docs" / "images" / "evidence.svg"
PAGE = ROOT / "docs" / "evidence.md"
FULL = ROOT / "benchmark" / "RESULTS.md"
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
    "acdc_mm": "heart, cine MR",
    "btcv_abdomen": "abdomen, CT",
    "chaos_mr_abdomen": "abdomen, MR",
    "lpba40_80": "brain, 54 regions",
    "mscmr_cardiac": "heart, MR contrasts",
    "ibsr18_native": "brain, MR, full size",
}
VERDICT = {True: "yes", False: "**no**", None: ""}


STAGES = {
    "paper@1 levels": "`paper@1`",
    "default@1 levels": "`default@1`, levels only",
    "default@1 refined": "`default@1`",
    "default@4 levels": "`default@4`, levels only",
    "default@4 refined": "`default@4`",
    "default@5 levels": "`default@5`, levels only",
    "default@5 refined": "`default@5`",
}


def table(results: list[dict[str, Any]]) -> str:
    """Return the Markdown of all results, with where they were measured and whom to thank for the data."""
    parts = []
    if found := [r for r in results if r["benchmark"] == "accuracy"]:
        parts += [*_accuracy_table(found), ""]
    others = [r for r in results if r["benchmark"] not in {"accuracy", "peers", "convex_maps", "segmentation"}]
    if others:
        parts += ["| what | measured | wanted | reached |", "| --- | --- | --- | --- |"]
        parts += [_claim_row(c) for r in others for c in r["claims"]]
    commands = dict.fromkeys(f"- `{r['command']}`{_removed(r['command'])}" for r in results)
    places = dict.fromkeys(f"- {_place(r)}" for r in results)
    credits_ = dict.fromkeys(f"- {r['credit']}" for r in results if "credit" in r)
    return "\n".join(
        [*parts, "", "Commands:", "", *commands, "", "Measured on:", "", *places, "", "Data:", "", *credits_]
    )


def summary(results: list[dict[str, Any]]) -> str:
    """Return the tables that the page begins with: peers, finished studies, and every target that is missed."""
    parts = []
    if found := [r for r in results if r["benchmark"] == "crossval"]:
        parts += [*crossval_table(found), "", _text("finished"), ""]
    if found := [r for r in results if r["benchmark"] == "peers"]:
        parts += [*short_table(found), ""]
    met, missed = targets(results)
    parts += [f"Of {met + len(missed)} targets that the benchmarks check, {met} are reached. Missed:", ""]
    return "\n".join([*parts, *(f"- {c['what']}: {measured(c)}, wanted {target(c)}" for c in missed)])


def targets(results: Sequence[dict[str, Any]]) -> tuple[int, list[dict[str, Any]]]:
    """Return how many targets are met, and those that are missed."""
    claims = [c for r in results for c in r["claims"] if c["met"] is not None]
    missed = [c for c in claims if not c["met"]]
    return len(claims) - len(missed), missed


def chart(results: list[dict[str, Any]]) -> str:
    """Draw the mean Dice of the methods that ran on all pairs, set by set."""
    groups = {}
    for result in [r for r in results if r["benchmark"] == "peers"]:
        methods = {name: result["methods"].get(name) for name in SHOWN}
        whole = result["methods"][OURS]["summary"]["n"]
        if all(m is not None and m["summary"]["n"] == whole for m in methods.values()):
            scores = {
                SHOWN[n]: (m["summary"]["dice"]["mean"], float("nan")) for n, m in methods.items() if m is not None
            }
            groups[NAMES.get(result["data"], result["data"])] = scores
    title = "Mean Dice of test patients"
    paper = tag("rect", width="100%", height="100%", fill=LIGHT["paper"])  # a file has no style sheet
    text = re.sub(r"var\(--chart-[\w-]+,(#\w+)\)", r"\1", str(bar_chart(groups, title=title, x_label="mean Dice")))
    text = text.replace("<svg", '<svg xmlns="http://www.w3.org/2000/svg"', 1)
    return text.replace("</title>", f"</title>{paper}", 1)


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


def _removed(command: str) -> str:
    """Say where the script of a finished study is, where it is no longer here."""
    script = command.split()[1]
    return "" if (ROOT / script).exists() else f" (`git show {KEPT_AT}:{script}`)"


def _place(result: dict[str, Any]) -> str:
    m, commit = result["machine"], result["commit"]
    code = commit["hash"][:10] if commit["hash"] else "no commit"
    code += " with changes" if commit["modified"] else ""
    return (
        f"{result['benchmark']}: {m['processor']}, {m['cores']} cores, {m['memory_gb']} GB, {m['system']}; "
        f"commit {code}, {result['date']}"
    )


Result = Mapping[str, Any]
CROSSVAL_HEAD = (
    "set", "pairs, people", "before", "`default`", "uniform", "best single", "learned", "learned, mask",
    "segmentation alone", "learned − single", "learned − uniform", "mask − segmentation", "worst structure",
)  # fmt: skip


def crossval_table(results: Sequence[Result]) -> list[str]:
    """One row for each set with all structures learned."""
    whole = [r for r in results if not r["withheld"]]
    lines = [
        "Cross-validation by person over all people of a set: mean Dice of pairs of which nothing has seen either "
        "person (differences: 95 % interval by person; pairs better / worse). "
        "Maps: of U-Nets that never saw the person.",
        "",
        *_markdown(CROSSVAL_HEAD, [_crossval_cells(r) for r in whole]),
    ]
    surfaces = [f"`{r['data']}`, {r['n_pairs']} pairs, {_surface(r)}" for r in whole if r["true_mm"]]
    if surfaces:
        lines += ["", f"Mean distance of surfaces, without and with the mask, mm: {'; '.join(surfaces)}."]
    return lines


def _markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return ["| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *rows)]


def _crossval_cells(r: Result) -> list[str]:
    of = {name: f"{m['mean_dice']:.3f}" for name, m in r["methods"].items()}
    d = r["differences"]
    single = sorted({name.split(" × ")[0] for name in r["chosen"]["single"]})
    worst = min((found["mean"], label) for label, found in r["by_class"].items())
    return [
        f"`{r['data']}`", f"{r['n_pairs']}, {r['n_people_in_pairs']}", f"{r['before']:.3f}", of["default"],
        of["uniform"], f"{of['single']} (`{', '.join(single)}`)", of["learned"], of["learned, mask"],
        of["segmentation"], _counted(d["learned − single"]), _counted(d["learned − uniform"]),
        _counted(d["learned, mask − segmentation"]), f"{worst[0]:+.3f} ({r['labels'][worst[1]]})",
    ]  # fmt: skip


def _surface(r: Result) -> str:
    return " and ".join(f"{r['methods'][rung]['assd_mm']:.2f}" for rung in ("learned", "learned, mask"))


def _counted(d: Mapping[str, Any]) -> str:
    return f"{_interval(d)}, {d['better']} / {d['worse']}"


def _interval(d: Mapping[str, Any]) -> str:
    if d["low"] is None or np.isnan(d["low"]):
        return f"{d['mean']:+.3f}"
    return f"{d['mean']:+.3f} ({d['low']:+.3f} to {d['high']:+.3f})"


PRESETS = tuple(load(OWN).SETTINGS)
MODEL = "regweave with a model of the training patients"


def short_table(results: Sequence[dict[str, Any]], *, only_whole: bool = False) -> list[str]:
    """One row for each method, one column for each set: Dice, and seconds; perhaps without methods of fewer pairs."""
    found = [
        {
            _row_name(name): m
            for name, m in r["methods"].items()
            if not only_whole or m["summary"]["n"] + m["summary"]["failed"] == len(r["test_pairs"])
        }
        for r in results
    ]
    names = list(dict.fromkeys(name for methods in found for name in methods))

    def rank(name: str) -> float:
        # Paired with ours, so that a method with few pairs or sets is not ranked by how easy these are.
        gains = [methods[name]["summary"]["difference"]["mean"] for methods in found if name in methods]
        known = [g for g in gains if g is not None]
        return -sum(known) / len(known) if known else 1.0

    lines = [
        "Mean Dice on test patients, and seconds of the deformable stage on two cores. A number in brackets: "
        "of so many pairs only, which may be easier ones. Best mean difference to "
        f"`{OURS}` on the same pairs first:",
        "",
        "| method | " + " | ".join(f"{_set(r, only_whole)}, {_pairs(len(r['test_pairs']))}" for r in results) + " |",
        "| --- | " + " | ".join("---" for _ in results) + " |",
    ]
    for name in sorted(names, key=rank):
        cells = [_short(m.get(name), len(r["test_pairs"])) for m, r in zip(found, results, strict=True)]
        lines.append("| " + " | ".join([name, *cells]) + " |")
    return lines


def _set(result: Result, in_words: bool) -> str:
    name = str(result["data"])
    return NAMES.get(name, name) if in_words else f"`{name}`"


def _pairs(n: int) -> str:
    return f"{n} pair" + "s" * (n != 1)


def _row_name(name: str) -> str:
    """Return the name of a row: the models of all sets share one."""
    is_model = name.startswith("regweave:") and name.split(":")[1] not in PRESETS
    return MODEL if is_model else name if name == START else f"`{name}`"


def _short(method: dict[str, Any] | None, most: int) -> str:
    if method is None:
        return ""
    s = method["summary"]
    if s["dice"]["mean"] is None:
        return "failed"
    seconds = "" if s.get("seconds") is None else f", {s['seconds']:.1f} s"
    failed = f" ({s['failed']} of {s['n'] + s['failed']} failed)" if s["failed"] else ""
    fewer = f" [{s['n']}]" if s["n"] + s["failed"] < most else ""
    return f"{s['dice']['mean']:.3f}{seconds}{fewer}{failed}"


TIMED = {"64": "brain MR, 64³", "native": "brain MR, 256×128×256", "ct": "CT, 512×512×300"}


def evidence(results: Sequence[dict[str, Any]]) -> str:
    """Return docs/evidence.md: the words of ``page.md`` with four tables in their places."""
    found: dict[str, list[Any]] = {}
    for r in results:
        found.setdefault(r["benchmark"], []).append(r)
    tables = {
        "crossval": people_table(found["crossval"]),
        "peers": short_table(found["peers"], only_whole=True)[2:],
        "masks": next(part for part in _text("finished").split("\n\n") if part.startswith("| set | rival")).split("\n"),
        "time": time_table(found["quiet"][0]["claims"]),
    }
    met, missed = targets(results)
    page = _text("page").replace("TARGETS", str(met + len(missed))).replace("MISSED", str(len(missed)))
    for name, lines in tables.items():
        page = page.replace(f"<!-- {name} -->", "\n".join(lines))
    return page + "\n"


def people_table(results: Sequence[Result]) -> list[str]:
    """One row for each set of the cross-validation: means alone."""
    head = ("set", "pairs", "before", "best single", "default", "learned", "learned, mask", "segmentation alone")
    rungs = ("single", "default", "learned", "learned, mask", "segmentation")
    rows = [
        [NAMES.get(r["data"], r["data"]), str(r["n_pairs"]), f"{r['before']:.3f}"]
        + [f"{r['methods'][rung]['mean_dice']:.3f}" for rung in rungs]
        for r in results
        if not r["withheld"]
    ]
    return _markdown(head, rows)


def time_table(claims: Sequence[dict[str, Any]]) -> list[str]:
    """One row for each size of the images: seconds and memory."""
    value = {c["what"]: c["value"] for c in claims}
    rows = [
        [
            words,
            *(f"{value[f'{kind} seconds, {key}, 2 threads']:.1f} s" for kind in ("wall", "processor")),
            f"{value[f'most memory, {key}, 2 threads']:.2f} GB",
        ]
        for key, words in TIMED.items()
    ]
    return _markdown(("images", "wall", "processor", "memory"), rows)


def _text(name: str) -> str:
    return (TEXTS / f"{name}.md").read_text(encoding="utf-8").rstrip("\n")


def load_results(paths: Sequence[Path] = ()) -> list[dict[str, Any]]:
    """Read JSON files, by default all under benchmark/results but those of smoke runs."""
    paths = paths or sorted(p for p in RESULTS.glob("*.json") if not p.name.startswith(SMOKE))
    return [r for p in paths if "benchmark" in (r := json.loads(p.read_text(encoding="utf-8")))]


def main() -> None:
    """Write or print the table."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("results", nargs="*", type=Path, help="JSON files; by default all but those of smoke runs")
    options.add_argument("--print", action="store_true", help="print the tables instead of writing the page")
    args = options.parse_args()
    results = load_results(args.results)
    if not results:
        raise SystemExit("no results under benchmark/results; run the benchmarks first")
    if args.print:
        print(table(results))
        return
    CHART.write_text(chart(results), encoding="utf-8")
    parts = [_text("method"), summary(results), _text("reading"), table(results)]
    FULL.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    PAGE.write_text(evidence(results), encoding="utf-8")
    print(f"wrote {', '.join(str(p.relative_to(ROOT)) for p in (FULL, PAGE, CHART))} from {len(results)} files")


if __name__ == "__main__":
    main()
