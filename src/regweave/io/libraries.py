"""Image libraries as untyped names."""

from __future__ import annotations

from typing import Any

import nibabel
import SimpleITK

nib: Any = nibabel
sitk: Any = SimpleITK
