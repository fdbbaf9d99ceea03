"""Options that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

from regweave.io.nifti_frame import NiftiFrame
from regweave.io.validate import NonFinite

FrameOption = Annotated[
    NiftiFrame, typer.Option(help="Matrix that places NIfTI files; auto refuses files whose two disagree.")
]
NonFiniteOption = Annotated[
    NonFinite, typer.Option(help="Voxels that are not finite numbers: refuse the image, or treat them as background.")
]
