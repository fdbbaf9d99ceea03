"""BIDS datasets: the images of each person registered to each other and to a template, and named as derivatives."""

from __future__ import annotations

import csv
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

from regweave import __version__, notices
from regweave.errors import RegweaveError, UsageError
from regweave.io import atomic_path, image_sha256, read_image, sha256, write_image
from regweave.io.disk.files import read_json, require_file, stem_of
from regweave.io.disk.outputs import check_name, unwritable
from regweave.io.disk.records import read_record, this_program, write_record
from regweave.io.modality import Stated
from regweave.io.nifti import NiftiFrame
from regweave.io.write import read_time_series
from regweave.jobs import workers
from regweave.jobs.batch import STORE, THUMBNAIL, Batch, BatchRow, StudyOptions, batch
from regweave.options import called, described, option
from regweave.run import memory, result, warp
from regweave.run.job import Method, TransformKind, check_method, rules_of
from regweave.run.realign import MOTION, realign
from regweave.spatial.warp import warp_image
from regweave.threads import kernel_threads, side_by_side

KINDS: dict[str, tuple[str, Stated]] = {"T1w": ("anat", "t1"), "T2w": ("anat", "t2"), "bold": ("func", "t2")}
"""Folder and contrast of the images that are registered, by suffix."""
LABEL = "[0-9a-zA-Z+]+"
NAME = re.compile(
    rf"(?P<stem>(?P<unit>sub-{LABEL}(_ses-(?P<ses>{LABEL}))?)(_[a-z]+-{LABEL})*)_(?P<suffix>{'|'.join(KINDS)})\.nii(\.gz)?"
)
ENDINGS = tuple(f"_{suffix}.nii{zipped}" for suffix in KINDS for zipped in ("", ".gz"))
OTHER_PART = re.compile(r"_part-(phase|real|imag)_|_echo-(?!0*1_)")  # These are in the space of the image that counts
DESCRIPTION, WORK, VALIDATOR = "dataset_description.json", "work", "bids-validator-deno"
IGNORED = ("*.html", "logs", WORK, "results.*", "*_xfm.*", "*_boldref.*", "*_timeseries.*")
CODE = "https://github.com/regweave/regweave"


@dataclass(frozen=True, kw_only=True)
class BidsJob(StudyOptions):
    """Registrations of a BIDS dataset."""

    bids_dir: str | Path = field(
        kw_only=False, metadata=described("Folder of the dataset.", typed=Path, metavar="BIDS_DIR")
    )
    out: str | Path = field(kw_only=False, metadata=described(
        "Folder of the derivatives. It may be in ``derivatives`` of the dataset; several calls may fill it at once.",
        typed=Path, metavar="OUT",
    ))  # fmt: skip
    level: Literal["participant", "group"] = field(kw_only=False, metadata=described(
        "participant registers, group makes the table and the page of all.", metavar="participant|group",
    ))  # fmt: skip
    participant_label: Sequence[str] | None = option(
        None, "Labels of participants, with or without sub-. By default all.", typed=list[str] | None, metavar="LABEL"
    )
    session_label: Sequence[str] | None = option(
        None, "Labels of sessions, with or without ses-. By default all.", typed=list[str] | None, metavar="LABEL"
    )
    skip_bids_validator: bool = option(
        False, f"Do not run {VALIDATOR} first, where it is installed. Its errors are a warning.",
        flags=("--skip-bids-validator",),
    )  # fmt: skip
    template: str | Path | None = option(
        None, "Image to which the T1w of each session is brought; without it, later sessions to the first.",
        typed=Path | None, panel="Method", metavar="FILE",
    )  # fmt: skip
    transform: TransformKind = option(
        "deformable", "Kind of the map to template or first session; other maps of one person are rigid.",
        panel="Method", metavar="KIND",
    )  # fmt: skip
    nifti_frame: NiftiFrame = option(
        "auto", "Matrix that places NIfTI files; auto refuses files whose two disagree.", panel="Input"
    )


@dataclass(frozen=True)
class _Scan:
    """One image of a dataset; ``stem`` is its name without suffix, ``unit`` its person and session."""

    file: Path
    stem: str
    unit: str
    session: str
    suffix: str

    @property
    def place(self) -> Path:
        return Path(*self.unit.split("_"), KINDS[self.suffix][0])


