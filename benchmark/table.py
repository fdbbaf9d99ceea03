"""Write the evidence table of README.md from the JSON files of the benchmarks, and from nothing else."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from _common import RESULTS, ROOT, measured, target
from _peer_table import peer_table

BEGIN, END = "<!-- evidence:begin -->", "<!-- evidence:end -->"
SMOKE = "smoke-"
VERDICT = {True: "yes", False: "**no**", None: ""}


STAGES = {
    "paper@1 levels": "`paper@1`",
    "default@1 levels": "`default@1`, levels only",
    "default@1 refined": "`default@1`",
}


def table(results: list[dict[str, Any]]) -> str:
    """Return the Markdown of all results, with where they were measured and whom to thank for the data."""
    accuracy = [r for r in results if r["benchmark"] == "accuracy"]
    peers = [r for r in results if r["benchmark"] == "peers"]
    others = [r for r in results if r["benchmark"] not in {"accuracy", "peers"}]
    parts = []
    if accuracy:
        parts += [*_accuracy_table(accuracy), ""]
    if peers:
        parts += [*peer_table(peers), ""]
    if others:
        parts += ["| what | measured | wanted | reached |", "| --- | --- | --- | --- |"]
        parts += [_claim_row(c) for r in others for c in r["claims"]]
    commands = dict.fromkeys(f"- `{r['command']}`" for r in results)
    places = dict.fromkeys(f"- {_place(r)}" for r in results)
    credits_ = dict.fromkeys(f"- {r['credit']}" for r in results)
    return "\n".join(
        [*parts, "", "Commands:", "", *commands, "", "Measured on:", "", *places, "", "Data:", "", *credits_]
    )


def _accuracy_table(results: list[dict[str, Any]]) -> list[str]:
    """One row for each data set: mean Dice before and after, gain with its interval, folding."""
    lines = [
        "Mean Dice (gain, 95 % interval by subject), uniform weights:",
        "",
        "| set | pairs | before | " + " | ".join(STAGES.values()) + " | folded voxels |",
        "| --- | --- | --- | " + " --- |" * len(STAGES) + " --- |",
    ]
    for result in results:
        stages = {name: result["summary"][name] for name in STAGES if name in result["summary"]}
        first = next(iter(stages.values()))
        folded = max(s["folding_fraction"] for s in stages.values())
        cells = [f"`{result['data']}`", str(first["n"]), f"{first['before']:.3f}"]
        cells += [_gain(stages[name]) if name in stages else "" for name in STAGES]
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
    evidence = table([json.loads(p.read_text(encoding="utf-8")) for p in paths])
    if args.print:
        print(evidence)
        return
    readme = ROOT / "README.md"
    readme.write_text(insert(readme.read_text(encoding="utf-8"), evidence), encoding="utf-8")
    print(f"wrote the claims of {len(paths)} files to README.md")


if __name__ == "__main__":
    main()
