"""Commands of studies: atlases, templates and series, and tables of volumes and means."""

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperCommand

from regweave.cli import options as opt
from regweave.cli.app import command_line, resumable
from regweave.cli.batch import end_batch
from regweave.cli.tables import text_table
from regweave.contours import contour_labels
from regweave.errors import EXIT_SOME_FAILED, RegweaveError, UsageError
from regweave.io import atomic_path, prepare_output, read_labels, require_absent, write_image, write_labels
from regweave.io.dicom.rtstruct import write_rtstruct
from regweave.io.dicom.series import read_series
from regweave.io.disk.files import stem_of, suffix_of, write_tsv
from regweave.io.images import FORMAT_OF
from regweave.io.transforms.files import DICOM_SUFFIXES, write_linear
from regweave.io.write import write_time_series
from regweave.jobs.atlas import (
    NETWORK,
    Atlas,
    EvaluateJob,
    SegmentJob,
    build_atlas,
    evaluate_atlas,
    segment as run_segment,
)
from regweave.jobs.regions import measure as run_measure
from regweave.jobs.template import TemplateJob, build_template
from regweave.progress import BatchBar
from regweave.run.realign import realign
from regweave.study.bids import BidsJob, bids as run_bids
from regweave.types import StructureSet

LABELS = ("--participant-label", "--session-label")
BESIDE = {
    "agreement.nii.gz": "agreement.nii.gz", "posterior.nii.gz": "posterior.nii.gz", NETWORK: NETWORK,
    "labels.tsv": "tsv", "index.html": "html",
}  # fmt: skip
"""Files of an image's folder, and how their names end beside a label map."""

app = command_line()
atlas = command_line(help="Build a folder of atlases from images with labels, or evaluate it by leave-one-out.")
app.add_typer(atlas, name="atlas")


@app.add("regweave measure labels.nii.gz --image t1.nii.gz", "regweave measure list.csv -o volumes.tsv")
def measure(
    labels: Annotated[Path, typer.Argument(help="Label map, or a list with id, labels and image.", metavar="LABELS")],
    *,
    image: Annotated[Path | None, opt.of_input(help="Image on the grid of the labels.", metavar="FILE")] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Table to write, TSV; by default it is printed.")
    ] = None,
    overwrite: opt.Overwrite = False,
    label_names: opt.LabelNames = None,
    as_json: opt.Json = False,
) -> None:
    """Print or write the volume of each structure and the mean of an image in it.

    LABELS may be a CSV list with the columns id and labels, and optionally
    image. The table then has the rows of all label maps.
    """
    if output is not None:
        require_absent(output, overwrite=overwrite)
    rows = run_measure(labels, image, label_names=label_names)
    if output is not None:
        with atomic_path(output) as part, part.open("w", encoding="utf-8", newline="") as stream:
            write_tsv(stream, rows)
    if as_json:
        print(json.dumps(rows, indent=1, ensure_ascii=False))
    elif output is None:
        write_tsv(sys.stdout, rows)
    else:
        print(f"wrote {output}: {len(rows)} structures")


@app.add(
    "regweave segment t1.nii.gz --atlas ATLAS -o labels.nii.gz",
    "regweave segment CT --atlas ATLAS -o rtstruct.dcm --fusion vote",
    "regweave segment list.csv --atlas ATLAS -o segmentations --resume",
)
@opt.from_fields
def segment(
    job: SegmentJob, *, overwrite: opt.Overwrite = False, as_json: opt.Json = False, quiet: opt.Quiet = False
) -> None:
    """Segment images by fused labels of the atlases that are most like them.

    OUTPUT is a folder, with a folder for each image. For one image it may be
    a label map, with agreement, posterior, table and page beside it, and the
    segmentation of the model's own network; for a DICOM series an RT
    structure set (.dcm). Estimated Dice is by reverse classification.
    Exit status 1 if some images ended with errors.
    """
    output, single = Path(job.output), Path(str(job.images)).suffix.lower() != ".csv"
    kind = suffix_of(output)
    with BatchBar(lines=True, shown=not quiet) as bar:
        job = replace(job, on_progress=bar)
        if not kind:
            rows = run_segment(**vars(job))
        elif not single or job.resume:
            message = f"'{output}' is one file; a list and --resume need a folder"
            raise UsageError("E192", message, "name a folder with -o")
        else:
            rows = _one_file(job, output, overwrite=overwrite)
    failed = {row["id"]: row["error"] for row in rows if "error" in row}
    for name, text in failed.items():
        print(f"failed {name}: {text}", file=sys.stderr)
    if as_json:
        print(json.dumps(rows, indent=1, ensure_ascii=False))
    elif not quiet:
        write_tsv(sys.stdout, [row for row in rows if "error" not in row])
    if failed:
        raise typer.Exit(EXIT_SOME_FAILED)