@dataclass(frozen=True)
class _Pair:
    """A scan and the image it is brought to, with the names of both spaces."""

    scan: _Scan
    moving: Path
    fixed: Path
    start: str
    to: str
    how: tuple[TransformKind, Stated, Stated]  # The map and the contrasts of fixed and moving image
    onward: str = ""  # Key of the pair that brings the fixed image on to the template

    @property
    def key(self) -> str:
        """Id in the batch: the name of the transform, without the plus signs of labels."""
        return self.xfm().replace("+", ".")

    def xfm(self, *, back: bool = False) -> str:
        ends = (self.to, self.start) if back else (self.start, self.to)
        return "{}_from-{}_to-{}_mode-image_xfm".format(self.scan.stem, *ends)


@called(BidsJob)
def bids(job: BidsJob) -> Batch:
    """Register the images of a BIDS dataset, and write them as derivatives.

    The first T1w of a session, or its T2w where there is none, is brought to the template or to the first session.
    Other images of the session are brought to it by rigid maps; of a ``bold`` series, the mean of its realigned
    volumes. What an earlier call has done is not done again.

    Returns
    -------
    Batch
        A row for each registration; those that failed, and people without images, are rows with their error.

    Raises
    ------
    RegweaveError
        E101 where there is no such folder or template, E149 for a folder without people and for unknown labels, E150
        and E152 for an output that cannot be used.
    """
    source, out = Path(job.bids_dir), Path(job.out)
    people = _people(source, job.participant_label)
    _require_place(source, out)
    if job.level == "group":
        return _group(out, people)
    if job.level != "participant":
        raise UsageError("E192", f"the level is {job.level!r}", "write participant or group")
    check_method(Method(preset=job.preset, transform=job.transform, device=job.device))
    workers.worker_count(job.workers, None)
    if job.template is not None:
        require_file(job.template)
    scans = {label: _scans(folder) for label, folder in people.items()}
    sessions = _chosen("session", job.session_label, {one.session for listed in scans.values() for one in listed})
    if not job.skip_bids_validator:
        _validate(source)
    _describe(source, out)
    failed, units, pairs = dict[str, str](), dict[str, str](), list[_Pair]()
    for label, listed in scans.items():
        made = _pairs(listed, job, out)
        pairs += [one for one in made if one.scan.session in sessions]
        if not made:
            what = ", ".join(one.file.name for one in listed) or "there is no T1w, T2w or bold"
            failed[_safe(label)] = f"E149: nothing can be registered: {what}; give --template"
            units[_safe(label)] = f"sub-{label}"
    units |= {one.key: one.scan.unit for one in pairs}
    rows = _rows_of(failed) | _registered(pairs, job, out)
    done = [one for one in pairs if rows[one.key].status == "ok"]
    with kernel_threads(memory.allowed_threads(job.workers)):
        side_by_side(lambda one: _derive(one, job, out), done)
    return _recorded(out, rows, units, done)


def _people(source: Path, labels: Sequence[str] | None) -> dict[str, Path]:
    """Return the folders of the people that are asked for, by label."""
    if not source.is_dir():
        raise RegweaveError("E101", f"there is no folder '{source}'", "name the folder of a BIDS dataset")
    listed = {path.name.removeprefix("sub-"): path for path in sorted(source.glob("sub-*")) if path.is_dir()}
    named = {label: path for label, path in listed.items() if re.fullmatch(LABEL, label)}
    _leave_out([path for label, path in listed.items() if label not in named])
    if not named:
        raise RegweaveError("E149", f"'{source}' has no folder sub-LABEL", "name the folder of a BIDS dataset")
    chosen = _chosen("participant", labels, named)
    return {label: path for label, path in named.items() if label in chosen}


def _chosen(what: str, labels: Sequence[str] | None, known: Iterable[str]) -> set[str]:
    """Return the labels that are asked for, by default all."""
    there = set(known)
    wanted = {label.removeprefix("sub-" if what == "participant" else "ses-") for label in labels or there}
    if unknown := sorted(wanted - there):
        message = f"the dataset has no {what} {', '.join(unknown)}; it has {', '.join(sorted(there)) or 'none'}"
        raise UsageError("E149", message, f"correct --{what}-label")
    return wanted


