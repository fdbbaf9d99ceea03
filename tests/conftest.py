import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from made_pairs import small_settings
from phantoms import PhantomPair, make_phantom
from regweave.config.settings import Settings
from regweave.io import write_image, write_labels
from regweave.jobs import workers as batch
from regweave.jobs.workers import attempt

QUICK_TRAINING = """
[train]
C = 20.0
alpha = 1.0
eta = 3.0
epsilon = 0.05
folds = 2
predictor_options = {samples = 1000, steps = 5}
"""
HEADER = "id,fixed,moving,fixed_labels,moving_labels,group"
BANK = [{"name": "sad", "metric": "sad"}, {"name": "mi", "metric": "mi"}]
BANK += [{"name": "fine", "metric": "ncc", "stage": "refine"}]
TINY = small_settings((64.0, 2, 1), (48.0, 1, 1), refine=1, name="tiny", banks={"mr": BANK})


@dataclass(frozen=True)
class TrainingList:
    """Four phantoms in a folder, settings beside them; not to be written to."""

    folder: Path
    settings: Settings

    def line(self, number: int, name: str | None = None, group: str | None = None, **files: str) -> str:
        found = {
            f"{part}{kind}": f"{part}{number}{kind}.nii.gz" for kind in ("", "_labels") for part in ("fixed", "moving")
        }
        return ",".join([name or f"p{number}", *(found | files).values(), group or f"g{number}"])

    def write(self, path: Path, *lines: str) -> Path:
        """Write a list whose files are those of the folder."""
        here = [",".join(str(self.folder / c) if c.endswith(".nii.gz") else c for c in row.split(",")) for row in lines]
        path.write_text("\n".join((HEADER, *here)) + "\n")
        return path

    def files(self, number: int) -> dict[str, Path]:
        columns = ("fixed", "moving", "fixed_labels", "moving_labels")
        return dict(zip(columns, (self.folder / c for c in self.line(number).split(",")[1:5]), strict=True))


def _default_signals() -> None:
    for name in ("SIGINT", "SIGHUP", "SIGTERM"):
        signal.signal(getattr(signal, name), signal.SIG_DFL)


@pytest.fixture
def spawn() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start processes with default signal handlers, whatever the parent ignores; the end of the test kills them.

    A process with ``start_new_session`` is killed with its workers.
    """
    started = []

    def start(*words: object, **options: Any) -> subprocess.Popen[str]:
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **options}
        if os.name == "posix":
            options["preexec_fn"] = _default_signals
        process = subprocess.Popen([str(word) for word in words], **options)
        started.append((process, options.get("start_new_session", False)))
        return process

    yield start
    for process, session in started:
        with suppress(ProcessLookupError):
            if session:
                os.killpg(process.pid, signal.SIGKILL)
        process.kill()
        process.communicate()


@pytest.fixture
def wait_for() -> Callable[..., None]:
    """Wait until a condition holds; fail where the process that should bring it about has ended, or hangs."""

    def wait(condition: Callable[[], object], process: subprocess.Popen[str] | None = None) -> None:
        for _ in range(12_000):
            if condition():
                return
            if process is not None and process.poll() is not None:
                pytest.fail(f"the process ended with {process.returncode}: {process.communicate()}")
            time.sleep(0.02)
        pytest.fail("the condition never held")

    return wait


@pytest.fixture(scope="session")
def data_root() -> Path:
    """Folder with the real volumes; the tests that use it carry the mark ``data``."""
    folder = os.environ.get("REGWEAVE_DATA")
    if not folder:
        pytest.skip("REGWEAVE_DATA is not set")
    path = Path(folder)
    # A wrong path must not look like an absent one.
    assert path.is_dir(), f"REGWEAVE_DATA={folder} is not a folder"
    return path


@pytest.fixture(scope="session")
def phantom_pair() -> PhantomPair:
    """Two 48³ images of the phantom with labels and the true field; shared, so not to be written to."""
    return make_phantom(seed=0, shape=(48, 48, 48), spacing_mm=(4.0, 4.0, 4.0))


@pytest.fixture(scope="session")
def training_list(tmp_path_factory) -> TrainingList:
    folder = tmp_path_factory.mktemp("training")
    for seed in range(4):
        pair = make_phantom(seed=seed, shape=(24, 24, 24), spacing_mm=(8.0, 8.0, 8.0)).pair
        for part in ("fixed", "moving"):
            write_image(folder / f"{part}{seed}.nii.gz", getattr(pair, part))
            write_labels(folder / f"{part}{seed}_labels.nii.gz", getattr(pair, f"{part}_labels"))
    (folder / "labels.json").write_text('{"3": "mandible"}')
    (folder / "tiny.toml").write_text(TINY.toml() + QUICK_TRAINING)
    return TrainingList(folder, TINY)


@pytest.fixture(scope="module")
def in_process():
    """Run the tasks of a batch here, one after the other."""

    def here(function, arguments, _n):
        for index, argument in enumerate(arguments):
            yield index, attempt(function, argument)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batch, "on_processes", here)
        yield patch
