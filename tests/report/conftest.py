"""A small registration with its page, whose names try to break out of it."""

import json
from pathlib import Path

import nibabel as nib
import pytest

from made_pairs import small_settings, write_pair
from phantoms import make_phantom
from regweave.report.registration import write_page
from regweave.run.register import register

SETTINGS = small_settings((48.0, 2, 2), (24.0, 1, 1), refine=4)
HOSTILE_NAMES = {
    1: "<img src=x onerror=window.hacked=1>",
    2: "</script><script>window.hacked=1</script>",
    3: '"><svg onload=window.hacked=1>',
    4: "=HYPERLINK(1)",
}
HOSTILE_FILE = '"><img src=x onerror=window.hacked=1>.nii.gz'
HEADER_TEXT = "<script>window.hacked=1</script>"


@pytest.fixture(scope="session")
def result_folder(tmp_path_factory) -> Path:
    """Folder of a registration with its page; not to be written to."""
    folder = tmp_path_factory.mktemp("page")
    pair = make_phantom(seed=1, shape=(32, 30, 28), spacing_mm=(6.0, 6.0, 7.0)).pair
    paths = write_pair(folder, pair)
    paths["moving"] = paths["moving"].rename(folder / HOSTILE_FILE)
    _sign(paths["fixed"])
    names = folder / "names.json"
    names.write_text(json.dumps(HOSTILE_NAMES))
    result = register(**paths, config=SETTINGS, label_names=names)
    result.save(folder / "out")
    write_page(folder / "out")
    return folder / "out"


def _sign(path: Path) -> None:
    """Put text that means harm where scanners put the patient's name."""
    image = nib.load(path)
    image.header["descrip"] = HEADER_TEXT.encode()
    image.header["db_name"] = b"<b>DOE^JOHN</b>"
    nib.save(nib.Nifti1Image(image.get_fdata(dtype="float32"), image.affine, image.header), path)
