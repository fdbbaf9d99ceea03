"""Many small tasks, run by processes and threads of this machine or of a Dask cluster, with a resumable store.

Tasks outlast failures and interruptions. A finished one is a JSON file in the store, named by a hash of the task's
content and written whole or not at all. The same call after a crash takes these and runs the rest, and gives what one
uninterrupted call would have given. A cluster runs the code of the caller. Arguments and answers are small.
"""

from __future__ import annotations

import ast
import asyncio
import concurrent.futures
import hashlib
import json
import logging
import math
import multiprocessing
import os
import platform
import re
import signal
import socket
import ssl
import threading
import time
import traceback
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cache
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel

from regweave import __version__, _core, extras, registry
from regweave.errors import RegweaveError, UsageError
from regweave.io import atomic_path, require_file
from regweave.options import option
from regweave.predictors import Predictor
from regweave.progress import BatchProgress, OnBatchProgress
from regweave.registration import devices
from regweave.run.memory import MAX_THREADS, allowed_threads, share_memory
from regweave.threads import kernel_threads

LANES = 4  # registrations that one GPU works on at once by default; more threads of Python are slower
PATIENCE_S = 30  # seconds to wait for a process that has closed its pipe


@dataclass(frozen=True)
class Placement:
    """Device of the tasks of a list."""

    word: str = "cpu"  # device in each task: `cpu`, `cuda` or `auto`; a worker has its own GPU
    gpus: tuple[int, ...] = ()
    """Numbers of the GPUs of this machine that workers are dealt out to; none on the processor or a cluster."""


def place(device: str | None, scheduler: object = None) -> Placement:
    """Check the word for a device (E173) and that its GPUs are there (E157), before anything is read."""
    word, _, which = (device or "cpu").partition(":")
    if scheduler is not None and word in ("auto", "cuda"):
        if which:
            hint = "write --device cuda, and start each worker with its own GPU, CUDA_VISIBLE_DEVICES=N"
            raise UsageError("E173", f"--device {device} numbers GPUs that workers of a cluster have", hint)
        return Placement(word)
    if word == "cuda":
        return Placement(word, devices.gpu_numbers(which))
    return Placement() if devices.get(device).name == "cpu" else Placement(word, (0,))


Function = Callable[[Any], Any]


@dataclass(frozen=True)
class Outcome:
    """Outcome of one task: a JSON value, or the code and the message of its error."""

    key: str  # empty in the answer of a worker
    value: Any
    error: str | None = None
    seconds: float = 0.0  # time that it took when it ran; 0 for a failed task
    reused: bool = field(default=False, compare=False)  # true if it was taken from the store


Answers = Generator[tuple[int, Outcome], None, None]


def attempt(function: Function, arguments: Any) -> Outcome:
    """Run one task with one kernel thread; an error becomes its code and message, without values in memory."""
    start = time.perf_counter()
    try:
        with kernel_threads(1):
            value = json.loads(json.dumps(function(arguments)))  # as it would be read from the store
            return Outcome("", value, seconds=time.perf_counter() - start)
    except MemoryError:
        return _failed("E140", "the machine has not enough memory for this", "use fewer workers")
    except RegweaveError as problem:
        return Outcome("", None, str(problem))
    except Exception as problem:
        return internal_error(problem)


def _failed(code: str, message: str, hint: str) -> Outcome:
    return Outcome("", None, str(RegweaveError(code, message, hint)))


def internal_error(problem: BaseException) -> Outcome:
    """Return the kind and the place of an exception, not its message, which may name a patient."""
    frames = traceback.extract_tb(problem.__traceback__)
    where = f" in {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    message = f"internal error ({type(problem).__name__}{where})"
    return _failed("E195", message, "this is a fault of the program, not of your files")


class Team:
    """Pool of workers for one batch after another, started when first needed.

    Starting a process takes a second, and what it caches of a pair saves the next task on that pair most of its work.
    Workers are dealt out to the GPUs. With ``threads`` they are threads of this process: their work on one GPU runs
    side by side, where processes take turns, but Python code does not.
    """

    def __init__(self, n: int, gpus: Sequence[int] = (), *, threads: bool = False) -> None:
        self.n, self._gpus, self._threads = n, tuple(gpus), threads
        self.members: list[Worker] = []

    def __enter__(self) -> Team:
        return self

    def __exit__(self, *_: object) -> None:
        self.dismiss(self.members)

    def grow(self, n: int) -> None:
        """Start workers until there are as many as tasks, or all; each on the GPU that has the fewest."""
        while len(self.members) < min(n, self.n):
            used = [member.gpu for member in self.members]
            gpu = min(self._gpus, key=used.count) if self._gpus else None
            self.members.append(Worker(self.n, gpu, threads=self._threads))

    def dismiss(self, members: Sequence[Worker]) -> None:
        """End workers."""
        for member in list(members):
            self.members.remove(member)
            member.end()


