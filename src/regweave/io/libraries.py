"""The two image libraries, as untyped names: their stubs cover too little for strict checking."""

from __future__ import annotations

from typing import Any

import nibabel
import SimpleITK

nib: Any = nibabel
sitk: Any = SimpleITK
