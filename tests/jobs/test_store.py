"""Batches in true processes: failures, a killed parent, the same bits wherever the tasks run."""

import json
import math
import os
import signal
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from regweave import _core
from regweave.errors import RegweaveError, UsageError
from regweave.jobs import runner as scoring, workers as batch, workers as cluster_module
from regweave.jobs.runner import ScoringTask, score_dice, score_pair
from regweave.jobs.workers import Team, attempt, code_of, content_hash, run_tasks
from regweave.model.model import Model
from regweave.run import register
from regweave.run.memory import Cache
from regweave.run.read import Reading

MODULE = '''
from __future__ import annotations

import os
import time
from pathlib import Path

from regweave import _core
from regweave.errors import RegweaveError


def work(task):
    """Numbers whose last bits would show any rounding on the way."""
    if task.get("log"):
        with open(task["log"], "a") as stream:
            stream.write(f"{task['x']}\\n")
    time.sleep(task.get("sleep", 0))
    return {"third": task["x"] / 3, "nan": float("nan"), "tiny": 5e-324 * task["x"], "threads": _core.threads()}


def where(task):
    return os.getpid()


def fail(task):
    if task == "known":
        raise RegweaveError("E102", "'a.nii' is damaged", "copy it again")
    if task == "unknown":
        raise ValueError("patient DOE")
    if task == "memory":
        raise MemoryError
    if task == "unfit":
        return {1, 2}
    if task == "killed":
        os.kill(os.getpid(), 9)
    if task == "exit":
        os._exit(3)
    return (task, 1)
'''