def _leave_out(paths: Sequence[Path]) -> None:
    if paths:
        names = ", ".join(f"'{path.name}'" for path in paths)
        notices.warn(f"W254: left out, as the names are not those of BIDS or are there twice: {names}")


def _scans(folder: Path) -> list[_Scan]:
    """Return the images of one person that are registered, those with short names first."""
    found, odd = dict[tuple[str, str], _Scan](), list[Path]()
    files = [path for kind in ("anat", "func") for part in ("", "ses-*/") for path in folder.glob(f"{part}{kind}/*")]
    for path in sorted(files, key=lambda path: (path.parent, len(path.name), path.name)):
        if path.name.endswith(ENDINGS) and not OTHER_PART.search(path.name):
            odd.append(path)
            if name := NAME.fullmatch(path.name):
                scan = _Scan(path, name["stem"], name["unit"], name["ses"] or "", name["suffix"])
                if path.parent == folder.parent / scan.place and (scan.stem, scan.suffix) not in found:
                    found[scan.stem, scan.suffix] = scan
                    odd.pop()
    _leave_out(odd)
    return list(found.values())


def _pairs(scans: Sequence[_Scan], job: BidsJob, out: Path) -> list[_Pair]:
    """Return what is registered of one person."""
    anatomy = sorted((one for one in scans if one.suffix != "bold"), key=lambda one: one.suffix)  # T1w before T2w
    anchors = {one.session: one for one in reversed(anatomy)}
    if not anchors:
        return []
    first = anchors[min(anchors, key=lambda label: (len(label), label))]
    target, to, seen = first.file, f"ses{first.session}", KINDS[first.suffix][1]
    if job.template is not None:
        target, to = Path(job.template), _space(job.template)
        seen = KINDS.get(stem_of(target).rpartition("_")[2], ("", "mr"))[1]
    pairs = [
        _Pair(one, one.file, target, one.suffix, to, (job.transform, seen, KINDS[one.suffix][1]))
        for one in anchors.values() if one.file != target
    ]  # fmt: skip
    onward = {one.scan.session: one.key for one in pairs if job.template is not None}
    for one in (one for one in scans if one not in anchors.values()):
        anchor, start, moving = anchors.get(one.session, first), one.suffix, one.file
        if one.suffix == "bold":
            start, moving = "boldref", out / one.place / f"{one.stem}_boldref.nii.gz"
        elif one.suffix == anchor.suffix:
            start = "orig"
        how: tuple[TransformKind, Stated, Stated] = ("rigid", KINDS[anchor.suffix][1], KINDS[one.suffix][1])
        pairs.append(_Pair(one, moving, anchor.file, start, anchor.suffix, how, onward.get(anchor.session, "")))
    return pairs


def _space(template: str | Path) -> str:
    """Name the space of a template."""
    named = re.match(f"tpl-({LABEL})_", stem := stem_of(Path(template)))
    label = named[1] if named else re.sub("[^0-9a-zA-Z]", "", stem)
    return f"template{label}" if label in ("", *KINDS) else label


def _require_place(source: Path, out: Path) -> None:
    """Refuse an output among the images, or with files of others."""
    check_name(out, folder=True)
    there, place = out.resolve(), source.resolve()
    if place.is_relative_to(there) or (there.is_relative_to(place) and place / "derivatives" not in there.parents):
        raise UsageError("E152", f"the output '{out}' is among the images", "name a folder in derivatives or elsewhere")
    if out.exists() and not (out / WORK).is_dir() and (not out.is_dir() or any(out.iterdir())):
        raise RegweaveError("E150", f"'{out}' holds something else than derivatives", "choose another folder")


def _validate(source: Path) -> None:
    """Run the validator where there is one; its errors are a warning, for a broken person stops no other."""
    if program := shutil.which(VALIDATOR):
        done = subprocess.run([program, str(source), "--ignoreWarnings"], capture_output=True, text=True, check=False)
        codes = ", ".join(dict.fromkeys(re.findall(r"\[ERROR\]\S* ([A-Z_]+)", done.stdout)))
        if done.returncode:
            notices.warn(f"W255: {VALIDATOR} finds errors in '{source}': {codes or f'status {done.returncode}'}")


