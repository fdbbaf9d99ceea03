"""The fuzzer sees each fault that it is there for, and runs."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.fixture
def fuzz(monkeypatch):
    monkeypatch.syspath_prepend(HERE)
    import fuzz_child
    import fuzz_corpus

    import run as fuzz_run

    yield fuzz_child, fuzz_corpus, fuzz_run
    for name in ("fuzz_child", "fuzz_corpus", "fuzz_mutate", "run"):
        sys.modules.pop(name, None)


def leave() -> str:
    Path("out.part-1").write_text("x")
    return "done"


def leave_and_fail() -> str:
    from regweave.errors import RegweaveError

    Path("half").write_text("x")
    raise RegweaveError("E102", "damaged", "copy it again")


def fill() -> str:
    return str(sum(bytearray(600 << 20)[::4096]))


@pytest.mark.parametrize(
    ("call", "kind"),
    [
        (lambda: "fine", "accepted"), (["check", "nothing.nii"], "refused"), (["check"], "refused"),
        (os.abort, "crash"), (lambda: 1 / 0, "internal error"), (lambda: os._exit(70), "internal error"),
        (lambda: os._exit(3), "no code"), (lambda: time.sleep(600), "hang"), (fill, "memory"), (leave, "files left"),
        (leave_and_fail, "files left"),
    ],
)  # fmt: skip
def test_each_end_is_told(fuzz, tmp_path, call, kind):
    child, _, _ = fuzz
    folder = tmp_path / "case"
    folder.mkdir()
    outcome = child.run(call, folder, hang_s=0.5 if kind == "hang" else 60.0, memory_mb=400.0)
    assert outcome.kind == kind, outcome
    assert not list(folder.iterdir())


def test_silent_readings_are_told(fuzz, tmp_path):
    for read, known, says in [
        (lambda: "anything goes", {"must_refuse": True}, "a cut file was read"),
        (lambda: os.urandom(8).hex(), {}, "two readings differ"),
        (lambda: str(Path("x").stat().st_size), {"same_as_good": True}, "a change without meaning changed the reading"),
        (lambda: Path("x").read_text().strip(), {"same_as_good": True}, ""),
    ]:
        _, corpus, run = fuzz
        sample = corpus.Sample("x", b"good", read, ())
        assert run.judge(run.Case(sample, b"good\n", "by hand", **known), tmp_path / "case")[0] == says


def test_cases_are_made_by_seed_and_number_alone(fuzz, tmp_path):
    _, corpus, run = fuzz
    samples = corpus.corpus(tmp_path)
    made = [run.make_case(samples, 11, number) for number in range(400)]
    assert len({case.data for case in made}) > 350
    assert {"cut", "neutral"} <= {case.done for case in made}
    assert {case.sample.name for case in made} == {sample.name for sample in samples}
    for number in (7, 99):
        assert run.make_case(samples, 11, number) == made[number]


def test_a_few_cases():
    done = subprocess.run(
        [sys.executable, HERE / "run.py", "--cases", "6", "--seed", "7"], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "6 cases" in done.stdout
