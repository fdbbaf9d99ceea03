"""``regweave report``: the page of a result, made again from its files."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from regweave.cli import options as opt
from regweave.cli.app import command_line
from regweave.errors import RegweaveError, UsageError
from regweave.io.disk.files import is_file, read_json
from regweave.io.disk.records import DEMO, RESULT, RESULTS
from regweave.jobs.batch import FORMAT
from regweave.measures.landmarks import LandmarkPairs
from regweave.measures.verdict import Rules, read_rules
from regweave.report import batch, demo, evaluation, registration, training

app = command_line()


@app.add(
    "regweave report result",
    "regweave report result --rules mine.toml",
    "regweave report result --page-detail full",
    "regweave report result --fixed-points f.mrk.json --moving-points m.mrk.json",
    "regweave report result --boilerplate",
    "regweave report batch --grades grades.tsv",
    "regweave report weights.json",
)
def report(
    result: Annotated[Path, typer.Argument(help="Folder of a result, or a model file.")],
    rules: Annotated[
        Path | None, opt.of_method(help="Rules for pass, look and fail, TOML; see `regweave rules`.", metavar="FILE")
    ] = None,
    fixed_points: Annotated[
        Path | None,
        opt.of_input(help="Landmarks of the fixed image (.mrk.json, .fcsv, .csv), for errors.", metavar="FILE"),
    ] = None,
    moving_points: Annotated[
        Path | None, opt.of_input(help="The same places in the moving image, same labels or order.", metavar="FILE")
    ] = None,
    page_detail: Annotated[
        opt.PageDetail | None,
        typer.Option(help="Voxels that the page shows: small, normal or full; normal by default.", metavar="WORD"),
    ] = None,
    methods: Annotated[
        bool, typer.Option("--boilerplate", help="Print a text for the methods section, with citations; write no page.")
    ] = False,
    grades: Annotated[
        Path | None,
        typer.Option(help="Grades from the contact sheet of a batch: compare them with verdicts; write no page."),
    ] = None,
    as_json: opt.Json = False,
) -> None:
    """Make the HTML page of a result again from the JSON and the images that belong to it.

    A result is the folder of `register`, `batch`, `evaluate` or `demo`, or the
    model that `train` wrote. An evaluation gets its list of registrations
    too, a demo all of its pages. With --rules or landmarks a registration is
    judged again, in its result.json and on its page. With --rules an evaluation
    is judged again on its page; its results.json keeps the verdicts it has.
    """
    if methods:
        text = registration.boilerplate(result)
        print(json.dumps({"text": text}, ensure_ascii=False) if as_json else text)
        return
    if grades is not None:
        found = batch.compare_grades(result, grades)
        print(json.dumps(found, ensure_ascii=False) if as_json else _agreement(found))
        return
    points = fixed_points, moving_points
    landmarks = None if points == (None, None) else LandmarkPairs.read(*points)
    judged_by = None if rules is None else read_rules(rules)
    page = _write_page(result, judged_by, page_detail, landmarks)
    print(json.dumps({"page": str(page)}, ensure_ascii=False) if as_json else f"page        {page}")


def _agreement(found: dict[str, Any]) -> str:
    """Return the agreement of grades with verdicts and likeness in words."""
    rho = found["rank_correlation"]
    lines = [f"graded      {len(found['graded'])} of {found['of']} pairs"]
    lines.append(
        f"agreement   {'too few pairs' if rho is None else f'rank correlation {rho:.2f}'} of grade and likeness"
    )
    for key, words in (
        ("unusable_but_pass", "pass, but grade 0 or 1"),
        ("usable_but_fail", "fail, but grade 2 or more"),
    ):
        lines += [f"{words}: {', '.join(found[key])}"] if found[key] else []
    return "\n".join(lines)


def _write_page(
    result: Path, rules: Rules | None, detail: opt.PageDetail | None, landmarks: LandmarkPairs | None
) -> Path:
    """Write the page of a folder or a model and return its path; a file in the folder shows what wrote it."""
    kind = next((name for name in (RESULT, RESULTS, DEMO) if is_file(result / name)), None)
    alone = {"--page-detail": detail, "--fixed-points": landmarks}
    if kind == RESULT:
        return registration.write_page(result, rules, detail=detail or "normal", landmarks=landmarks)
    if named := [name for name, value in alone.items() if value is not None]:
        message = f"{', '.join(named)} is given, but '{result}' is not the folder of one registration"
        raise UsageError("E192", message, "give it with a folder that `register` wrote")
    if kind is None and not is_file(result):
        message = f"'{result}' is no result: it has no {RESULT} and no {RESULTS} and no {DEMO}"
        hint = "give a folder that `register`, `batch`, `evaluate` or `demo` wrote, or a model file"
        raise RegweaveError("E198", message, hint)
    batched = kind == RESULTS and read_json(result / RESULTS).get("format") == FORMAT
    if kind == RESULTS and not batched:
        return evaluation.write_page(result, rules)
    if rules is not None:
        reason = "is a batch, which keeps verdicts without their numbers" if batched else "holds no verdict"
        hint = "give it with the folder of one registration, or of `evaluate`"
        raise UsageError("E192", f"--rules is given, but '{result}' {reason}", hint)
    if batched:
        return batch.write_page(result)
    return demo.write_page(result, all_pages=True) if kind == DEMO else training.write_page(result)