def _describe(source: Path, out: Path) -> None:
    """Make the folder of the derivatives, and describe it."""
    try:
        (out / WORK).mkdir(parents=True, exist_ok=True)
        (out / "logs").mkdir(exist_ok=True)
    except OSError as error:
        raise unwritable(out, error) from error
    given = read_json(source / DESCRIPTION) if (source / DESCRIPTION).is_file() else {}
    origin = source.resolve().as_uri()
    write_record(out / DESCRIPTION, {
        "Name": f"regweave: registrations of {given.get('Name', source.resolve().name)}",
        "BIDSVersion": "1.10.0", "DatasetType": "derivative",
        "GeneratedBy": [{"Name": "regweave", "Version": __version__, "CodeURL": CODE}],
        "SourceDatasets": [{"URL": origin} | ({"DOI": given["DatasetDOI"]} if "DatasetDOI" in given else {})],
        "DatasetLinks": {"raw": origin},
    })  # fmt: skip
    with atomic_path(out / ".bidsignore") as part:
        part.write_text("\n".join(IGNORED) + "\n", encoding="utf-8")


def _safe(label: str) -> str:
    """Id of the row of a person, where a plus sign is none."""
    return f"sub-{label}".replace("+", ".")


def _rows_of(failed: Mapping[str, str | None]) -> dict[str, BatchRow]:
    return {key: BatchRow.of(workers.Outcome(key, None, text)) for key, text in failed.items() if text is not None}


def _registered(pairs: Sequence[_Pair], job: BidsJob, out: Path) -> dict[str, BatchRow]:
    """Run the registrations as batches that other calls may share, and return rows whose folders begin at OUT."""
    failed, series = dict[str, str | None](), dict[str, dict[str, Any]]()
    for one in pairs:
        try:
            for file in (one.fixed, one.scan.file):
                require_file(file)
            if one.scan.suffix == "bold":
                files = {"series": str(one.scan.file.absolute()), "mean": str(one.moving.absolute())}
                series[one.key] = files | {"frame": job.nifti_frame, "sha256": image_sha256(one.scan.file)}
        except RegweaveError as error:
            failed[one.key] = str(error)
    means = workers.run_tasks(
        series.items(), write_mean, workers=job.workers, store=out / WORK / STORE, on_progress=job.on_progress,
        whole=lambda done: (mean := Path(series[done.key]["mean"])).is_file() and sha256(mean) == done.value,
    )  # fmt: skip
    rows = _rows_of(failed | {one.key: one.error for one in means})
    left = sorted((one for one in pairs if one.key not in rows), key=lambda one: one.how)
    for how, some in groupby(left, lambda one: one.how):
        table = [{"id": one.key, "fixed": one.fixed.absolute(), "moving": one.moving.absolute()} for one in some]
        found = batch(
            table, out / WORK, transform=how[0], fixed_modality=how[1], moving_modality=how[2], preset=job.preset,
            device=job.device, nifti_frame=job.nifti_frame, write=result.DEFAULT, workers=job.workers, shard="1/1",
            on_progress=job.on_progress,
        )  # fmt: skip
        for row in found.rows:
            places = {"folder": f"{WORK}/{row.id}", "thumbnail": f"{WORK}/{row.id}/{THUMBNAIL}"}
            rows[row.id] = row.model_copy(update=places if row.status == "ok" else {})
    return rows


def write_mean(task: Mapping[str, Any]) -> str:
    """Write the mean of a realigned series and its motion; return the hash of the mean."""
    mean = Path(task["mean"])
    with notices.muted():
        found = realign(read_time_series(task["series"], task["frame"]), threads=1)
    mean.parent.mkdir(parents=True, exist_ok=True)
    table = mean.with_name(mean.name.replace("_boldref.nii.gz", "_desc-confounds_timeseries.tsv"))
    with atomic_path(table) as part, part.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, MOTION, delimiter="\t", lineterminator="\n")
        writer.writeheader()
        writer.writerows(found.motion())
    with atomic_path(mean) as part:
        write_image(part, found.mean)
    return sha256(mean)