def on_processes(function: Function, arguments: Sequence[Any], team: Team) -> Answers:
    """Run tasks on a team and yield (index, answer) as they finish; closing the iterator ends processes at work.

    A task goes to a process that ran one with the same ``cache_key`` before, if it is free.
    """
    waiting = dict(enumerate(arguments))
    team.grow(len(arguments))
    try:
        for member in team.members[: len(arguments)]:
            member.give_next(waiting, team.members, function)
        while busy := {member.pipe: member for member in team.members if member.index is not None}:
            for pipe in wait(list(busy)):
                member = busy[pipe]
                index, answer = member.take()
                if answer is None:
                    answer = member.end_of_process()
                    team.members.remove(member)
                    team.grow(len(team.members) + bool(waiting))
                    member = team.members[-1] if waiting else member
                if waiting:
                    member.give_next(waiting, team.members, function)
                yield index, answer
    finally:
        team.dismiss([member for member in team.members if member.index is not None])


class Worker:
    """One process that works on one task at a time, so that its death is the failure of that task alone.

    A worker may be a thread instead, which cannot be killed, and ends with its task.
    """

    def __init__(self, sharing: int, gpu: int | None = None, *, threads: bool = False) -> None:
        self.pipe: Any
        self.gpu, self.cached = gpu, set[Any]()
        self.index: int | None = None
        self._process: Any = None
        if threads:
            self.pipe, other = multiprocessing.Pipe()
            threading.Thread(target=_serve, args=(other, gpu), daemon=True).start()
            return
        # Forked children of a process with threads can deadlock; spawned ones cannot.
        context = multiprocessing.get_context("spawn")
        self.pipe, other = context.Pipe()
        self._process = context.Process(target=_serve, args=(other, gpu, sharing), daemon=True)
        with _interrupts_blocked():
            self._process.start()
        other.close()  # else the death of the process would not close the pipe

    def give_next(self, waiting: dict[int, Any], team: Sequence[Worker], function: Function) -> None:
        """Send a task: on a pair that this worker has cached, else on a pair that no other has, else the first."""
        others = set().union(*(member.cached for member in team if member is not self))

        def preference(index: int) -> int:
            key = getattr(waiting[index], "cache_key", None)
            return 0 if key in self.cached else 1 + (key in others)

        self.index = min(waiting, key=preference)  # of equals the first
        arguments = waiting.pop(self.index)
        self.cached |= {getattr(arguments, "cache_key", None)} - {None}
        with suppress(BrokenPipeError):  # `take` will meet the closed pipe
            self.pipe.send((function, arguments))

    def take(self) -> tuple[int, Outcome | None]:
        """Receive the answer to the task, None of a process that has ended."""
        assert self.index is not None
        index, self.index = self.index, None
        try:
            return index, self.pipe.recv()
        except (EOFError, ConnectionResetError):
            return index, None

    def end_of_process(self) -> Outcome:
        """Return E196 with the way that the process ended."""
        self._process.join(PATIENCE_S)
        self.end()
        code = self._process.exitcode or 0
        how = f"signal {-code}" if code < 0 else f"status {code}"
        message = f"the worker process ended ({how}) before its task was done"
        return _failed("E196", message, "if memory is short, use fewer workers")

    def end(self) -> None:
        """Close the pipe, and kill the process."""
        self.pipe.close()
        if self._process is not None:
            self._process.kill()
            self._process.join()


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Start a process with Ctrl-C blocked, which reaches the whole group: its parent will end it."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows, where a process starts without the handlers of its parent
        yield
        return
    resource_tracker.ensure_running()  # else the first start would do it, and that unblocks
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve(pipe: Connection, gpu: int | None, sharing: int = 0) -> None:
    """Answer tasks; a process shares the memory of the machine with so many, and ends with its parent."""
    if sharing:
        share_memory(sharing)
        threading.Thread(target=_end_with_parent, daemon=True).start()
    if gpu is not None:
        devices.use(gpu)
    while True:
        try:
            function, arguments = pipe.recv()
        except (EOFError, OSError):
            return
        except Exception as problem:  # the function cannot be imported here
            answer = internal_error(problem)
        else:
            answer = attempt(function, arguments)
        try:
            pipe.send(answer)
        except OSError:  # the caller has ended
            return


