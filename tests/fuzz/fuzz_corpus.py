"""Good files of every kind that users hand in, and the quick command that reads each."""

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "datasets"))
import fuzz_mutate as damage
import numpy as np
import SimpleITK as sitk  # noqa: N813
from fuzz_child import Call
from fuzz_mutate import Mutation

from phantoms import make_phantom
from regweave import io
from regweave.config.settings import preset
from regweave.io.transforms import files
from regweave.jobs.table import read_pairs
from regweave.types import Field, Transform


@dataclass(frozen=True)
class Sample:
    """A good file.

    Parameters
    ----------
    name, data : str, bytes
        The file.
    call : arguments or function
        What reads it, in the folder where it lies.
    mutations : tuple of functions
        What may happen to it.
    whole : bool
        The file says how long it is, so one that lost its end must be refused.
    beside : mapping
        Other files that the call needs.
    neutral : tuple of functions
        Changes of the bytes that mean nothing: the reading stays the same.
    """

    name: str
    data: bytes
    call: Call
    mutations: tuple[Mutation, ...]
    whole: bool = False
    beside: dict[str, bytes] = field(default_factory=dict)
    neutral: tuple[Callable[[bytes], bytes], ...] = ()


def _comment(after: bytes, line: bytes) -> Callable[[bytes], bytes]:
    return lambda data: data.replace(after, after + line, 1)


def _crlf(data: bytes) -> bytes:
    return data.replace(b"\n", b"\r\n")


def _reindent(data: bytes) -> bytes:
    return json.dumps(json.loads(data), indent=7, ensure_ascii=True).encode()


def _describe(data: bytes) -> bytes:
    """Write a text into the field of a NIfTI header that is there for it."""
    return data[:148] + b"another scanner".ljust(80, b"\0") + data[228:]


def corpus(folder: Path) -> list[Sample]:
    """Write good files into a folder and return them."""
    phantom = make_phantom(seed=1, shape=(10, 9, 8), spacing_mm=(20.0, 20.0, 24.0))
    pair = phantom.pair
    io.write_image(folder / "fixed.nii.gz", pair.fixed)
    fixed = {"fixed.nii.gz": (folder / "fixed.nii.gz").read_bytes()}
    return [*_images(folder, pair), *_transforms(folder, phantom.true_field, fixed), *_texts(folder, pair, fixed)]


def _images(folder: Path, pair) -> list[Sample]:  # type: ignore[no-untyped-def]
    io.write_image(folder / "a.nii", pair.fixed, np.int16)
    io.write_image(folder / "a.nii.gz", pair.fixed)
    image = sitk.ReadImage(str(folder / "a.nii"))
    for key in image.GetMetaDataKeys():  # what NIfTI alone has; the other writers would warn of each
        image.EraseMetaData(key)
    for name, compressed in (("a.nrrd", False), ("z.nrrd", True), ("a.mha", False), ("z.mha", True)):
        sitk.WriteImage(image, str(folder / name), compressed)
    for name in ("h.nhdr", "h.mhd"):
        sitk.WriteImage(image, str(folder / name), False)
    comment = {"nrrd": (_comment(b"\n", b"# a comment\n"),), "nhdr": (_comment(b"\n", b"# a comment\n"),)}
    gzipped = tuple(damage.inside_gzip(m) for m in damage.BINARY if m is not damage.cut)
    found = []
    for name in ("a.nii", "a.nii.gz", "a.nrrd", "z.nrrd", "a.mha", "z.mha", "h.nhdr", "h.mhd"):
        data, suffix = (folder / name).read_bytes(), name.split(".")[-1]
        text = () if suffix in {"nii", "gz"} else (damage.swap_number, damage.shuffle_lines, damage.swap_word) * 2
        header = suffix in {"nhdr", "mhd"}
        beside = {p.name: p.read_bytes() for p in folder.glob("h.*raw")} if header else {}
        neutral = (_describe,) if name == "a.nii" else comment.get(suffix, ())
        more = gzipped if suffix == "gz" else ()
        mutations = (*damage.BINARY, *text, *more)
        found.append(Sample(name, data, ["check", "--json", name], mutations, not header, beside, neutral))
    read = ["warp", "image", "a.nii", "-t", "identity", "-r", "a.nii", "-o", "o.nii.gz"]
    return [*found, Sample("a.nii", (folder / "a.nii").read_bytes(), read, damage.BINARY, whole=True)]


