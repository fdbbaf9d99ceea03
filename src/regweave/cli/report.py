"""``regweave report``: the page of a result, made again from its files."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from regweave.cli.app import command_line, examples
from regweave.cli.options import FixedPointsOption, JsonOption, MovingPointsOption, PageDetail, RulesOption
from regweave.cli.registration.register import read_landmarks
from regweave.errors import RegweaveError, UsageError
from regweave.io.disk.files import is_file
from regweave.io.disk.records import DEMO, RESULT, RESULTS
from regweave.io.disk.text import read_json
from regweave.jobs.batch_record import FORMAT
from regweave.measures.landmarks import LandmarkPairs
from regweave.measures.verdict import Rules, read_rules
from regweave.report import batch, demo, evaluation, registration, training
from regweave.report.boilerplate import boilerplate


def _write_list(folder: Path, rules: Rules | None) -> Path:
    """Write the pages of an evaluation or of a batch: both keep a list of results."""
    if read_json(folder / RESULTS).get("format") != FORMAT:
        return evaluation.write_page(folder, rules)
    if rules is not None:
        message = f"--rules is given, but '{folder}' is a batch, which keeps verdicts without their numbers"
        raise UsageError("E192", message, "give it with the folder of one of its pairs, or run the batch with it")
    return batch.write_page(folder)


@dataclass(frozen=True)
class Wishes:
    """Options of a page: rules where there are verdicts, the rest for one registration."""

    rules: Rules | None = None
    detail: PageDetail | None = None
    landmarks: LandmarkPairs | None = None

    def of_one(self) -> list[str]:
        """Options that only the page of one registration can follow."""
        given = {"--page-detail": self.detail, "--fixed-points": self.landmarks}
        return [name for name, value in given.items() if value is not None]


def _write_registration(folder: Path, wishes: Wishes) -> Path:
    return registration.write_page(folder, wishes.rules, detail=wishes.detail or "normal", landmarks=wishes.landmarks)


JUDGED: dict[str, Callable[[Path, Wishes], Path]] = {
    RESULT: _write_registration,
    RESULTS: lambda folder, wishes: _write_list(folder, wishes.rules),
}
OTHERS: dict[str, Callable[[Path], Path]] = {DEMO: partial(demo.write_page, all_pages=True)}
"""What writes the page of a folder, by the file that tells what the folder is; the first two have verdicts."""

app = command_line()


@app.command(
    epilog=examples(
        "regweave report result",
        "regweave report result --rules mine.toml",
        "regweave report result --page-detail full",
        "regweave report result --fixed-points f.mrk.json --moving-points m.mrk.json",
        "regweave report result --boilerplate",
        "regweave report weights.json",
    )
)
def report(
    result: Annotated[Path, typer.Argument(help="Folder of a result, or a model file.")],
    rules: RulesOption = None,
    fixed_points: FixedPointsOption = None,
    moving_points: MovingPointsOption = None,
    page_detail: Annotated[
        PageDetail | None,
        typer.Option(help="Voxels that the page shows: small, normal or full; normal by default.", metavar="WORD"),
    ] = None,
    methods: Annotated[
        bool, typer.Option("--boilerplate", help="Print a text for the methods section, with citations; write no page.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Make the HTML page of a result again from the JSON and the images that belong to it.

    A result is the folder of `register`, `batch`, `evaluate` or `demo`, or the
    model that `train` wrote. An evaluation gets its list of registrations
    too, a demo all of its pages. With --rules or landmarks a registration is
    judged again, in its result.json and on its page. With --rules an evaluation
    is judged again on its page; its results.json keeps the verdicts it has.
    """
    if methods:
        text = boilerplate(result)
        print(json.dumps({"text": text}, ensure_ascii=False) if as_json else text)
        return
    given = None if rules is None else read_rules(rules)
    page = write_page(result, Wishes(given, page_detail, read_landmarks(fixed_points, moving_points)))
    print(json.dumps({"page": str(page)}, ensure_ascii=False) if as_json else f"page        {page}")


def write_page(result: Path, wishes: Wishes) -> Path:
    """Write the page of a folder or a model and return where it is."""
    if wishes.of_one() and not is_file(result / RESULT):
        message = f"{', '.join(wishes.of_one())} is given, but '{result}' is not the folder of one registration"
        raise UsageError("E192", message, "give it with a folder that `register` wrote")
    for name, judge in JUDGED.items():
        if is_file(result / name):
            return judge(result, wishes)
    others = [write for name, write in OTHERS.items() if is_file(result / name)]
    others += [training.write_page] if is_file(result) else []
    if others and wishes.rules is not None:
        message = f"--rules is given, but '{result}' holds no verdict"
        raise UsageError("E192", message, "give it with the folder of `register` or `evaluate`")
    if others:
        return others[0](result)
    message = f"'{result}' is no result: it has no {' and no '.join([*JUDGED, *OTHERS])}"
    hint = "give a folder that `register`, `batch`, `evaluate` or `demo` wrote, or a model file"
    raise RegweaveError("E198", message, hint)