def _derive(one: _Pair, job: BidsJob, out: Path) -> None:
    """Give the files of a registration the names of derivatives, and bring the scan on to the template."""
    root, work, place = Path(job.bids_dir).resolve(), out / WORK, out / one.scan.place
    forth, back = one.xfm(), one.xfm(back=True)
    suffix = "boldref" if one.scan.suffix == "bold" else f"desc-preproc_{one.scan.suffix}"

    def address(file: Path) -> str:
        found = file.resolve()
        return f"bids:raw:{found.relative_to(root).as_posix()}" if found.is_relative_to(root) else found.as_uri()

    def describe(space: str, image: Path) -> Path:
        name, source = f"{one.scan.stem}_space-{space}_{suffix}", address(one.scan.file)
        facts = {"Sources": [source], "SpatialReference": address(image), "SkullStripped": False}
        write_record(place / f"{name}.json", facts)
        return place / f"{name}.nii.gz"

    place.mkdir(parents=True, exist_ok=True)
    for name in (forth, back):
        write_record(place / f"{name}.json", {"Sources": [address(one.scan.file), address(one.fixed)]})
    _link(work / one.key / result.FILES["transform"], place / f"{forth}.h5")
    _link(work / one.key / result.FILES["inverse"], place / f"{back}.h5")
    _link(work / one.key / result.FILES["warped"], describe(one.to, one.fixed))
    if one.onward and job.template is not None and (work / one.onward / result.FILES["transform"]).is_file():
        chain = [work / key / result.FILES["transform"] for key in (one.onward, one.key)]
        onto = warp.onto_grid(chain, job.template, nifti_frame=job.nifti_frame)
        with atomic_path(describe(_space(job.template), Path(job.template))) as part:
            write_image(part, warp_image(read_image(one.moving, nifti_frame=job.nifti_frame), onto))


def _link(file: Path, name: Path) -> None:
    """Give a file a second name: a large one takes no place twice, where the file system can do that."""
    with atomic_path(name) as part:
        try:
            os.link(file, part)
        except OSError:
            shutil.copyfile(file, part)


def _recorded(out: Path, rows: Mapping[str, BatchRow], units: Mapping[str, str], done: Sequence[_Pair]) -> Batch:
    """Keep the rows of each session; write the pages of the people, and the text with citations."""
    from regweave.report import batch as page  # noqa: PLC0415 (pages are above results)
    from regweave.report.registration import boilerplate  # noqa: PLC0415

    for unit in dict.fromkeys(units.values()):
        (out / WORK / f"{unit.partition('_')[0]}.json").unlink(missing_ok=True)  # Of a person who had no images
        some = [rows[key] for key, own in units.items() if own == unit]
        write_record(out / WORK / f"{unit}.json", _found(out, some).content())
    for person in dict.fromkeys(unit.partition("_")[0] for unit in units.values()):
        page.draw(_found(out, _kept(out, person)), f"{person}.html", person)
    texts = {one.how[0]: boilerplate(out / WORK / one.key, alone=False) for one in reversed(done)}
    with atomic_path(out / "logs" / "CITATION.md") as part:
        part.write_text("\n".join(texts[kind] for kind in sorted(texts)), encoding="utf-8")
    return _found(out, [rows[key] for key in units])


def _found(out: Path, rows: Sequence[BatchRow]) -> Batch:
    return Batch(rules=rules_of(None).name, rows=tuple(rows), provenance=this_program(), folder=out)


def _kept(out: Path, person: str) -> list[BatchRow]:
    """Return the rows of all sessions of a person."""
    files = sorted([*out.glob(f"{WORK}/{person}.json"), *out.glob(f"{WORK}/{person}_*.json")])
    return [row for file in files for row in read_record(Batch, file).rows]


def _group(out: Path, people: Iterable[str]) -> Batch:
    """Write the table and the page of all people."""
    if not (out / WORK).is_dir():
        raise RegweaveError("E101", f"there are no registrations in '{out}'", "run the level participant first")
    kept = {_safe(label): _kept(out, f"sub-{label}") for label in people}
    missing = _rows_of({name: "E196: the level participant has not ended for it" for name in kept if not kept[name]})
    found = _found(out, [row for name, rows in kept.items() for row in rows or [missing[name]]])
    found.write()
    return found
