"""``regweave batch``: every pair of a list registered, each into its own folder."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import typer

from regweave.cli import options as opt
from regweave.cli.app import command_line, resumable, usual
from regweave.errors import EXIT_SOME_FAILED, EXIT_VERDICT
from regweave.jobs.batch import RESULTS, Batch, BatchJob, batch as run
from regweave.jobs.workers import Cluster
from regweave.progress import BatchBar
from regweave.run.result import parse_outputs

app = command_line()


@app.add(
    "regweave batch pairs.csv -o results --workers 8",
    "regweave batch pairs.csv -o results --workers 8 --resume",
    "regweave batch pairs.csv -o results --model head-neck-ct --write warped,labels",
    "regweave batch pairs.csv -o results --shard $SLURM_ARRAY_TASK_ID/20",
    "regweave batch pairs.csv -o results --collect",
    cls=usual("output write resume strict quiet workers label_names preset config model init transform guide check"),
)
@opt.from_fields
def batch(
    job: BatchJob,
    machines: Cluster,
    *,
    strict: opt.Strict = False,
    as_json: opt.Json = False,
    quiet: opt.Quiet = False,
) -> None:
    """Register every pair of a list; write a folder for each, results.csv, results.json and an index page.

    The list has the columns id, fixed and moving. Optional, and perhaps
    empty: fixed_labels, moving_labels, fixed_mask, moving_mask, model,
    preset and init. Everything is checked before the
    first registration. Exit status 1 if some pairs failed; they are named.
    With --strict the status is 6 if a verdict is fail.
    """
    cluster, output = machines.asked(), Path(job.output)
    write = parse_outputs(str(job.write)) if job.write else None
    again = f"repeat the call with --shard {job.shard}" if job.shard else "continue with --resume"
    with resumable("finished pairs are kept", again), BatchBar(lines=True, shown=not quiet) as bar:
        job = replace(job, **opt.job_table(job.config), write=write, scheduler=cluster, on_progress=bar)
        found = run(**vars(job))
    end_batch(found, output, strict=strict, as_json=as_json, quiet=quiet, part="--collect" if job.shard else "")


def end_batch(found: Batch, output: Path, *, strict: bool, as_json: bool, quiet: bool, part: str = "") -> None:
    """Print tally, failures and failed verdicts of a list, and end with their status.

    Of a ``part`` of a list there is no table: it is what makes one.
    """
    for name, text in found.failures.items():
        print(f"failed {name}: {text}", file=sys.stderr)
    if part:
        if as_json or not quiet:
            print(json.dumps([row.cells() for row in found.rows]) if as_json else f"{found.tally()}; next: {part}")
    elif as_json:
        print((output / RESULTS[1]).read_text(encoding="utf-8"), end="")
    elif not quiet:
        print(f"{found.tally()}\ntable  {output / RESULTS[0]}\npage   {output / RESULTS[2]}")
    failed = [row for row in found.rows if row.verdict == "fail"]
    for row in failed:
        print(f"verdict fail {row.id}: {'; '.join(one.text for one in row.reasons)}", file=sys.stderr)
    if found.failures or (failed and strict):
        raise typer.Exit(EXIT_SOME_FAILED if found.failures else EXIT_VERDICT)
