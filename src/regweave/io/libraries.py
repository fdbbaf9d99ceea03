"""Image libraries as untyped names."""

from typing import Any

import nibabel
import SimpleITK

nib: Any = nibabel
sitk: Any = SimpleITK
