"""Workers of this machine, processes or threads; arguments and answers are small, images stay there."""

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
from regweave.registration.cuda import opening
from regweave.run.machine import share_memory
from regweave.threads import kernel_threads

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
    """Pool of workers for one batch after another, started when first needed.

    Starting a process takes a second, and what it keeps of a pair saves the next task on that pair most of its work.

    Parameters
    ----------
    n : int
        Workers, at most.
    gpus : sequence of int
        GPUs that the workers are dealt out to, where tasks use any.
    threads : bool
        Workers are threads of this process instead: their work on one GPU then runs side by side, where processes
        take turns, but what Python itself does does not.
    """

    def __init__(self, n: int, gpus: Sequence[int] = (), *, threads: bool = False) -> None:
        self.n, self._gpus, self._threads = n, tuple(gpus), threads
        self.members: list[_Process] = []

    def __enter__(self) -> Team:
        return self

    def __exit__(self, *_: object) -> None:
        self.dismiss(self.members)

    def grow(self, n: int) -> None:
        """Start workers until there are as many as tasks, or all."""
        while len(self.members) < min(n, self.n):
            self.members.append((_Thread if self._threads else _Process)(self.n, self._next_gpu()))

    def _next_gpu(self) -> int | None:
        """GPU with the fewest workers, of equals the first."""
        used = [member.gpu for member in self.members]
        return min(self._gpus, key=used.count) if self._gpus else None

    def dismiss(self, members: Sequence[_Process]) -> None:
        """End workers."""
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

    def __init__(self, sharing: int, gpu: int | None = None) -> None:
        self.gpu, self.index = gpu, None
        self.homes: set[Any] = set()
        self._start(sharing)

    gpu: int | None
    index: int | None
    pipe: Connection

    def _start(self, sharing: int) -> None:
        # Forked children of a process with threads can deadlock; spawned ones cannot.
        context = multiprocessing.get_context("spawn")
        self.pipe, other = context.Pipe()
        self._process = context.Process(target=_serve_process, args=(other, sharing, self.gpu), daemon=True)
        with _interrupts_blocked():
            self._process.start()
        other.close()  # else the death of the process would not close the pipe

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


class _Thread(_Process):
    """The same as a thread; it cannot be killed, and ends with the task it works on."""

    def _start(self, sharing: int) -> None:
        self.pipe, other = multiprocessing.Pipe()
        threading.Thread(target=_serve, args=(other, self.gpu), daemon=True).start()

    def end(self) -> None:
        self.pipe.close()


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


def _serve_process(pipe: Connection, sharing: int, gpu: int | None) -> None:
    """Answer tasks; the memory of the machine is shared with the other processes."""
    share_memory(sharing)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _serve(pipe, gpu)


def _serve(pipe: Connection, gpu: int | None) -> None:
    """Answer tasks until the pipe closes."""
    if gpu is not None:
        opening.use(gpu)
    while True:
        try:
            function, arguments = pipe.recv()
        except (EOFError, OSError):
            return
        except Exception as problem:  # the function cannot be imported here
            answer = Answer(None, internal_error(problem), 0.0)
        else:
            answer = attempt(function, arguments)
        try:
            pipe.send(answer)
        except OSError:  # nobody waits for it any more
            return


def _end_with_parent() -> None:
    """Leave no process behind when the parent is killed."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
