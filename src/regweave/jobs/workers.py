"""Worker processes of this machine; arguments and answers are small, images stay there."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from regweave.errors import RegweaveError
from regweave.kernels.threads import kernel_threads
from regweave.pipeline.machine import share_memory

PATIENCE_S = 30
"""How long to wait for a process that has ended its pipe."""

Function = Callable[[Any], Any]


@dataclass(frozen=True)
class Answer:
    """Reply of a worker: a value as JSON, or what went wrong, the seconds it took, and whether it was refused."""

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


class Team:
    """Pool of processes for one batch after another, started when first needed.

    Starting a process takes a second, and what it keeps of a pair saves the next task on that pair most of its work.

    Parameters
    ----------
    n : int
        Processes, at most.
    """

    def __init__(self, n: int) -> None:
        self.n = n
        self.members: list[_Process] = []

    def __enter__(self) -> Team:
        return self

    def __exit__(self, *_: object) -> None:
        self.dismiss(self.members)

    def grow(self, n: int) -> None:
        """Start processes until there are as many as tasks, or all."""
        while len(self.members) < min(n, self.n):
            self.members.append(_Process(self.n))

    def dismiss(self, members: Sequence[_Process]) -> None:
        """End processes."""
        for member in list(members):
            self.members.remove(member)
            member.end()


def on_processes(function: Function, arguments: Sequence[Any], team: Team) -> Answers:
    """Run tasks on a team and yield (index, answer) as they finish; closing the iterator ends processes at work.

    A task whose arguments have a ``home`` goes to a process that has worked there, if one is free.
    """
    queue = _Queue(arguments)
    team.grow(len(arguments))
    try:
        for member in team.members[: len(arguments)]:
            queue.next_for(member, team.members, function)
        while busy := {member.pipe: member for member in team.members if member.index is not None}:
            for pipe in wait(list(busy)):
                member = busy[pipe]  # type: ignore[index]
                index, answer = member.take()
                if answer is None:
                    answer = Answer(None, member.obituary(), 0.0)
                    team.members.remove(member)
                    team.grow(len(team.members) + bool(queue))
                    member = team.members[-1] if queue else member
                if queue:
                    queue.next_for(member, team.members, function)
                yield index, answer
    finally:
        team.dismiss([member for member in team.members if member.index is not None])


class _Queue:
    """Tasks that wait, in order."""

    def __init__(self, arguments: Sequence[Any]) -> None:
        self._waiting = dict(enumerate(arguments))

    def __len__(self) -> int:
        return len(self._waiting)

    def next_for(self, member: _Process, team: Sequence[_Process], function: Function) -> None:
        """Give a process a task: one it is at home with, else one that nobody is, else the first."""
        others = set().union(*(m.homes for m in team if m is not member))

        def strangeness(index: int) -> int:
            home = getattr(self._waiting[index], "home", None)
            return 0 if home in member.homes else 1 + (home in others)

        index = min(self._waiting, key=strangeness)  # of equals the first
        member.give(index, function, self._waiting.pop(index))


class _Process:
    """One process that works on one task at a time, so that its death is the failure of that task alone."""

    def __init__(self, sharing: int) -> None:
        # Forked children of a process with threads can deadlock; spawned ones cannot.
        context = multiprocessing.get_context("spawn")
        self.pipe, other = context.Pipe()
        self._process = context.Process(target=_serve, args=(other, sharing), daemon=True)
        with _interrupts_blocked():
            self._process.start()
        other.close()  # else the death of the process would not close the pipe
        self.index: int | None = None
        self.homes: set[Any] = set()

    def give(self, index: int, function: Function, arguments: Any) -> None:
        self.index = index
        self.homes |= {home} if (home := getattr(arguments, "home", None)) is not None else set()
        with suppress(BrokenPipeError):  # `take` will find the pipe closed
            self.pipe.send((function, arguments))

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


def _serve(pipe: Connection, sharing: int) -> None:
    """Answer tasks until the pipe closes; the memory of the machine is shared with the other processes."""
    share_memory(sharing)
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
