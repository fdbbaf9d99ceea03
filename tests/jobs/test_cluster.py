"""A cluster that cannot be used: refused within seconds, with a code, and without a trace."""

import socket
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from regweave.cli import main
from regweave.errors import RegweaveError, UsageError
from regweave.jobs import workers as module
from regweave.jobs.workers import Cluster, attempt_with_same_code, program_hash, require_cluster, run_tasks


@pytest.fixture
def port(monkeypatch):
    """A port that accepts, and then does as told; the default is to say nothing."""
    monkeypatch.setattr(module, "SCHEDULER_PATIENCE_S", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as server:
        number = server.getsockname()[1]

        def serve(answer: bytes) -> None:
            with server.accept()[0] as one:
                one.sendall(answer)

        yield SimpleNamespace(
            address=f"tcp://127.0.0.1:{number}",
            answer=lambda data: threading.Thread(target=serve, args=(data,), daemon=True).start(),
        )


def test_what_is_no_address_or_lacks_its_package_is_refused(monkeypatch):
    monkeypatch.setattr(socket, "create_connection", lambda *_: pytest.fail("asked"))
    nowhere = "nonsense tcp:// http://127.0.0.1:1 tcp://:5 tcp://a:0 tcp://a:65536 127.0.0.1:8786 tcp://a:1/x"
    for address in ("", *nowhere.split()):
        with pytest.raises(UsageError, match=r"E193: --scheduler is .*no address"):
            require_cluster(address)
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(UsageError, match="E193: --scheduler needs the package distributed"):
        run_tasks([("a", 1)], len, scheduler="tcp://127.0.0.1:9")


def test_nobody_listens_or_nobody_answers_as_dask_does(port):
    with socket.create_server(("127.0.0.1", 0)) as server:
        number = server.getsockname()[1]
    with pytest.raises(UsageError, match=r"E193: no answer from scheduler .*ConnectionRefusedError"):
        require_cluster(f"tcp://127.0.0.1:{number}")
    with pytest.raises(UsageError, match=r"E193: no answer from scheduler .*TimeoutError"):
        require_cluster(port.address)
    for answer in (b"", b"SSH-2.0-OpenSSH_9.6\r\n", b"HTTP/1.1 400 Bad Request\r\n"):
        port.answer(answer)
        with pytest.raises(UsageError, match="E193: no answer"):
            require_cluster(port.address)


def test_a_scheduler_without_workers(port, monkeypatch):
    waited, closed = [], []

    class Client:
        def __init__(self, address: str, **options: object) -> None:
            assert (address, options["timeout"]) == (port.address, module.SCHEDULER_PATIENCE_S)

        def wait_for_workers(self, n: int, timeout: float) -> None:
            waited.append((n, timeout))
            raise TimeoutError

        def close(self, timeout: float) -> None:
            closed.append(True)

    monkeypatch.setitem(sys.modules, "distributed", SimpleNamespace(Client=Client))
    port.answer((58).to_bytes(8, "little"))
    with pytest.raises(RegweaveError, match=r"E156: .* no worker after 7 s.*--wait-for-workers"):
        require_cluster(Cluster(scheduler=port.address, wait_for_workers=7.0))
    assert (waited, closed) == ([(1, 7.0)], [True])


def test_the_command_leaves_nothing_behind(port, tmp_path, capsys):
    rows = "a,f.nii,m.nii,fl.nii,ml.nii\n"
    (tmp_path / "pairs.csv").write_text("id,fixed,moving,fixed_labels,moving_labels\n" + rows)
    for name in ("f.nii", "m.nii", "fl.nii", "ml.nii"):
        (tmp_path / name).touch()
    for command in (["evaluate"], ["train", "--preset", "paper"]):
        words = [*command, str(tmp_path / "pairs.csv"), "-o", str(tmp_path / "out"), "--scheduler", port.address]
        assert main(words) == 2
        assert "error E193: no answer from scheduler" in capsys.readouterr().err
    assert sorted(p.name for p in tmp_path.iterdir()) == ["f.nii", "fl.nii", "m.nii", "ml.nii", "pairs.csv"]


def test_tls_needs_its_three_files_and_tcp_none(tmp_path, capsys):
    pem = tmp_path / "a.pem"
    pem.touch()
    three = {"tls_ca": pem, "tls_cert": pem, "tls_key": pem}
    for words in ({}, {"tls_ca": pem, "tls_cert": pem}, {"scheduler": "tcp://a:1", **three}):
        with pytest.raises(UsageError, match=r"E193.*TLS files"):
            Cluster(**{"scheduler": "tls://a:1", **words}).check()
    with pytest.raises(RegweaveError, match="E101"):
        Cluster(**{**three, "scheduler": "tls://a:1", "tls_key": tmp_path / "none.pem"}).check()
    Cluster(scheduler="tls://a:1", **three).check()
    with pytest.raises(UsageError, match="E193: --wait-for-workers"):
        Cluster(scheduler="tcp://a:1", wait_for_workers=float("nan")).check()
    assert main(["evaluate", "pairs.csv", "-o", str(tmp_path / "o"), "--tls-ca", "ca.pem"]) == 2
    assert "E192: TLS files are given without --scheduler" in capsys.readouterr().err


def test_tls_reaches_dask(tmp_path, monkeypatch):
    distributed = pytest.importorskip("distributed")
    files = keys(tmp_path)
    security = distributed.Security(
        tls_ca_file=files[0], tls_scheduler_cert=files[1], tls_scheduler_key=files[2], tls_worker_cert=files[1],
        tls_worker_key=files[2], tls_client_cert=files[1], tls_client_key=files[2], require_encryption=True,
    )  # fmt: skip
    options = {"processes": False, "n_workers": 1, "threads_per_worker": 1, "dashboard_address": ":0"}
    with distributed.LocalCluster(protocol="tls://", security=security, **options) as local:
        ca, cert, key = map(Path, files)
        cluster = Cluster(scheduler=local.scheduler_address, tls_ca=ca, tls_cert=cert, tls_key=key)
        found = run_tasks([("a", [1, 2])], len, scheduler=cluster)
        assert local.scheduler_address.startswith("tls://")
    assert [(o.key, o.value) for o in found] == [("a", 2)]


def keys(folder: Path) -> tuple[str, str, str]:
    """Make a certificate that is its own authority."""
    cert, key = folder / "cert.pem", folder / "key.pem"
    made = subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=test",
         "-keyout", str(key), "-out", str(cert)], check=False, capture_output=True,
    )  # fmt: skip
    if made.returncode:
        pytest.skip("needs openssl")
    return str(cert), str(cert), str(key)


def test_a_worker_with_other_code_refuses_and_one_with_the_same_computes():
    assert attempt_with_same_code(len, [1, 2], program_hash()).value == 2
    with pytest.raises(RegweaveError, match="E199: the worker on "):
        attempt_with_same_code(len, [1, 2], "of another version")