def _transforms(folder: Path, true_field: Field, fixed: dict[str, bytes]) -> list[Sample]:
    small = np.eye(4)
    small[:3, 3] = (3.0, -2.0, 1.0)
    io.write_transform(folder / "t.h5", Transform(true_field, small))
    io.write_displacement(folder / "d.nii.gz", true_field)
    for name in ("l.tfm", "l.mat"):
        files.write_linear(folder / name, small)
    euler = sitk.Euler3DTransform((1.0, 2.0, 3.0), 0.1, 0.0, 0.05, (4.0, 5.0, 6.0))
    sitk.WriteTransform(euler, str(folder / "e.txt"))
    spline = sitk.BSplineTransformInitializer(sitk.ReadImage(str(folder / "fixed.nii.gz")), (2, 2, 2))
    sitk.WriteTransform(spline, str(folder / "b.tfm"))
    found = []
    for name in ("t.h5", "d.nii.gz", "l.tfm", "l.mat", "e.txt", "b.tfm"):
        mutations = damage.TEXT if name.endswith(("tfm", "txt")) else damage.BINARY
        call = ["convert", name, "-r", "fixed.nii.gz", "-o", "out.nii.gz"]
        whole = name in {"t.h5", "d.nii.gz", "l.mat"}
        found.append(Sample(name, (folder / name).read_bytes(), call, mutations, whole, fixed))
    return found


def _texts(folder: Path, pair, fixed: dict[str, bytes]) -> list[Sample]:  # type: ignore[no-untyped-def]
    shipped = Path(__file__).parents[1] / "model" / "tissue.json"
    points = np.array([[1.0, 2.0, 3.0], [-4.5, 5.0, 60.0]])
    for name in ("p.csv", "p.fcsv", "p.mrk.json"):
        io.write_points(folder / name, points, ["a", "b"])
    plan = ["plan", "fixed.nii.gz", "fixed.nii.gz", "--config", "s.toml"]
    names = json.dumps({"1": "left parotid", "2": "right parotid"}).encode()
    table = b"index\tname\n1\tleft parotid\n2\tright parotid\n"
    listed = b"id,fixed,moving,fixed_labels,moving_labels,group\na,fixed.nii.gz,fixed.nii.gz,l.nii.gz,l.nii.gz,g\n"
    io.write_labels(folder / "l.nii.gz", pair.fixed_labels)
    files = {**fixed, "l.nii.gz": (folder / "l.nii.gz").read_bytes()}
    settings = preset("default").toml().encode()
    toml = (_comment(b"\n", b"# a comment\n"),)
    model = shipped.read_bytes()
    samples = [
        Sample("m.json", model, ["models", "show", "m.json"], damage.JSON, neutral=(_reindent,)),
        Sample("s.toml", settings, plan, damage.TEXT, beside=fixed),
        Sample("s.toml", settings, lambda: str(_settings("s.toml")), damage.TEXT, neutral=toml),
        Sample("n.json", names, lambda: str(io.read_names("n.json")), damage.JSON, neutral=(_reindent,)),
        Sample("n.tsv", table, lambda: str(io.read_names("n.tsv")), damage.TEXT, neutral=(_crlf,)),
        Sample("p.csv", listed, lambda: str(read_pairs("p.csv")), damage.TEXT, beside=files, neutral=(_crlf,)),
    ]
    for name in ("p.csv", "p.fcsv", "p.mrk.json"):
        call = ["warp", "points", name, "-t", "identity", "-o", "o.csv"]
        mutations = damage.JSON if name.endswith("json") else damage.TEXT
        neutral = (_reindent,) if name.endswith("json") else (_crlf,)
        samples.append(Sample(name, (folder / name).read_bytes(), call, mutations, neutral=neutral))
    return samples


def _settings(name: str) -> object:
    from regweave.config.settings import load

    return load(Path(name))
