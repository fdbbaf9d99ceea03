"""Write docs/evidence.md, and its short form in README.md, from the JSON files of the benchmarks and nothing else."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from _common import RESULTS, ROOT, measured, target
from _ladder_table import ladder_table, rungs_table
from _peer_table import peer_table, short_table

BEGIN, END = "<!-- evidence:begin -->", "<!-- evidence:end -->"
TITLE = "# Evidence\n\nMade from `benchmark/results/*.json` by `python benchmark/table.py`."
SMOKE = "smoke-"
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
    others = [r for r in results if r["benchmark"] not in {"accuracy", "peers"}]
    if others:
        parts += ["| what | measured | wanted | reached |", "| --- | --- | --- | --- |"]
        parts += [_claim_row(c) for r in others for c in r["claims"]]
    commands = dict.fromkeys(f"- `{r['command']}`" for r in results)
    places = dict.fromkeys(f"- {_place(r)}" for r in results)
    credits_ = dict.fromkeys(f"- {r['credit']}" for r in results)
    return "\n".join(
        [*parts, "", "Commands:", "", *commands, "", "Measured on:", "", *places, "", "Data:", "", *credits_]
    )


def short(results: list[dict[str, Any]]) -> str:
    """Return the tables of README.md: peers, the ladder, and every target that is missed."""
    parts = []
    for kind, lines_of in (("peers", short_table), ("ladder", ladder_table)):
        if found := of_kind(results, kind):
            parts += [*lines_of(found), ""]
    missed = [c for r in results for c in r["claims"] if c["met"] is False]
    met = sum(c["met"] is True for r in results for c in r["claims"])
    parts += [f"Of {met + len(missed)} targets that the benchmarks check, {met} are reached. Missed:", ""]
    parts += [f"- {c['what']}: {measured(c)}, wanted {target(c)}" for c in missed]
    return "\n".join([*parts, "", "All tables, commands, machines and data: [evidence](docs/evidence.md)."])


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


def insert(page: str, evidence: str) -> str:
    """Put the table between the two markers of a page."""
    if page.count(BEGIN) != 1 or page.count(END) != 1 or page.index(BEGIN) > page.index(END):
        raise SystemExit(f"README.md needs the lines {BEGIN} and {END}, once each and in this order; add them")
    head, rest = page.split(BEGIN)
    return f"{head}{BEGIN}\n{evidence}\n{END}{rest.split(END)[1]}"


def main() -> None:
    """Write or print the table."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("results", nargs="*", type=Path, help="JSON files; by default all but those of smoke runs")
    options.add_argument("--print", action="store_true", help="print the table instead of writing it to README.md")
    args = options.parse_args()
    paths = args.results or sorted(p for p in RESULTS.glob("*.json") if not p.name.startswith(SMOKE))
    if not paths:
        raise SystemExit("no results under benchmark/results; run the benchmarks first")
    results = [json.loads(p.read_text(encoding="utf-8")) for p in paths]
    if args.print:
        print(table(results))
        return
    readme = ROOT / "README.md"
    readme.write_text(insert(readme.read_text(encoding="utf-8"), short(results)), encoding="utf-8")
    (ROOT / "docs" / "evidence.md").write_text(f"{TITLE}\n\n{table(results)}\n", encoding="utf-8")
    print(f"wrote what {len(paths)} files say to README.md and docs/evidence.md")


if __name__ == "__main__":
    main()
