"""One command in a forked child: what became of it, and what it left behind."""

import faulthandler
import os
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

HANG_S = 30.0
MEMORY_MB = 2048.0
CLEAN = {1, 2, 3, 4, 5}
Call = list[str] | Callable[[], str]
"""Arguments of the command line, or a function that returns text, for readers that no quick command reaches."""


@dataclass(frozen=True)
class Outcome:
    """How a child ended.

    ``kind`` is "accepted" or "refused", which are good, or what is wrong: "crash", "hang", "memory", "internal error",
    "no code", "files left".
    """

    kind: str
    status: int
    output: str
    errors: str
    files: dict[str, bytes]

    @property
    def good(self) -> bool:
        return self.kind in {"accepted", "refused"}


def run(call: Call, folder: Path, hang_s: float = HANG_S, memory_mb: float = MEMORY_MB) -> Outcome:
    """Run a call in a folder and look at its end; what it wrote is removed again."""
    logs = folder.parent / f"{folder.name}-logs"
    logs.mkdir(exist_ok=True)
    before = _files(folder)
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        _child(call, folder, logs)
    status, reason = _wait(pid, hang_s, memory_mb)
    output, errors = ((logs / name).read_text(encoding="utf-8", errors="replace") for name in ("out", "err"))
    written = {name: (folder / name).read_bytes() for name in sorted(_files(folder) - before)}
    for name in written:
        (folder / name).unlink()
    shutil.rmtree(logs)
    kind = reason or _judge(status, output, errors, written)
    return Outcome(kind, status, output, errors, written)


def _child(call: Call, folder: Path, logs: Path) -> None:
    """Never returns."""
    faulthandler.disable()  # the trace of a crash goes to the terminal of whoever looks for it
    os.setsid()
    os.chdir(folder)
    tempfile.tempdir = str(logs)  # reports of internal errors go away with the logs
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(logs / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), number)
    sys.stdout, sys.stderr = (os.fdopen(n, "w", encoding="utf-8", errors="replace", closefd=False) for n in (1, 2))
    status = 70
    try:
        status = _perform(call)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _perform(call: Call) -> int:
    from regweave.cli import main  # loaded before the fork
    from regweave.errors import RegweaveError

    if isinstance(call, list):
        return main(call)
    try:
        print(call())
    except RegweaveError as error:
        print(f"error {error.code}: {error.message}", file=sys.stderr)
        return error.exit_status
    return 0


def _wait(pid: int, hang_s: float, memory_mb: float) -> tuple[int, str | None]:
    """Exit status as Python counts it, and why the child had to be ended, if it had."""
    start, reason = time.monotonic(), None
    limit_mb = memory_mb + _resident_mb(os.getpid())  # a forked child begins with all that its parent holds
    while True:
        done, status, usage = os.wait4(pid, os.WNOHANG)
        if done:
            # A short peak falls between two looks.
            if usage.ru_maxrss / 1024 > memory_mb + _own_mb():
                reason = "memory"
            return os.waitstatus_to_exitcode(status), reason
        if _resident_mb(pid) > limit_mb:
            reason = "memory"
        elif time.monotonic() - start > hang_s:
            reason = "hang"
        if reason:
            os.killpg(pid, signal.SIGKILL)
            _, status, _ = os.wait4(pid, 0)
            return os.waitstatus_to_exitcode(status), reason
        time.sleep(0.003)


def _judge(status: int, output: str, errors: str, written: dict[str, bytes]) -> str:
    if status < 0:
        return "crash"
    if status == 0:
        return "files left" if any(".part-" in name or ".old-" in name for name in written) else "accepted"
    if status not in CLEAN or "Traceback (most recent call last)" in errors:
        return "internal error"
    if written:
        return "files left"
    coded = re.search(r"\bE\d{3}\b", errors + output)
    return "refused" if coded or status == 2 else "no code"


def _files(folder: Path) -> set[str]:
    return {str(p.relative_to(folder)) for p in folder.rglob("*") if not p.is_dir()}


def _resident_mb(pid: int) -> float:
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    except (OSError, IndexError):
        return 0.0
    return pages * resource.getpagesize() / 2**20


def _own_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