def _end_with_parent() -> None:
    """Leave no process behind when the parent is killed."""
    if (parent := multiprocessing.parent_process()) is not None:
        parent.join()
        os._exit(1)


# Workers of a Dask cluster

SCHEDULER_PATIENCE_S = 4.0  # seconds to wait for the answer of a scheduler
ADDRESS = re.compile(r"(?P<protocol>tcp|tls)://(?P<host>[^\s/:@?#]+|\[[0-9a-fA-F:]+\]):(?P<port>[0-9]{1,5})")
DASK = ("distributed", "cluster", "--scheduler", "E193")
LONGEST_GREETING = 2**16  # bytes; that of Dask has about sixty
CANCELLED = (asyncio.CancelledError, concurrent.futures.CancelledError)
OTHER_CODE = "E199"
SAME_BUILD = "install the same build of regweave on every machine, start the workers again, and pass --resume"


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Options of a Dask cluster: the address of its scheduler, with three PEM files for ``tls://``."""

    scheduler: str | None = option(
        None, "Dask scheduler to use instead, tcp://HOST:PORT or tls://HOST:PORT.", panel="Machine"
    )
    tls_ca: Path | None = option(None, "Certificate of the authority, for tls://.", panel="Machine", metavar="PEM")
    tls_cert: Path | None = option(None, "Certificate of this client, for tls://.", panel="Machine", metavar="PEM")
    tls_key: Path | None = option(None, "Key of this client, for tls://.", panel="Machine", metavar="PEM")
    wait_for_workers: float = option(3.0, "Seconds to wait for the scheduler's first worker.", panel="Machine")

    def asked(self) -> Cluster | None:
        """Return the cluster; None without an address."""
        if self.scheduler is None and (self.tls_ca or self.tls_cert or self.tls_key):
            raise UsageError("E192", "TLS files are given without --scheduler", "add --scheduler tls://HOST:PORT")
        return None if self.scheduler is None else self

    def check(self) -> None:
        """Raise E193 where address and files cannot be meant, E101 where a file is missing; connects to nothing."""
        found = ADDRESS.fullmatch(self.scheduler or "")
        if found is None or not 0 < int(found["port"]) < 2**16:
            message = f"--scheduler is {str(self.scheduler)[:80]!r}, which is no address"
            raise UsageError("E193", message, "give what `dask scheduler` prints, tcp://HOST:PORT or tls://HOST:PORT")
        files = [self.tls_ca, self.tls_cert, self.tls_key]
        if (found["protocol"] == "tls") != any(files) or any(files) != all(files):
            message = f"--scheduler is {self.scheduler} and {sum(map(bool, files))} of three TLS files are given"
            hint = "tls:// needs --tls-ca, --tls-cert and --tls-key; tcp:// takes none of them"
            raise UsageError("E193", message, hint)
        for file in filter(None, files):
            require_file(file)
        if not 0 <= self.wait_for_workers < float("inf"):
            raise UsageError("E193", f"--wait-for-workers is {self.wait_for_workers}", "give seconds, 0 or more")

    def connect(self) -> Any:
        """Return a client of a scheduler that has a worker, or raise E193 or E156 within seconds."""
        self.check()
        distributed = extras.load(*DASK)
        options: dict[str, Any] = {"timeout": SCHEDULER_PATIENCE_S, "set_as_default": False}
        try:
            self._knock()
            if self.tls_ca is not None:
                options["security"] = distributed.Security(
                    tls_ca_file=str(self.tls_ca), tls_client_cert=str(self.tls_cert), tls_client_key=str(self.tls_key),
                    require_encryption=True,
                )  # fmt: skip
            client = distributed.Client(self.scheduler, **options)
        except (OSError, ValueError, RuntimeError) as error:  # TimeoutError is an OSError
            hint = "give the address that `dask scheduler` prints; is it running, and reachable from here?"
            message = (
                f"no answer from scheduler {self.scheduler} within {SCHEDULER_PATIENCE_S:g} s ({type(error).__name__})"
            )
            raise UsageError("E193", message, hint) from error
        try:
            client.wait_for_workers(1, timeout=max(self.wait_for_workers, 0.1))
        except (OSError, ValueError, RuntimeError) as error:
            client.close(timeout=1)
            message = f"scheduler {self.scheduler} has no worker after {self.wait_for_workers:g} s"
            hint = "start workers, `dask worker ADDRESS`, or give them time with --wait-for-workers SECONDS"
            raise RegweaveError("E156", message, hint) from error
        return client

    def _knock(self) -> None:
        """Wait for the greeting of the port: Dask would try a dead one again, and wait for ever on a mute one."""
        found = ADDRESS.fullmatch(self.scheduler or "")
        assert found is not None
        with socket.create_connection((found["host"].strip("[]"), int(found["port"])), SCHEDULER_PATIENCE_S) as plain:
            if self.tls_ca is None or self.tls_cert is None or self.tls_key is None:
                greeting = plain.recv(8)
            else:
                context = ssl.create_default_context(cafile=self.tls_ca)
                context.check_hostname = False  # as Dask does: the authority vouches for machines of the cluster
                context.load_cert_chain(self.tls_cert, self.tls_key)
                with context.wrap_socket(plain) as secret:
                    greeting = secret.recv(8)
        # A message of Dask begins with its length in eight bytes; other services begin with text, or hang up.
        if len(greeting) < 8 or int.from_bytes(greeting, "little") > LONGEST_GREETING:
            raise ConnectionError("this is no Dask scheduler")