@pytest.fixture
def tasks_module(tmp_path_factory, monkeypatch):
    """A module that spawned workers can import, which test modules are not."""
    folder = tmp_path_factory.mktemp("modules")
    (folder / "batch_tasks.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("PYTHONPATH", str(folder))
    sys.modules.pop("batch_tasks", None)
    import batch_tasks

    yield batch_tasks
    sys.modules.pop("batch_tasks", None)


def at_once(function, arguments, _):
    """Run tasks in this process, where the way of the workers is not the subject."""
    yield from enumerate(attempt(function, argument) for argument in arguments)


def numbered(n, **more):
    return [(f"task/{i}", {"x": i, **more}) for i in range(n)]


def plain(outcomes):
    """Everything but the time, in a form in which NaN equals NaN."""
    return [(o.key, json.dumps(o.value), o.error) for o in outcomes]


def test_values_arrive_without_loss(tasks_module, tmp_path, monkeypatch):
    seen = []
    outcomes = run_tasks(numbered(7), tasks_module.work, workers=2, store=tmp_path / "store", on_progress=seen.append)
    assert [o.key for o in outcomes] == [f"task/{i}" for i in range(7)]
    for i, outcome in enumerate(outcomes):
        assert outcome.value["third"] == i / 3
        assert outcome.value["tiny"] == 5e-324 * i
        assert math.isnan(outcome.value["nan"])
        assert outcome.value["threads"] == 1
    assert [p.done for p in seen] == list(range(1, 8))
    assert {p.total for p in seen} == {7}
    assert seen[0].seconds_left > 0
    assert seen[-1].seconds_left == 0
    assert len(list((tmp_path / "store").iterdir())) == 7
    monkeypatch.setattr(batch, "on_processes", at_once)
    one = run_tasks(numbered(7), tasks_module.work, workers=1)
    assert plain(one) == plain(outcomes)


def test_a_failure_stops_nothing(tasks_module, tmp_path, monkeypatch):
    names = ["fine", "known", "unknown", "killed", "memory", "unfit", "exit", "also fine"]

    def run(chosen):
        return run_tasks([(n, n) for n in chosen], tasks_module.fail, workers=2, store=tmp_path / "store")

    found = {o.key: o for o in run(names)}
    assert found["fine"].value == ["fine", 1]
    assert found["also fine"].value == ["also fine", 1]
    assert found["known"].error == "E102: 'a.nii' is damaged; copy it again"
    assert found["unknown"].error.startswith("E195: internal error (ValueError in batch_tasks.py:")
    assert "DOE" not in str(found)
    assert found["killed"].error.startswith("E196: the worker process ended (signal 9)")
    assert found["exit"].error.startswith("E196: the worker process ended (status 3)")
    assert found["memory"].error.startswith("E140")
    assert found["unfit"].error.startswith("E195: internal error (TypeError")
    assert all(o.value is None for o in found.values() if o.error)
    # Failures are tried again and fail alike; the rest is taken from the store.
    monkeypatch.setattr(batch, "on_processes", at_once)
    again = run(names[:3])
    assert plain(again) == plain(found[n] for n in names[:3])
    assert [o.reused for o in again] == [True, False, False]


def test_store_knows_content_and_code(tasks_module, tmp_path, monkeypatch):
    def runs(tasks, function=tasks_module.work):
        return [o.reused for o in run_tasks(tasks, function, workers=1, store=tmp_path)]

    monkeypatch.setattr(batch, "on_processes", at_once)
    assert runs(numbered(2)) == [False, False]
    assert runs(numbered(3)) == [True, True, False]
    assert runs(numbered(2, sleep=0.0)) == [False, False]
    for file in tmp_path.glob("*.json"):
        file.write_text(file.read_text()[:-5])
    assert runs(numbered(3)) == [False, False, False]
    assert runs(numbered(3)) == [True, True, True]
    assert len(batch.program_hash()) == 64
    monkeypatch.setattr(batch, "program_hash", lambda: "other")
    assert runs(numbered(1)) == [False]


def test_hash_sees_every_part():
    @dataclass
    class Value:
        array: np.ndarray
        path: Path

    base = content_hash([Value(np.zeros((2, 3)), Path("a")), np.float32(0.5), {"k": 1}])
    assert base == content_hash([Value(np.zeros((2, 3)), Path("a")), np.float32(0.5), {"k": 1}])
    others = [
        [Value(np.zeros((3, 2)), Path("a")), np.float32(0.5), {"k": 1}],
        [Value(np.zeros((2, 3), np.float32), Path("a")), np.float32(0.5), {"k": 1}],
        [Value(np.zeros((2, 3)), Path("b")), np.float32(0.5), {"k": 1}],
        [Value(np.zeros((2, 3)), Path("a")), np.float32(0.25), {"k": 1}],
        [Value(np.zeros((2, 3)), Path("a")), np.float32(0.5), {"k": 2}],
    ]
    assert len({base, *map(content_hash, others)}) == 6
    with pytest.raises(TypeError, match="may not hold a object"):
        content_hash(object())


def test_kernel_threads_stay_and_a_better_sentence_is_the_same_code(tasks_module):
    before = _core.threads()
    assert attempt(tasks_module.work, {"x": 1}).value["threads"] == 1
    assert _core.threads() == before
    source = '"""One."""\nA = 1\n"""A constant."""\n\n\ndef f(x):\n    """Do."""\n    return x + A\n'
    said = source.replace("One", "Two").replace("A constant", "The number").replace("Do.", "Add.  # it")
    assert code_of(said) == code_of(source)
    assert code_of(source.replace("x + A", "x - A")) != code_of(source)
    assert code_of(source.replace("A = 1", "A = 2")) != code_of(source)
    assert code_of('def f():\n    """Only words."""\n') == code_of("def f():\n    pass\n")
    with pytest.raises(UsageError, match="E192"):
        run_tasks(numbered(1), tasks_module.work, workers=2, scheduler="tcp://127.0.0.1:1")
    with pytest.raises(UsageError, match="E192"):
        run_tasks(numbered(1), tasks_module.work, workers=0)
    with pytest.raises(ValueError, match="unique"):
        run_tasks([("a", {}), ("a", {})], tasks_module.work)
    assert run_tasks([], tasks_module.work) == []


SCRIPT = """
import sys
from pathlib import Path
from regweave.jobs.workers import run_tasks
import batch_tasks

if __name__ == "__main__":
    tasks = [(f"task/{i}", {"x": i, "sleep": 0.15, "log": sys.argv[2]}) for i in range(8)]
    try:
        for outcome in run_tasks(tasks, batch_tasks.work, workers=2, store=Path(sys.argv[1])):
            print(outcome.key, outcome.value, outcome.seconds)
    except KeyboardInterrupt:
        print("interrupted")
"""


@pytest.fixture
def start(tmp_path, spawn):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)

    def run(name):
        return spawn(sys.executable, script, tmp_path / name, tmp_path / f"{name}.log", start_new_session=True)

    return run


