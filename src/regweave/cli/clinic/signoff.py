"""``regweave signoff``: reviews of results, read back and checked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from regweave.cli.help import command_line, examples, input_option
from regweave.cli.options import JsonOption
from regweave.errors import EXIT_SOME_FAILED
from regweave.io import atomic_path, require_absent
from regweave.report.signoff import Reviewable, collected, read_signoff, require_match

app = command_line()


@app.command(
    epilog=examples(
        "regweave signoff signoff.tsv --result result",
        "regweave signoff *.tsv --result monday --result tuesday -o reviews.tsv",
    )
)
def signoff(
    files: Annotated[list[Path], typer.Argument(help="Sign-offs that pages exported.", show_default=False)],
    *,
    result: Annotated[list[Path], input_option(help="Folder of the result that was reviewed; repeat for several.")],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write all of them as one table.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace OUTPUT if it exists.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Read sign-offs back, check that each belongs to an unchanged result, and collect them.

    A sign-off carries the SHA-256 of the transform and of what was looked at:
    the structure set, the warped labels, or the warped image. Where one of
    these files has changed since, or a structure of the page has no grade,
    the review does not count (E145, status 3). Exit status 1 where a
    structure was refused.
    """
    claim = None if output is None else require_absent(output, overwrite=overwrite)
    results = [Reviewable.read(folder) for folder in result]
    found = []
    for file in files:
        signed = read_signoff(file)
        found.append((signed, require_match(signed, results, file)))
    if output is not None and claim is not None:
        with claim.writing(), atomic_path(output) as part:
            part.write_text(collected(found), encoding="utf-8", newline="\n")
    if as_json:
        rows = [
            {"result": str(of.folder), "verdict": s.word, "header": dict(s.header), "structures": s.rows}
            for s, of in found
        ]
        print(json.dumps(rows, indent=1, ensure_ascii=False))
    else:
        for signed, of in found:
            low = [f"{name} {grade}" for name, grade, _ in signed.unusable]
            told = f": {', '.join(low)}" if low else ""
            print(f"{of.folder}: {signed.word} by {signed.header['reviewer']} on {signed.header['date']}{told}")
        if output is not None:
            print(f"wrote {output}")
    if any(signed.word == "refused" for signed, _ in found):
        raise typer.Exit(EXIT_SOME_FAILED)