def as_cluster(scheduler: str | Cluster | None) -> Cluster | None:
    """Return a cluster for an address."""
    return Cluster(scheduler=scheduler) if isinstance(scheduler, str) else scheduler


def require_cluster(scheduler: str | Cluster | None) -> None:
    """Raise what `Cluster.connect` raises, before anything is read or written."""
    cluster = as_cluster(scheduler)
    if cluster is not None:
        cluster.connect().close(timeout=1)


def attempt_with_same_code(function: Function, arguments: Any, program: str) -> Outcome:
    """Run one task; raise E199 if the code of this worker is not that of the caller."""
    if program_hash() != program:
        message = f"the worker on {platform.node()} runs other code (regweave {__version__}) than the caller"
        raise RegweaveError(OTHER_CODE, message, SAME_BUILD)
    return attempt(function, arguments)


def on_cluster(function: Function, arguments: Sequence[Any], cluster: Cluster) -> Answers:
    """Run tasks on the workers of a Dask scheduler; closing the iterator cancels what is left."""
    if not arguments:
        return
    client, program = cluster.connect(), program_hash()
    distributed = extras.load(*DASK)
    futures = {
        client.submit(attempt_with_same_code, function, one, program, pure=False): i for i, one in enumerate(arguments)
    }
    try:
        for future in distributed.as_completed(list(futures), loop=client.loop):
            yield futures[future], _answer(future, distributed, cluster)
    finally:
        with suppress(Exception):  # a lost scheduler has nothing to cancel
            client.cancel(list(futures))
        client.close()


def _answer(future: Any, distributed: Any, cluster: Cluster) -> Outcome:
    try:
        answer: Outcome = future.result()
        return answer
    except RegweaveError:  # of a worker with other code
        raise
    except CANCELLED:
        message = f"scheduler {cluster.scheduler} was lost"
        raise RegweaveError("E197", message, "start it again and continue with --resume") from None
    except distributed.KilledWorker:
        message = "the worker processes ended before their task was done"
        return _failed("E196", message, "if memory is short, use fewer workers")
    except (ImportError, AttributeError) as problem:
        message = f"a worker has not the code of the caller ({type(problem).__name__})"
        raise RegweaveError(OTHER_CODE, message, SAME_BUILD) from None
    except Exception as problem:
        return internal_error(problem)


ELSEWHERE = ("cli", "report", "learning", "training", "study")  # folders whose code no registration runs through


@cache
def program_hash() -> str:
    """Hash the code that computes results: another version may give other numbers, and the two are never mixed.

    Comments, docstrings and layout are left out, so that a better sentence does not lose finished work.
    """
    root = Path(__file__).parents[1]
    sources = sorted(p for p in root.rglob("*.py") if p.relative_to(root).parts[0] not in ELSEWHERE)
    digest = hashlib.sha256()
    for path in sources:
        digest.update(code_of(path.read_text(encoding="utf-8")).encode())
    digest.update(Path(_core.LIBRARY).read_bytes())
    digest.update(registry.fingerprint().encode())
    return digest.hexdigest()