def lines(path: Path) -> int:
    return len(path.read_text().splitlines()) if path.exists() else 0


def children_of_group(group: int) -> list[int]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if int(fields[2]) == group and fields[0] != "Z":
            found.append(int(folder.name))
    return found


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks at processes through /proc")
def test_resume_after_the_parent_was_killed(tasks_module, start, wait_for, tmp_path, monkeypatch):
    """SIGKILL in mid-run leaves no worker behind, and the same call takes up where it was, bit for bit."""
    killed, log = tmp_path / "killed", tmp_path / "killed.log"
    first = start("killed")
    wait_for(lambda: killed.exists() and len(list(killed.glob("[0-9a-f]*.json"))) >= 3, first)
    os.kill(first.pid, signal.SIGKILL)
    first.communicate()
    kept = {p.name: p.read_bytes() for p in killed.glob("[0-9a-f]*.json")}
    assert 3 <= len(kept) < 8
    wait_for(lambda: not children_of_group(first.pid))
    started = lines(log)
    monkeypatch.setattr(batch, "on_processes", at_once)
    found = run_tasks(numbered(8, sleep=0.15, log=str(log)), tasks_module.work, workers=2, store=killed)
    assert lines(log) - started == 8 - len(kept)
    assert sum(o.reused for o in found) == len(kept)
    assert {p.name: p.read_bytes() for p in killed.glob("[0-9a-f]*.json") if p.name in kept} == kept
    assert [(o.key, o.value["third"]) for o in found] == [(f"task/{i}", i / 3) for i in range(8)]


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks at processes through /proc")
@pytest.mark.usefixtures("tasks_module")
def test_interrupt_ends_the_run_and_keeps_what_is_done(start, wait_for, tmp_path):
    process = start("stopped")
    wait_for(lambda: len(list((tmp_path / "stopped").glob("[0-9a-f]*.json"))) >= 2, process)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: parent and workers
    out, err = process.communicate()
    assert (out, err) == ("interrupted\n", "")
    wait_for(lambda: not children_of_group(process.pid))
    assert 2 <= len(list((tmp_path / "stopped").glob("[0-9a-f]*.json"))) < 8


def test_cluster_gives_the_same_bits_and_other_code_is_refused(tasks_module, tmp_path, monkeypatch):
    distributed = pytest.importorskip("distributed")
    options = {"processes": True, "n_workers": 2, "threads_per_worker": 1, "dashboard_address": ":0"}
    with distributed.LocalCluster(**options) as cluster:
        address = cluster.scheduler_address
        there = run_tasks(numbered(7), tasks_module.work, scheduler=address, store=tmp_path)
        names = ["fine", "unknown", "known"]
        failed = run_tasks([(n, n) for n in names], tasks_module.fail, scheduler=address)
        kept = run_tasks(numbered(7), tasks_module.work, scheduler=address, store=tmp_path)
        monkeypatch.setattr(cluster_module, "program_hash", lambda: "of another version")
        with pytest.raises(RegweaveError, match=r"E199: the worker on .* runs other code") as refused:
            run_tasks(numbered(9), tasks_module.work, scheduler=address, store=tmp_path / "other")
    monkeypatch.setattr(batch, "on_processes", at_once)
    assert plain(there) == plain(run_tasks(numbered(7), tasks_module.work, workers=2))
    assert kept[3].reused
    assert "same build" in refused.value.hint
    assert list((tmp_path / "other").iterdir()) == []
    assert plain(kept) == plain(there)
    assert plain(failed) == plain(run_tasks([(n, n) for n in names], tasks_module.fail, workers=1))