def _one_file(job: SegmentJob, output: Path, *, overwrite: bool) -> list[dict[str, Any]]:
    """Segment one image into a temporary folder, and write the file that is asked for."""
    as_set = suffix_of(output) in DICOM_SUFFIXES
    if not as_set and suffix_of(output) not in FORMAT_OF:
        message = f"'{output}' has a suffix that is no format of label maps or structure sets"
        raise UsageError("E152", message, f"use {', '.join(FORMAT_OF)} or .dcm, or name a folder")
    require_absent(output, overwrite=overwrite)
    beside = {} if as_set else {
        name: output.with_name(f"{stem_of(output)}.{place}")
        for name, place in BESIDE.items()
        if name != NETWORK or job.model is not None
    }  # fmt: skip
    if not as_set:
        more = [f"labels{k + 2}.nii.gz" for k in range(len(Atlas.load(job.atlas).layers) - 1)]
        beside |= {name: output.with_name(f"{stem_of(output)}.{name}") for name in more}
    for path in beside.values():
        require_absent(path, overwrite=overwrite)
    series = read_series(Path(str(job.images))) if as_set else None
    with TemporaryDirectory(prefix="regweave-") as folder:
        rows = run_segment(**{**vars(job), "output": Path(folder) / "work"})
        if "error" in rows[0]:
            code, _, text = rows[0]["error"].partition(": ")
            raise RegweaveError(code, text, "nothing was written")
        done = Path(folder) / "work" / "image"
        maps = [read_labels(path, names_path=done / "labels.tsv") for path in sorted(done.glob("labels*.nii.gz"))]
        if series is None:
            write_labels(output, maps[0])
        else:
            outlines = [one for labels in maps for one in contour_labels(labels, series)]
            outlines = [replace(one, number=number) for number, one in enumerate(outlines, start=1)]
            drawn = StructureSet(tuple(outlines), "atlas", series.frame_uid, series.identity)
            write_rtstruct(output, drawn, series, source=drawn)
        for name, path in beside.items():
            if (done / name).exists():  # a model need not have a network
                with atomic_path(path) as part:
                    shutil.copyfile(done / name, part)
    return rows


@app.add("regweave template people.csv -o TEMPLATE", "regweave template people.csv -o T --resume")
@opt.from_fields
def template(job: TemplateJob, *, as_json: opt.Json = False, quiet: opt.Quiet = False) -> None:
    """Build the unbiased mean of images.

    The list has the columns id and image, optionally labels and mask.
    The folder gets template.nii.gz, labels.nii.gz, and the transforms of every
    image, both ways. The order of the list does not matter.
    """
    with resumable(), BatchBar(lines=True, shown=not quiet) as bar:
        found = build_template(**vars(replace(job, on_progress=bar)))
    if as_json:
        print(json.dumps(found, indent=1))
        return
    for number, one in enumerate(found["rounds"], start=1):
        print(f"round {number}: change {one['change']:.2%}, mean field {one['bias']:.3f} voxels")


class _Labels(TyperCommand):
    """A command whose labels follow their option one after the other, as in BIDS apps."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Repeat the option before each label, and write dashes for the underscores of older apps."""
        spread: list[str] = []
        option = ""
        for word in args:
            if word.startswith("--"):
                option = word.replace("_", "-")
                spread.append(option)
            else:
                spread += [option] if option in LABELS and spread[-1] != option else []
                spread.append(word)
        return super().parse_args(ctx, spread)


@app.add(
    "regweave bids DATA DATA/derivatives/regweave participant",
    "regweave bids DATA OUT participant --participant-label 01 02 --template t.nii",
    "regweave bids DATA OUT group",
    cls=_Labels,
)
@opt.from_fields
def bids(job: BidsJob, *, as_json: opt.Json = False, quiet: opt.Quiet = False) -> None:
    """Register the images of a BIDS dataset to each other, and to a template.

    The first T1w of a session, or T2w, is brought to the template or to the
    first session. Other images and the mean of each bold series are brought
    to it. OUT gets derivatives and sub-LABEL.html, and at the level group
    index.html and results.csv. Several calls may fill OUT at once; a repeated
    call continues.
    Exit status 1 if some registrations failed; they are named.
    """
    with (
        resumable("finished work is kept", "repeat the call to continue"),
        BatchBar(lines=True, shown=not quiet) as bar,
    ):
        found = run_bids(**vars(replace(job, on_progress=bar)))
    part = "group" if job.level == "participant" else ""
    end_batch(found, Path(job.out), strict=False, as_json=as_json, quiet=quiet, part=part)


