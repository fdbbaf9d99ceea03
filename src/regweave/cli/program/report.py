"""``regweave report``: the page of a result, made again from its files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from regweave.cli.help import command_line, examples
from regweave.cli.options import JsonOption, RulesOption
from regweave.errors import RegweaveError, UsageError
from regweave.io.disk.files import is_file
from regweave.io.disk.texts import read_json
from regweave.io.records.batch import FORMAT
from regweave.io.records.folders import DEMO, RESULT, RESULTS
from regweave.measures.rules import Rules, read_rules
from regweave.report import batch, demo, evaluation, registration, reproduce, training


def _write_list(folder: Path, rules: Rules | None) -> Path:
    """Write the pages of an evaluation or of a batch: both keep a list of results."""
    if read_json(folder / RESULTS).get("format") != FORMAT:
        return evaluation.write_page(folder, rules)
    if rules is not None:
        message = f"--rules is given, but '{folder}' is a batch, which keeps verdicts without their numbers"
        raise UsageError("E192", message, "give it with the folder of one of its pairs, or run the batch with it")
    return batch.write_page(folder)


JUDGED: dict[str, Callable[[Path, Rules | None], Path]] = {
    RESULT: registration.write_page,
    RESULTS: _write_list,
}
OTHERS: dict[str, Callable[[Path], Path]] = {
    "reproduce.json": reproduce.write_page,
    DEMO: demo.write_pages,
}
"""What writes the page of a folder, by the file that tells what the folder is; the first two have verdicts."""

app = command_line()


@app.command(
    epilog=examples(
        "regweave report result", "regweave report result --rules mine.toml", "regweave report weights.json"
    )
)
def report(
    result: Annotated[Path, typer.Argument(help="Folder of a result, or a model file.")],
    rules: RulesOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make the HTML page of a result again from the JSON and the images that belong to it.

    A result is the folder of `register`, `batch`, `evaluate`, `reproduce` or
    `demo`, or the model that `train` wrote. An evaluation gets its list of registrations
    too, a demo all of its pages. With --rules a registration or an evaluation
    is judged anew on its pages; its JSON keeps the verdict it has.
    """
    page = write_page(result, None if rules is None else read_rules(rules))
    print(json.dumps({"page": str(page)}, ensure_ascii=False) if as_json else f"page        {page}")


def write_page(result: Path, rules: Rules | None = None) -> Path:
    """Write the page of a folder or a model, judged by other rules where there are some; return where it is."""
    for name, judge in JUDGED.items():
        if is_file(result / name):
            return judge(result, rules)
    others = [write for name, write in OTHERS.items() if is_file(result / name)]
    others += [training.write_page] if is_file(result) else []
    if others and rules is not None:
        message = f"--rules is given, but '{result}' holds no verdict"
        raise UsageError("E192", message, "give it with the folder of `register` or `evaluate`")
    if others:
        return others[0](result)
    message = f"'{result}' is no result: it has no {' and no '.join([*JUDGED, *OTHERS])}"
    hint = "give a folder that `register`, `batch`, `evaluate`, `reproduce` or `demo` wrote, or a model file"
    raise RegweaveError("E198", message, hint)
