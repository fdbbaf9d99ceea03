"""Input and output: every file is checked here, and every frame becomes LPS millimetres here."""

from regweave.io.disk.files import is_file, require_file, sha256
from regweave.io.disk.outputs import atomic_path, owned_path, prepare_output, require_absent, working_folder
from regweave.io.geometry import check_overlap, check_same_grid, overlap_fraction
from regweave.io.images import Inspection, image_sha256, inspect_image, names_file, read_image, read_labels
from regweave.io.labels import read_names, require_names
from regweave.io.modality import fill_value
from regweave.io.points import read_points, write_points
from regweave.io.transforms.files import read_transform, total_displacement, write_displacement, write_transform
from regweave.io.write import write_image, write_labels

__all__ = [
    "Inspection", "atomic_path", "check_overlap", "check_same_grid", "fill_value", "image_sha256", "inspect_image",
    "is_file", "names_file", "overlap_fraction", "owned_path", "prepare_output", "read_image", "read_labels",
    "read_names", "read_points", "read_transform", "require_absent", "require_file", "require_names", "sha256",
    "total_displacement", "working_folder", "write_displacement", "write_image", "write_labels", "write_points",
    "write_transform",
]  # fmt: skip
