"""Processes of this machine that run tasks. Arguments and answers are small; images stay there."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from regweave.errors import RegweaveError
from regweave.kernels.threads import kernel_threads

PATIENCE_S = 30
"""How long to wait for a process that has ended its pipe."""

Function = Callable[[Any], Any]


@dataclass(frozen=True)
class Answer:
    """What one task gave: its value as JSON, or what went wrong, the seconds it took, and whether it was refused."""

    text: str | None
    error: str | None
    seconds: float
    refused: bool = False


Answers = Generator[tuple[int, Answer], None, None]


def attempt(function: Function, arguments: Any) -> Answer:
    """Run one task with one kernel thread; an error becomes its code and message, without values in memory."""
    start = time.perf_counter()
    text = error = None
    try:
        with kernel_threads(1):
            text = json.dumps(function(arguments))
    except RegweaveError as problem:
        error = str(problem)
    except MemoryError:
        error = str(RegweaveError("E140", "the machine has not enough memory for this", "use fewer workers"))
    except Exception as problem:
        error = internal_error(problem)
    return Answer(text, error, time.perf_counter() - start)


def internal_error(problem: BaseException) -> str:
    """Say what and where, not the message of the exception: it may name a patient."""
    frames = traceback.extract_tb(problem.__traceback__)
    where = f" in {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    message = f"internal error ({type(problem).__name__}{where})"
    return str(RegweaveError("E195", message, "this is a fault of the program, not of your files"))


def _dead(how: str) -> str:
    message = f"the worker process ended ({how}) before its task was done"
    return str(RegweaveError("E196", message, "if memory is short, use fewer workers"))


def on_processes(function: Function, arguments: Sequence[Any], n: int) -> Answers:
    """Run tasks on n processes and yield (index, answer) as they finish; closing the iterator ends the processes."""
    queue = deque(enumerate(arguments))
    team = [_Process(function) for _ in range(min(n, len(queue)))]
    try:
        for member in team:
            member.give(*queue.popleft())
        while busy := {member.pipe: member for member in team if member.index is not None}:
            for pipe in wait(list(busy)):
                member = busy[pipe]  # type: ignore[index]
                index, answer = member.take()
                if answer is None:
                    answer = Answer(None, member.obituary(), 0.0)
                    team.remove(member)
                    if queue:
                        team.append(member := _Process(function))
                if queue:
                    member.give(*queue.popleft())
                yield index, answer
    finally:
        for member in team:
            member.end()


class _Process:
    """One process that works on one task at a time, so that its death is the failure of that task alone."""

    def __init__(self, function: Function) -> None:
        # Forked children of a process with threads can deadlock; spawned ones cannot.
        context = multiprocessing.get_context("spawn")
        self._function = function
        self.pipe, other = context.Pipe()
        self._process = context.Process(target=_serve, args=(other,), daemon=True)
        with _interrupts_blocked():
            self._process.start()
        other.close()  # else the death of the process would not close the pipe
        self.index: int | None = None

    def give(self, index: int, arguments: Any) -> None:
        self.index = index
        with suppress(BrokenPipeError):  # `take` will find the pipe closed
            self.pipe.send((self._function, arguments))

    def take(self) -> tuple[int, Answer | None]:
        assert self.index is not None
        index, self.index = self.index, None
        try:
            answer: Answer = self.pipe.recv()
        except (EOFError, ConnectionResetError):
            return index, None
        return index, answer

    def obituary(self) -> str:
        self._process.join(PATIENCE_S)
        self.end()
        code = self._process.exitcode or 0
        return _dead(f"signal {-code}" if code < 0 else f"status {code}")

    def end(self) -> None:
        self.pipe.close()
        self._process.kill()
        self._process.join()


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Let a process be born deaf to Ctrl-C, which reaches the whole group: its parent will end it."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows, where a process is born without the handlers of its parent
        yield
        return
    resource_tracker.ensure_running()  # else the first start would do it, and that unblocks
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve(pipe: Connection) -> None:
    """Answer tasks until the pipe closes."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    while True:
        try:
            function, arguments = pipe.recv()
        except EOFError:
            return
        except Exception as problem:  # the function cannot be imported here
            pipe.send(Answer(None, internal_error(problem), 0.0))
        else:
            pipe.send(attempt(function, arguments))


def _end_with_parent() -> None:
    """Leave no process behind when the parent is killed."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
