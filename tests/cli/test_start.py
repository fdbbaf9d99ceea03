"""Before the program begins: what is loaded, and what a small address space means."""

import resource
import subprocess
import sys

import pytest

CALL = "import sys; from regweave.cli import main; sys.exit(main(sys.argv[1:]))"


def python(code: str, *words: str, **options) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code, *words], check=False, capture_output=True, text=True, **options)


HEAVY = [
    "SimpleITK",
    "nibabel",
    "pydicom",
    "shapely",
    "contourpy",
    "numpy",
    "scipy",
    "daqp",
    "typer",
    "rich",
    "pydantic",
]


def test_import_loads_nothing_heavy_and_public_names_come_on_demand():
    found = python(
        "import sys, regweave as rw; print(sorted(set(sys.modules) & set(sys.argv)));"
        "print(rw.register.__name__, dir(rw) == sorted(rw.__all__)); rw.nothing",
        *HEAVY,
    )
    assert found.stdout.splitlines() == ["[]", "register True"]
    assert "has no attribute 'nothing'" in found.stderr


@pytest.mark.parametrize("megabytes", [300, 520])
def test_too_small_an_address_space_is_an_error_with_a_code(megabytes):
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (megabytes << 20, megabytes << 20))

    found = python(CALL, "--version", preexec_fn=limit, timeout=60)
    assert found.returncode == 4
    assert "E140" in found.stderr
    assert "Traceback" not in found.stderr
