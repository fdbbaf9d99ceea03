"""Before the program begins: what is loaded, and what a small address space means."""

import resource
import subprocess
import sys

import pytest

CALL = "import sys; from regweave.cli import main; sys.exit(main(sys.argv[1:]))"


def python(code: str, *words: str, **options) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code, *words], check=False, capture_output=True, text=True, **options)


def test_import_loads_nothing_heavy():
    found = python(
        "import sys, regweave; print(sorted(set(sys.modules) & {'numpy', 'scipy', 'SimpleITK', 'pydantic'}))"
    )
    assert (found.returncode, found.stdout.strip()) == (0, "[]")


def test_public_names_come_on_demand():
    found = python("import regweave as rw; print(rw.register.__name__, dir(rw) == sorted(rw.__all__))")
    assert found.stdout.split() == ["register", "True"]
    assert "has no attribute 'nothing'" in python("import regweave; regweave.nothing").stderr


@pytest.mark.parametrize("megabytes", [300, 520])
def test_too_small_an_address_space_is_an_error_with_a_code(megabytes):
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (megabytes << 20, megabytes << 20))

    found = python(CALL, "--version", preexec_fn=limit, timeout=60)
    assert found.returncode == 4
    assert "E140" in found.stderr
    assert "Traceback" not in found.stderr