@app.add("regweave series bold.nii.gz -o realigned")
def series(
    file: Annotated[Path, typer.Argument(help="4-D NIfTI file.")],
    *,
    output: opt.Folder,
    overwrite: opt.Overwrite = False,
    transform: Annotated[
        Literal["rigid", "affine"], opt.of_method(help="Kind of map from the mean to each volume.", metavar="KIND")
    ] = "rigid",
    rounds: Annotated[int, opt.of_method(help="Rounds; each registers the volumes to the mean before.")] = 2,
    threads: Annotated[int | None, opt.of_method(help="Threads; the result is the same for any number.")] = None,
    as_json: opt.Json = False,
) -> None:
    """Bring the volumes of a 4-D image to their mean.

    The folder gets mean.nii.gz, series.nii.gz, motion.tsv with shifts,
    rotations and framewise displacement, and a transform for each volume.
    """
    with prepare_output(output, overwrite=overwrite) as folder:
        found = realign(file, transform=transform, rounds=rounds, threads=threads)
        write_image(folder / "mean.nii.gz", found.mean)
        write_time_series(folder / "series.nii.gz", found.series)
        (folder / "transforms").mkdir()
        for n, matrix in enumerate(found.matrices):
            write_linear(folder / "transforms" / f"{n:04}.tfm", matrix)
        with (folder / "motion.tsv").open("w", encoding="utf-8", newline="") as stream:
            write_tsv(stream, found.motion())
    largest = max(row["framewise_displacement"] for row in found.motion())
    if as_json:
        facts = {"output": str(output), "volumes": len(found.series), "largest_framewise_displacement_mm": largest}
        print(json.dumps(facts))
    else:
        print(f"wrote {output}: {len(found.series)} volumes, framewise displacement up to {largest:.3g} mm")


@atlas.add("regweave atlas build people.csv -o ATLAS")
def build(
    manifest: Annotated[Path, typer.Argument(help="List with the columns id, image, labels and group.")],
    *,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the atlases.", metavar="ATLAS")],
    overwrite: opt.Overwrite = False,
    label_names: opt.LabelNames = None,
    as_json: opt.Json = False,
) -> None:
    """Check images and labels, and copy them into a folder of atlases.

    Structures are brought to one numbering by their names. The column group,
    if there is one, names the patient of each image; labels2 and labels3 are
    more label maps, for structures that overlap.
    """
    found = build_atlas(manifest, output, label_names=label_names, overwrite=overwrite)
    facts = {"output": str(output), "atlases": len(found.rows), "structures": len(found.names)}
    text = f"wrote {output}: {facts['atlases']} atlases, {facts['structures']} structures"
    print(json.dumps(facts) if as_json else f"{text}\nnext: regweave atlas evaluate {output} -o scores")


@atlas.add("regweave atlas evaluate ATLAS -o scores --top 8")
@opt.from_fields
def evaluate(job: EvaluateJob, *, as_json: opt.Json = False, quiet: opt.Quiet = False) -> None:
    """Segment every atlas with the others; print the Dice by structure.

    Atlases that lower the vote of the others are named. The relation of
    estimated to measured Dice is kept in ATLAS for later estimates.
    """
    with resumable("finished work is kept"), BatchBar(lines=True, shown=not quiet) as bar:
        found = evaluate_atlas(**vars(replace(job, on_progress=bar)))
    if as_json:
        print(json.dumps(found, indent=1, ensure_ascii=False))
        return
    columns, shown = ["Dice", "people"], any(row["compared"] for row in found["structures"])
    columns += ["of new people", "Dice", "network"] if shown else []
    rows = []
    for row in found["structures"]:
        one = row["compared"]
        more = ["0", "–", "–"] if one is None else [str(one["people"]), f"{one['atlas']:.3f}", f"{one['network']:.3f}"]
        rows.append((row["name"], [f"{row['dice']:.3f}", str(row["people"]), *(more if shown else [])]))
    print(text_table("structure", columns, rows, longest=30))
    print(f"mean        {found['dice']:.3f} ({job.fusion} of {job.top}), vote {found['vote']:.3f}")
    print(f"one atlas   {found['most_alike']:.3f} (most alike), {found['best_single']:.3f} (best, chosen by the truth)")
    print(f"estimate    rho {found['estimate']['rho']:.2f} with the measured Dice")
    for name, effect in found["lowering"].items():
        print(f"lowers      {name}: {effect:+.4f} mean Dice of a vote")
    for name, text in found["failed"].items():
        print(f"failed      {name}: {text}")
