"""Dask cluster: its address, its keys, and tasks on its workers, which must run the code of the caller."""

from __future__ import annotations

import asyncio
import concurrent.futures
import platform
import re
import socket
import ssl
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regweave import __version__, extras
from regweave.errors import RegweaveError, UsageError
from regweave.io.disk.files import require_file
from regweave.jobs.program import program_hash
from regweave.jobs.workers import Answer, Answers, Function, attempt, internal_error

PATIENCE_S = 4.0
"""How long to wait for a scheduler to answer."""
WAIT_S = 3.0
"""How long to wait for the first worker, if nothing else is said."""
ADDRESS = re.compile(r"(?P<protocol>tcp|tls)://(?P<host>[^\s/:@?#]+|\[[0-9a-fA-F:]+\]):(?P<port>[0-9]{1,5})")
DASK = ("distributed", "cluster", "--scheduler", "E193")
LONGEST_GREETING = 2**16
"""Bytes; that of Dask has about sixty."""
CANCELLED = (asyncio.CancelledError, concurrent.futures.CancelledError)
OTHER_CODE = "E199"
SAME_BUILD = "install the same build of regweave on every machine, start the workers again, and pass --resume"


@dataclass(frozen=True)
class Cluster:
    """Address of a Dask scheduler, and how it is spoken to.

    Parameters
    ----------
    address : str
        ``tcp://HOST:PORT``, or ``tls://HOST:PORT`` with the three files.
    ca, cert, key : path, optional
        Certificate of the authority, certificate and key of the caller, as PEM files.
    wait_s : float
        Seconds to wait for the first worker.
    """

    address: str
    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None
    wait_s: float = WAIT_S

    def check(self) -> None:
        """Raise E193 where address and files cannot be meant, E101 where a file is missing; asks nobody."""
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
        options: dict[str, Any] = {"timeout": PATIENCE_S, "set_as_default": False}
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
            message = f"no answer from scheduler {self.address} within {PATIENCE_S:g} s ({type(error).__name__})"
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
        with socket.create_connection((found["host"].strip("[]"), int(found["port"])), PATIENCE_S) as plain:
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


def attempt_with_same_code(function: Function, arguments: Any, program: str, unused: tuple[str, ...]) -> Answer:
    """Run one task if the code of this worker is that of the caller; else answer E199 with what differs."""
    if program_hash(unused) == program:
        return attempt(function, arguments)
    message = f"the worker on {platform.node()} runs other code (regweave {__version__}) than the caller"
    return Answer(None, str(RegweaveError(OTHER_CODE, message, SAME_BUILD)), 0.0, refused=True)


def on_cluster(function: Function, arguments: Sequence[Any], cluster: Cluster, unused: tuple[str, ...]) -> Answers:
    """Run tasks on the workers of a Dask scheduler; closing the iterator cancels what is left."""
    if not arguments:
        return
    client, program = cluster.connect(), program_hash(unused)
    distributed = extras.load(*DASK)
    futures = {
        client.submit(attempt_with_same_code, function, one, program, unused, pure=False): i
        for i, one in enumerate(arguments)
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
    except CANCELLED:
        message = f"scheduler {cluster.address} was lost"
        raise RegweaveError("E197", message, "start it again and continue with --resume") from None
    except distributed.KilledWorker:
        text = "E196: the worker processes ended before their task was done; if memory is short, use fewer workers"
        return Answer(None, text, 0.0)
    except (ImportError, AttributeError) as problem:
        message = f"a worker has not the code of the caller ({type(problem).__name__})"
        raise RegweaveError(
            OTHER_CODE, message, "install the same build of regweave there, and pass --resume"
        ) from None
    except Exception as problem:
        return Answer(None, internal_error(problem), 0.0)
    if answer.refused:
        code, _, text = str(answer.error).partition(": ")
        message, _, hint = text.partition("; ")
        raise RegweaveError(code, message, hint)
    return answer
