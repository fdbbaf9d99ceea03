"""Workers of a Dask cluster, which must run the code of the caller."""

import ast
import asyncio
import concurrent.futures
import hashlib
import platform
import re
import socket
import ssl
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from regweave import __version__, _core, extras, registry
from regweave.errors import RegweaveError, UsageError
from regweave.io.disk.files import require_file
from regweave.jobs.workers import Answer, Answers, Function, attempt, internal_error

SCHEDULER_PATIENCE_S = 4.0  # seconds to wait for the answer of a scheduler
WAIT_S = 3.0  # seconds to wait for the first worker, by default
ADDRESS = re.compile(r"(?P<protocol>tcp|tls)://(?P<host>[^\s/:@?#]+|\[[0-9a-fA-F:]+\]):(?P<port>[0-9]{1,5})")
DASK = ("distributed", "cluster", "--scheduler", "E193")
LONGEST_GREETING = 2**16  # bytes; that of Dask has about sixty
CANCELLED = (asyncio.CancelledError, concurrent.futures.CancelledError)
OTHER_CODE = "E199"
SAME_BUILD = "install the same build of regweave on every machine, start the workers again, and pass --resume"


@dataclass(frozen=True)
class Cluster:
    """Address of a Dask scheduler: ``tcp://HOST:PORT``, or ``tls://HOST:PORT`` with three PEM files."""

    address: str
    ca: Path | None = None  # certificate of the authority; `cert` and `key` are those of the caller
    cert: Path | None = None
    key: Path | None = None
    wait_s: float = WAIT_S  # seconds to wait for the first worker

    def check(self) -> None:
        """Raise E193 where address and files cannot be meant, E101 where a file is missing; connects to nothing."""
        found = ADDRESS.fullmatch(self.address)
        if found is None or not 0 < int(found["port"]) < 2**16:
            message = f"--scheduler is {self.address[:80]!r}, which is no address"
            raise UsageError("E193", message, "give what `dask scheduler` prints, tcp://HOST:PORT or tls://HOST:PORT")
        files = [self.ca, self.cert, self.key]
        if (found["protocol"] == "tls") != any(files) or any(files) != all(files):
            message = f"--scheduler is {self.address} and {sum(map(bool, files))} of three TLS files are given"
            hint = "tls:// needs --tls-ca, --tls-cert and --tls-key; tcp:// takes none of them"
            raise UsageError("E193", message, hint)
        for file in filter(None, files):
            require_file(file)
        if not 0 <= self.wait_s < float("inf"):
            raise UsageError("E193", f"--wait-for-workers is {self.wait_s}", "give seconds, 0 or more")

    def connect(self) -> Any:
        """Return a client of a scheduler that has a worker, or raise E193 or E156 within seconds."""
        self.check()
        distributed = extras.load(*DASK)
        options: dict[str, Any] = {"timeout": SCHEDULER_PATIENCE_S, "set_as_default": False}
        try:
            self._knock()
            if self.ca is not None:
                options["security"] = distributed.Security(
                    tls_ca_file=str(self.ca), tls_client_cert=str(self.cert), tls_client_key=str(self.key),
                    require_encryption=True,
                )  # fmt: skip
            client = distributed.Client(self.address, **options)
        except (OSError, ValueError, RuntimeError) as error:  # TimeoutError is an OSError
            hint = "give the address that `dask scheduler` prints; is it running, and reachable from here?"
            message = (
                f"no answer from scheduler {self.address} within {SCHEDULER_PATIENCE_S:g} s ({type(error).__name__})"
            )
            raise UsageError("E193", message, hint) from error
        try:
            client.wait_for_workers(1, timeout=max(self.wait_s, 0.1))
        except (OSError, ValueError, RuntimeError) as error:
            client.close(timeout=1)
            message = f"scheduler {self.address} has no worker after {self.wait_s:g} s"
            hint = "start workers, `dask worker ADDRESS`, or give them time with --wait-for-workers SECONDS"
            raise RegweaveError("E156", message, hint) from error
        return client

    def _knock(self) -> None:
        """Wait for the greeting of the port: Dask would try a dead one again, and wait for ever on a mute one."""
        found = ADDRESS.fullmatch(self.address)
        assert found is not None
        with socket.create_connection((found["host"].strip("[]"), int(found["port"])), SCHEDULER_PATIENCE_S) as plain:
            if self.ca is None or self.cert is None or self.key is None:
                greeting = plain.recv(8)
            else:
                context = ssl.create_default_context(cafile=self.ca)
                context.check_hostname = False  # as Dask does: the authority vouches for machines of the cluster
                context.load_cert_chain(self.cert, self.key)
                with context.wrap_socket(plain) as secret:
                    greeting = secret.recv(8)
        # A message of Dask begins with its length in eight bytes; other services begin with text, or hang up.
        if len(greeting) < 8 or int.from_bytes(greeting, "little") > LONGEST_GREETING:
            raise ConnectionError("this is no Dask scheduler")


def as_cluster(scheduler: str | Cluster | None) -> Cluster | None:
    """Return a cluster for an address."""
    return Cluster(scheduler) if isinstance(scheduler, str) else scheduler


def require_cluster(scheduler: str | Cluster | None) -> None:
    """Raise what `Cluster.connect` raises, before anything is read or written."""
    cluster = as_cluster(scheduler)
    if cluster is not None:
        cluster.connect().close(timeout=1)


def attempt_with_same_code(function: Function, arguments: Any, program: str) -> Answer:
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


def _answer(future: Any, distributed: Any, cluster: Cluster) -> Answer:
    try:
        answer: Answer = future.result()
    except RegweaveError:  # of a worker with other code
        raise
    except CANCELLED:
        message = f"scheduler {cluster.address} was lost"
        raise RegweaveError("E197", message, "start it again and continue with --resume") from None
    except distributed.KilledWorker:
        text = "E196: the worker processes ended before their task was done; if memory is short, use fewer workers"
        return Answer(None, text, 0.0)
    except (ImportError, AttributeError) as problem:
        message = f"a worker has not the code of the caller ({type(problem).__name__})"
        raise RegweaveError(OTHER_CODE, message, SAME_BUILD) from None
    except Exception as problem:
        return internal_error(problem)
    return answer


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
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [s for s in body if not _is_docstring(s)] or [ast.Pass()]  # type: ignore[attr-defined]
    return ast.unparse(tree)


def _is_docstring(statement: ast.stmt) -> bool:
    value = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(value, ast.Constant) and isinstance(value.value, str)
