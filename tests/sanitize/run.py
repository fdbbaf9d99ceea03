"""Tests on other builds of the kernels: ``run.py address``, ``run.py thread`` or ``run.py portable``.

``address`` looks for reads and writes outside of arrays and for undefined behaviour, ``thread`` for data races, both
with the sanitizers of GCC. ``portable`` compiles what compilers without vector types get. The package of the build
folder takes the place of the installed one, see `instrumented`.
"""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent


@dataclass(frozen=True)
class Kind:
    """Definitions of the build, the libraries to load first, their options, and the tests to run."""

    definitions: tuple[str, ...]
    libraries: tuple[str, ...]
    environment: dict[str, str]
    tests: tuple[str, ...]


# Both instruction sets come from the same sources; one of them is enough to find a wrong index, in half the time.
ONE_BUILD = ("REGWEAVE_AVX2=OFF",)

KINDS = {
    "address": Kind(
        ("REGWEAVE_SANITIZE=address,undefined", *ONE_BUILD),
        ("libasan.so", "libubsan.so"),
        # Python keeps memory until it ends, which is no leak; its own allocator would hide reads past an array.
        {
            "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1",
            "UBSAN_OPTIONS": "print_stacktrace=1",
            "PYTHONMALLOC": "malloc",
        },
        (
            "tests/test_kernels_refuse.py", "tests/test_parallel.py", "tests/spatial", "tests/engines",
            "tests/energy", "tests/metrics", "tests/losses", "tests/predictors/test_unet_network.py",
            "tests/registration/test_refine.py", "tests/registration/test_align.py",
        ),
    ),
    "thread": Kind(
        ("REGWEAVE_SANITIZE=thread", *ONE_BUILD),
        ("libtsan.so",),
        {
            "TSAN_OPTIONS": "ignore_noninstrumented_modules=1:halt_on_error=1:die_after_fork=0:exitcode=66",
            "OPENBLAS_NUM_THREADS": "1",
        },
        ("tests/test_parallel.py", "tests/sanitize/test_threads.py"),
    ),
    "portable": Kind(
        ("REGWEAVE_PORTABLE_SIMD=ON",),
        (),
        {"OPENBLAS_NUM_THREADS": "1"},
        (
            "tests/test_kernels_refuse.py", "tests/test_builds.py", "tests/metrics", "tests/losses", "tests/energy",
            "tests/predictors/test_unet_network.py",
        ),
    ),
}  # fmt: skip


def build(kind: str) -> Path:
    """Compile the kernels and return a folder with a package that has them."""
    folder = ROOT / "build" / f"sanitize-{kind}"
    tool = Path(sys.executable).parent
    path = f"{tool}{os.pathsep}{os.environ['PATH']}"
    nanobind = _output(sys.executable, "-m", "nanobind", "--cmake_dir")
    configure = [
        "cmake", "-S", ROOT, "-B", folder, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=RelWithDebInfo",
        *(f"-D{text}" for text in KINDS[kind].definitions), f"-Dnanobind_DIR={nanobind}",
        f"-DPython_EXECUTABLE={sys.executable}",
    ]  # fmt: skip
    for command in (configure, ["cmake", "--build", folder]):
        subprocess.run(command, check=True, env={**os.environ, "PATH": path}, stdout=subprocess.DEVNULL)
    package = folder / "package" / "regweave"
    shutil.rmtree(package, ignore_errors=True)
    shutil.copytree(ROOT / "src" / "regweave", package, ignore=shutil.ignore_patterns("_core*.so", "__pycache__"))
    for library in folder.glob("_core*.so"):
        shutil.copy(library, package)
    return package.parent


def run(kind: str, arguments: list[str]) -> int:
    """Run the tests of a kind; return pytest's exit status."""
    chosen = KINDS[kind]
    libraries = [_output(os.environ.get("CXX", "g++"), f"-print-file-name={name}") for name in chosen.libraries]
    if missing := [name for name in libraries if not Path(name).is_absolute()]:
        raise SystemExit(f"the compiler has no {', '.join(missing)}; install GCC with its sanitizers")
    if libraries:
        libraries.append(_output(os.environ.get("CXX", "g++"), "-print-file-name=libstdc++.so.6"))
    package = build(kind)
    environment = {
        **os.environ, **chosen.environment, "LD_PRELOAD": " ".join(libraries), "PYTHONPATH": str(HERE),
        "REGWEAVE_INSTRUMENTED": str(package),
    }  # fmt: skip
    pytest = [sys.executable, "-m", "pytest", "-p", "instrumented", "-q", "-p", "no:cacheprovider", "-m", "not slow"]
    if kind == "thread":
        # The thread sanitizer wants its shadow memory where address space layout randomisation may put libraries.
        pytest = ["setarch", "-R", *pytest]
    else:
        pytest += ["-n", os.environ.get("JOBS", "2")]
    return subprocess.run([*pytest, *(arguments or chosen.tests)], check=False, env=environment, cwd=ROOT).returncode


def _output(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


if __name__ == "__main__":
    sys.exit(run(sys.argv[1], sys.argv[2:]))