def code_of(source: str) -> str:
    """Return the text of a module without comments, docstrings and layout."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(body := getattr(node, "body", None), list):
            kept = [s for s in body if not (isinstance(s, ast.Expr) and type(getattr(s.value, "value", 0)) is str)]
            node.body = kept or [ast.Pass()]  # type: ignore[attr-defined]
    return ast.unparse(tree)


logger = logging.getLogger(__name__)


def run_tasks(
    tasks: Iterable[tuple[str, Any]], function: Function, *, workers: int | Team | None = None,
    scheduler: str | Cluster | None = None, store: Path | None = None, on_progress: OnBatchProgress | None = None,
    whole: Callable[[Outcome], bool] | None = None, missing: str | None = None,
) -> list[Outcome]:  # fmt: skip
    """Run a function on many arguments in parallel; an outcome for each, in the order of the tasks.

    Keys are unique names; arguments are small: JSON values, paths, numpy arrays, dataclasses, pydantic models. Where
    the function reads files, put their hashes in, or a changed file goes unnoticed by the store. The function returns a
    JSON value, and is one of a module that the workers can import. A failure stops no other task.

    ``workers`` are processes of this machine, each with one kernel thread; by default as many as threads are allowed. A
    Dask ``scheduler`` takes their place, whose workers must run the code of the caller. Finished tasks are kept in
    ``store`` and looked up there first; those that failed, those of other code, and those whose files ``whole`` finds
    changed run again; with ``missing``, the text of their error, no task runs.

    Raises E192 and E193 where workers or scheduler cannot be used, E156 where the scheduler has no workers, E197 where
    it was lost, E199 where a worker runs other code. On Ctrl-C the running processes are ended first.
    """
    listed = list(tasks)
    if len({key for key, _ in listed}) < len(listed):
        raise ValueError("two tasks have the same key; keys must be unique")
    cluster, n = as_cluster(scheduler), worker_count(workers, scheduler)
    name = [program_hash(), function.__module__, function.__qualname__]
    files = {key: store and store / f"{content_hash([*name, key, arguments])}.json" for key, arguments in listed}
    stored = {key: outcome for key, file in files.items() if (outcome := _load(file, key))}
    outcomes = {key: outcome for key, outcome in stored.items() if whole is None or whole(outcome)}
    if missing is not None:
        outcomes |= {key: Outcome(key, None, missing) for key, _ in listed if key not in outcomes}
    todo = [(key, arguments) for key, arguments in listed if key not in outcomes]
    reused, start = len(outcomes), time.monotonic()

    def report(key: str, seconds_left: float) -> None:
        if on_progress is not None:
            failed = sum(outcome.error is not None for outcome in outcomes.values())
            on_progress(BatchProgress(len(outcomes), len(listed), failed, key, seconds_left))

    if store is not None:
        store.mkdir(parents=True, exist_ok=True)
    if reused:
        logger.info("%d of %d tasks are taken from the store", reused, len(listed))
        report("", math.nan)
    with nullcontext(workers) if isinstance(workers, Team) else Team(n) as team:
        given = [arguments for _, arguments in todo]
        answers = on_processes(function, given, team) if cluster is None else on_cluster(function, given, cluster)
        with closing(answers):  # ends the processes at once on Ctrl-C, wherever it strikes
            for index, answer in answers:
                key = todo[index][0]
                outcomes[key] = replace(answer, key=key)
                if (file := files[key]) is not None and answer.error is None:
                    content = {"key": key, "value": answer.value, "seconds": answer.seconds}
                    with atomic_path(file) as part:  # Python writes and reads floats without loss
                        part.write_text(json.dumps(content), encoding="utf-8")
                pace = (time.monotonic() - start) / (len(outcomes) - reused)
                report(key, pace * (len(listed) - len(outcomes)))
    return [outcomes[key] for key, _ in listed]


def worker_count(workers: int | Team | None, scheduler: str | Cluster | None) -> int:
    """Check the two ways to ask for workers and return the number of processes."""
    if workers is not None and scheduler is not None:
        raise UsageError("E192", "--workers and --scheduler are both given", "give one of them")
    if isinstance(workers, Team):
        return workers.n
    if workers is not None and not 1 <= workers <= MAX_THREADS:
        raise UsageError("E192", f"--workers is {workers}", f"give a number from 1 to {MAX_THREADS}")
    return allowed_threads() if workers is None else workers


def content_hash(value: Any) -> str:
    """Return 64 hexadecimal digits that change with the content of a value."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=_plain).encode()).hexdigest()


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if isinstance(value, np.ndarray):
        return [value.dtype.str, value.shape, hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()]
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Predictor):
        return value.save().identity()
    if is_dataclass(value):
        return {f.name: getattr(value, f.name) for f in fields(value)}
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"a task may not hold a {type(value).__name__}; give JSON values, paths, arrays or dataclasses")


def _load(file: Path | None, key: str) -> Outcome | None:
    if file is None:
        return None
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        if content["key"] == key:
            return Outcome(key, content["value"], None, content["seconds"], reused=True)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        logger.warning("%s is damaged; the task runs again", file.name)
    return None
