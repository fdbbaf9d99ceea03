"""Write the pages of results and the chart of README.md from the JSON files of the benchmarks and nothing else."""

import argparse
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from _common import OPTIONS, RESULTS, ROOT, measured, target
from peers import OURS, PRESETS, START
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
CROSSVAL_HEAD = (
    "set", "pairs, people", "before", "`default`", "uniform", "best single", "learned", "learned, mask",
    "segmentation alone", "learned − single", "learned − uniform", "mask − segmentation", "worst structure",
)  # fmt: skip
MODEL = "regweave with a model of the training patients"
TIMED = {"64": "brain MR, 64³", "native": "brain MR, 256×128×256", "ct": "CT, 512×512×300"}

Result = Mapping[str, Any]


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Lines of a table."""
    return ["| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *rows)]


def of_kind(results: Sequence[Result], kind: str) -> list[Result]:
    """Results of one benchmark."""
    return [r for r in results if r["benchmark"] == kind]


def table(results: Sequence[Result]) -> str:
    """Return the Markdown of all results, with where they were measured and whom to thank for the data."""
    rows = [(c["what"], measured(c), target(c), VERDICT[c["met"]]) for r in results for c in r["claims"]]
    cells = ([cell.replace("|", "\\|") for cell in row] for row in rows)
    commands = dict.fromkeys(f"- `{r['command']}`{_removed(r['command'])}" for r in results)
    places = dict.fromkeys(f"- {_place(r)}" for r in results)
    credits_ = dict.fromkeys(f"- {r['credit']}" for r in results if "credit" in r)
    lists = {"Commands": commands, "Measured on": places, "Data": credits_}
    parts = [part for title, lines in lists.items() for part in ("", f"{title}:", "", *lines)]
    return "\n".join([*markdown(("what", "measured", "wanted", "reached"), cells), *parts])


def _removed(command: str) -> str:
    """Name the commit that has the script of a study, where the script, its options or its preset are gone."""
    script = ROOT / command.split()[1]
    source = script.read_text(encoding="utf-8") if script.exists() else ""
    here = source and all(word in source or word in OPTIONS for word in re.findall(r" --(\S+)", command))
    return "" if here and "default@" not in command else f" (`git show {KEPT_AT}:benchmark/{script.name}`)"


def _place(result: Result) -> str:
    m, commit = result["machine"], result["commit"]
    code = (commit["hash"][:10] if commit["hash"] else "no commit") + " with changes" * bool(commit["modified"])
    return (
        f"{result['benchmark']}: {m['processor']}, {m['cores']} cores, {m['memory_gb']} GB, {m['system']}; "
        f"commit {code}, {result['date']}"
    )


def targets(results: Sequence[Result]) -> tuple[int, list[Mapping[str, Any]]]:
    """Return how many targets are met, and those that are missed."""
    claims = [c for r in results for c in r["claims"] if c["met"] is not None]
    missed = [c for c in claims if not c["met"]]
    return len(claims) - len(missed), missed


def summary(results: Sequence[Result]) -> str:
    """Return the tables that the page begins with: peers, finished studies, and every target that is missed."""
    parts = [*crossval_table(found), "", _text("finished"), ""] if (found := of_kind(results, "crossval")) else []
    parts += [*short_table(found), ""] if (found := of_kind(results, "peers")) else []
    met, missed = targets(results)
    parts += [f"Of {met + len(missed)} targets that the benchmarks check, {met} are reached. Missed:", ""]
    return "\n".join([*parts, *(f"- {c['what']}: {measured(c)}, wanted {target(c)}" for c in missed)])


def chart(results: Sequence[Result]) -> str:
    """Draw the mean Dice of the methods that ran on all pairs, set by set."""
    groups = {}
    for result in of_kind(results, "peers"):
        found = {SHOWN[name]: m["summary"] for name in SHOWN if (m := result["methods"].get(name)) is not None}
        if [s["n"] for s in found.values()] == [result["methods"][OURS]["summary"]["n"]] * len(SHOWN):
            groups[NAMES[result["data"]]] = {n: (s["dice"]["mean"], float("nan")) for n, s in found.items()}
    title = "Mean Dice of test patients"
    paper = tag("rect", width="100%", height="100%", fill=LIGHT["paper"])  # a file has no style sheet
    text = re.sub(r"var\(--chart-[\w-]+,(#\w+)\)", r"\1", str(bar_chart(groups, title=title, x_label="mean Dice")))
    text = text.replace("<svg", '<svg xmlns="http://www.w3.org/2000/svg"', 1)
    return text.replace("</title>", f"</title>{paper}", 1)


def crossval_table(results: Sequence[Result]) -> list[str]:
    """One row for each set with all structures learned."""
    whole = [r for r in results if not r["withheld"]]
    rungs = ("learned", "learned, mask")
    far = [
        [f"`{r['data']}`", str(r["n_pairs"]), *(f"{r['methods'][rung]['assd_mm']:.2f}" for rung in rungs)]
        for r in whole
        if r["true_mm"]
    ]
    return [
        "Cross-validation by person over all people of a set: mean Dice of pairs of which nothing has seen either "
        "person. Differences have a 95 % interval by person and the pairs better / worse. "
        "Maps are of U-Nets that never saw the person.",
        "",
        *markdown(CROSSVAL_HEAD, map(_crossval_cells, whole)),
        "",
        "Mean distance of surfaces, mm:",
        "",
        *markdown(("set", "pairs", *rungs), far),
    ]


def _crossval_cells(r: Result) -> list[str]:
    of = {name: f"{m['mean_dice']:.3f}" for name, m in r["methods"].items()}
    single = sorted({name.split(" × ")[0] for name in r["chosen"]["single"]})
    worst = min((found["mean"], label) for label, found in r["by_class"].items())
    compared = ("learned − single", "learned − uniform", "learned, mask − segmentation")
    return [
        f"`{r['data']}`", f"{r['n_pairs']}, {r['n_people_in_pairs']}", f"{r['before']:.3f}", of["default"],
        of["uniform"], f"{of['single']} (`{', '.join(single)}`)", of["learned"], of["learned, mask"],
        of["segmentation"], *(_counted(r["differences"][name]) for name in compared),
        f"{worst[0]:+.3f} ({r['labels'][worst[1]]})",
    ]  # fmt: skip


def _counted(d: Mapping[str, Any]) -> str:
    interval = "" if d["low"] is None else f" ({d['low']:+.3f} to {d['high']:+.3f})"
    return f"{d['mean']:+.3f}{interval}, {d['better']} / {d['worse']}"


def short_table(results: Sequence[Result], *, only_whole: bool = False) -> list[str]:
    """One row for each method, one column for each set: Dice, and seconds; perhaps without methods of fewer pairs."""
    found = [
        {
            _row_name(name): m["summary"]
            for name, m in r["methods"].items()
            if not only_whole or m["summary"]["n"] + m["summary"]["failed"] == len(r["test_pairs"])
        }
        for r in results
    ]

    def rank(name: str) -> float:
        # Paired with ours, so that a method with few pairs or sets is not ranked by how easy these are.
        gains = [methods[name]["difference"]["mean"] for methods in found if name in methods]
        known = [g for g in gains if g is not None]
        return -sum(known) / len(known) if known else 1.0

    heads = []
    for r in results:
        name, n = str(r["data"]), len(r["test_pairs"])
        heads.append(f"{NAMES.get(name, name) if only_whole else f'`{name}`'}, {n} pair" + "s" * (n != 1))
    names = sorted(dict.fromkeys(name for methods in found for name in methods), key=rank)
    rows = [[n, *(_short(m.get(n), len(r["test_pairs"])) for m, r in zip(found, results, strict=True))] for n in names]
    return [
        "Mean Dice on test patients, and seconds of the deformable stage on two cores. A number in brackets counts the "
        "pairs, where they are fewer; these may be easier. Methods are sorted by their mean difference to "
        f"`{OURS}` on the same pairs:",
        "",
        *markdown(("method", *heads), rows),
    ]


def _row_name(name: str) -> str:
    """Return the name of a row: the models of all sets share one."""
    is_model = name.startswith("regweave:") and name.split(":")[1] not in PRESETS
    return MODEL if is_model else name if name == START else f"`{name}`"


def _short(s: Mapping[str, Any] | None, most: int) -> str:
    if s is None:
        return ""
    if s["dice"]["mean"] is None:
        return "failed"
    seconds = "" if s.get("seconds") is None else f", {s['seconds']:.1f} s"
    failed = f" ({s['failed']} of {s['n'] + s['failed']} failed)" if s["failed"] else ""
    fewer = f" [{s['n']}]" if s["n"] + s["failed"] < most else ""
    return f"{s['dice']['mean']:.3f}{seconds}{fewer}{failed}"


def evidence(results: Sequence[Result]) -> str:
    """Return docs/evidence.md: the words of ``page.md`` with four tables in their places."""
    tables = {
        "crossval": people_table(of_kind(results, "crossval")),
        "peers": short_table(of_kind(results, "peers"), only_whole=True)[2:],
        "masks": [next(part for part in _text("finished").split("\n\n") if part.startswith("| set | rival"))],
        "time": time_table(of_kind(results, "quiet")[0]["claims"]),
    }
    met, missed = targets(results)
    page = _text("page").replace("TARGETS", str(met + len(missed))).replace("MISSED", str(len(missed)))
    for name, lines in tables.items():
        page = page.replace(f"<!-- {name} -->", "\n".join(lines))
    return page + "\n"


def people_table(results: Sequence[Result]) -> list[str]:
    """One row for each set of the cross-validation: means alone."""
    rungs = ("single", "default", "learned", "learned, mask", "segmentation")
    rows = [
        [NAMES.get(r["data"], r["data"]), str(r["n_pairs"]), f"{r['before']:.3f}"]
        + [f"{r['methods'][rung]['mean_dice']:.3f}" for rung in rungs]
        for r in results
        if not r["withheld"]
    ]
    return markdown(("set", "pairs", "before", "best single", *rungs[1:-1], "segmentation alone"), rows)


def time_table(claims: Sequence[Mapping[str, Any]]) -> list[str]:
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
    return markdown(("images", "wall", "processor", "memory"), rows)


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
