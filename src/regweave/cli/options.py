"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from regweave.config.settings import preset_names
from regweave.errors import UsageError
from regweave.io.formats.nifti_frame import NiftiFrame
from regweave.io.formats.validate import NonFinite
from regweave.io.modality import Stated
from regweave.jobs.cluster import Cluster
from regweave.model.model import shipped_models

FrameOption = Annotated[
    NiftiFrame, typer.Option(help="Matrix that places NIfTI files; auto refuses files whose two disagree.")
]
NonFiniteOption = Annotated[
    NonFinite, typer.Option(help="Voxels that are not finite numbers: refuse the image, or treat them as background.")
]
FollowOption = Annotated[
    bool,
    typer.Option("--follow-links", help="Let headers (.mhd, .nhdr) name files of voxels outside of their folder."),
]

FixedModalityOption = Annotated[
    Stated, typer.Option(help="What the fixed image is; auto tells CT from other images by the histogram.")
]
MovingModalityOption = Annotated[Stated, typer.Option(help="The same for the moving image.")]
LabelNamesOption = Annotated[
    Path | None,
    typer.Option(help="Names of the labels, JSON, TSV or ITK-SNAP; by default a file beside the label map."),
]

RulesOption = Annotated[
    Path | None, typer.Option(help="Rules for pass, look and fail, TOML; see `regweave rules`.", metavar="FILE")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else, on standard output.")]

SchedulerOption = Annotated[
    str | None, typer.Option(help="Dask scheduler to use instead, tcp://HOST:PORT or tls://HOST:PORT.")
]
TlsCaOption = Annotated[Path | None, typer.Option(help="Certificate of the authority, for tls://.", metavar="PEM")]
TlsCertOption = Annotated[Path | None, typer.Option(help="Certificate of this client, for tls://.", metavar="PEM")]
TlsKeyOption = Annotated[Path | None, typer.Option(help="Key of this client, for tls://.", metavar="PEM")]
WaitOption = Annotated[float, typer.Option(help="Seconds to wait for the scheduler's first worker.")]


def cluster_of(
    scheduler: str | None, ca: Path | None, cert: Path | None, key: Path | None, wait_s: float
) -> Cluster | None:
    """Return the cluster that the options name; None without ``--scheduler``."""
    if scheduler is not None:
        return Cluster(scheduler, ca, cert, key, wait_s)
    if ca or cert or key:
        raise UsageError("E192", "TLS files are given without --scheduler", "add --scheduler tls://HOST:PORT")
    return None


def complete_preset(typed: str) -> list[str]:
    """Names of presets for the shell."""
    names = preset_names()
    return [name for name in sorted({*names, *(n.split("@")[0] for n in names)}) if name.startswith(typed)]


def complete_model(typed: str) -> list[str]:
    """Names of shipped models for the shell, which offers files where none fits."""
    return [name for name in shipped_models() if name.startswith(typed)]


def parse_values(text: str | None) -> tuple[int, ...] | None:
    """Read label values with commas between them.

    Examples
    --------
    >>> parse_values("1,2,7")
    (1, 2, 7)
    """
    if text is None:
        return None
    try:
        return tuple(int(v) for v in text.split(","))
    except ValueError as error:
        raise UsageError("E194", f"--classes {text} is not a list of label values", "write 1,2,3") from error