def test_a_team_serves_one_batch_after_another(tasks_module):
    with Team(2) as team:
        first, second = (run_tasks(numbered(4), tasks_module.where, workers=team) for _ in range(2))
        there = {o.value for o in first}
        assert {o.value for o in second} <= there
        dead = run_tasks([("k", "killed")], tasks_module.fail, workers=team)
        assert "E196" in dead[0].error
        assert len(there & {o.value for o in run_tasks(numbered(4), tasks_module.where, workers=team)}) <= 1
        process = team.members[0]
    assert team.members == []
    with pytest.raises(OSError, match="closed"):
        process.pipe.recv()


# What workers keep between registrations of a pair: bounded, and without a trace in the numbers.
@dataclass(frozen=True)
class Box:
    arrays: tuple[np.ndarray, ...]


def test_what_was_used_last_goes_last():
    kept, made = Cache(1.0), []

    def get(name, kilobytes=300):
        return kept(name, lambda: made.append(name) or Box((np.zeros(kilobytes * 2**10, dtype=np.uint8),)))

    for name in ("a", "b", "c", "a", "d"):
        get(name)
    assert made == ["a", "b", "c", "d"]
    assert get("a") is get("a")
    get("b")  # it had to go for d
    assert made == ["a", "b", "c", "d", "b"]
    assert get("whale", 2000).arrays[0].nbytes == 2000 * 2**10  # larger than all there is: made, not kept
    get("whale", 2000)
    assert made[-2:] == ["whale", "whale"]


@pytest.fixture
def fresh(monkeypatch):
    """A memory of its own for each test; it counts what is computed."""
    counts: dict[str, int] = {}

    def counted(name, function):
        def run(*args, **options):
            counts[name] = counts.get(name, 0) + 1
            return function(*args, **options)

        return run

    kept = Cache(100.0)
    monkeypatch.setattr(scoring, "kept", lambda: kept)
    for name in ("read_inputs", "align", "refine"):
        monkeypatch.setattr(register, name, counted(name, getattr(register, name)))
    return counts


def dice(scores):
    return {row["label"]: (row["dice_before"], row["dice_after"]) for row in scores["structures"]}


def test_trials_of_a_pair_share_what_no_weight_changes(fresh, training_list):
    files = training_list.files(0)
    task = ScoringTask(files, {name: str(path) for name, path in files.items()}, Reading(), training_list.settings)
    start = training_list.settings.for_bank("mr").start_weights(0.1, (0, 3))
    other = replace(start, matrix=start.matrix * np.array([[1.0, 0.2], [1.0, 1.8], [1.0, 1.0]]))
    models = [Model(w, training_list.settings, "mr") for w in (start, other)]
    smooth = training_list.settings.with_refine_smoothness(2.0)
    tasks = [task, replace(task, settings=smooth), *(replace(task, model=m) for m in models)]
    tasks.append(replace(tasks[-1], reading=Reading(classes=(3,))))
    found = [score_dice(t) for t in tasks]
    assert fresh == {"read_inputs": 2, "align": 4, "refine": 5}  # other labels are read anew, and seen anew
    assert len({str(dice(f)) for f in found}) == 4  # the uniform columns of a model are the bank without one
    for t, f in zip(tasks, found, strict=True):
        assert dice(f) == dice(score_pair(t))
    assert [score_dice(t) for t in tasks] == found
