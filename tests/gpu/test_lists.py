"""Lists of pairs on a GPU: how devices are named, who takes which GPU, and that all of it registers there."""

import pytest

import regweave as rw
from regweave import notices
from regweave.cli import main
from regweave.errors import UsageError
from regweave.jobs.runner import Method, Runner, ScoringTask, pair_score, score_pair
from regweave.jobs.table import pairs_on_disk
from regweave.jobs.workers import Placement, Team, on_processes, place
from regweave.learning import samples
from regweave.registration import cuda as device, devices
from regweave.run import register as road
from regweave.run.read import Reading

TWO = ((("one", 1 << 30, 9, 0), ("two", 1 << 30, 9, 0)), "")


@pytest.fixture
def two_gpus(monkeypatch):
    monkeypatch.setattr(devices, "gpus", lambda: TWO)
    monkeypatch.setattr(devices, "_here", type(devices._here)())


@pytest.fixture
def ran(monkeypatch):
    """Names of the devices that levels ran on."""
    names, align = [], road.align
    monkeypatch.setattr(road, "align", lambda *a, **k: names.append(k["device"].name) or align(*a, **k))
    return names


def test_words_name_devices_of_a_list(two_gpus):
    assert place(None) == place("cpu") == Placement("cpu", ())
    assert place("cuda") == Placement("cuda", (0,))
    assert place("cuda:1") == Placement("cuda", (1,))
    assert place("cuda:1,0") == Placement("cuda", (1, 0))
    for wrong in ("cuda:0,0", "cuda:0,", "cuda:a,b", "gpu", "cpu:0", "cuda:-1"):
        with pytest.raises(UsageError, match="E173"):
            place(wrong)
    with pytest.raises(UsageError, match=r"E157: there is no GPU 2.*cuda:0 one, cuda:1 two"):
        place("cuda:0,2")
    with pytest.raises(UsageError, match="E173: cuda:0,1 names 2 GPUs for one registration"):
        devices.get("cuda:0,1")


def test_workers_of_a_cluster_choose_their_own_gpu(monkeypatch):
    monkeypatch.setattr(devices, "gpus", lambda: ((), "none here"))  # where the caller is
    assert place("cuda", "tcp://host:8786") == Placement("cuda")
    assert place("auto", "tcp://host:8786") == Placement("auto")
    assert place("cpu", "tcp://host:8786") == Placement()
    with pytest.raises(UsageError, match=r"E173.*CUDA_VISIBLE_DEVICES"):
        place("cuda:1", "tcp://host:8786")


def gpu_of_worker(_):
    return devices._here.number


def test_workers_are_dealt_out_to_gpus_and_one_that_fails_lives_on(two_gpus):
    with Team(5, (1, 0), threads=True) as team:
        team.grow(5)
        assert [member.gpu for member in team.members] == [1, 0, 1, 0, 1]
        answers = dict(on_processes(gpu_of_worker, [None] * 40, team))
    assert {answer.value for answer in answers.values()} == {0, 1}
    assert all(answer.error is None for answer in answers.values())
    with Team(1, (0,), threads=True) as team:
        (_, failed), (_, done) = (*on_processes(fails, [None], team), *on_processes(gpu_of_worker, [None], team))
    assert failed.error.startswith("E195")
    assert "patient" not in failed.error
    assert done.value == 0


def fails(_):
    raise RuntimeError("a patient's name")


def test_processes_know_their_gpu():
    with Team(1, (3,)) as team:
        assert [answer.value for _, answer in on_processes(gpu_of_worker, [None], team)] == [3]


def test_auto_takes_a_gpu_where_it_pays_and_the_pair_fits(with_twin, ran, training_list, monkeypatch):
    files, said = training_list.files(0), []
    for least, free in ((devices.LEAST_VOXELS, 4 << 30), (24**3 + 1, 4 << 30), (24**3, 1000)):
        monkeypatch.setattr(devices, "LEAST_VOXELS", least)
        monkeypatch.setattr(device, "needed_bytes", lambda *_, free=free: 8 * 2**50 // free)
        with notices.muted():
            said.append(rw.register(**files, config=training_list.settings, device="auto").warnings)
    assert ran == ["cuda:0", "cpu", "cpu"]
    assert [any("W219" in text for text in texts) for texts in said] == [False, False, True]


def test_overlaps_of_a_list_are_measured_by_threads_on_a_gpu(with_twin, ran, training_list, tmp_path):
    lines = [training_list.line(number) for number in range(2)]
    pairs = pairs_on_disk(training_list.write(tmp_path / "list.csv", *lines), tmp_path / "images")
    method = Method("uniform", training_list.settings)
    with Runner(Reading(), 2, None, tmp_path / "tasks", None, Placement("cuda", (0,))) as run:
        outcomes = run([(p.id, method, p) for p in pairs], dice_only=True)
        rest = (Reading(), method.settings, method.model, method.predicted, "cpu")
        alone = [score_pair(ScoringTask(p.files, run.hashes(p), *rest)) for p in pairs]
    assert ran == ["cuda:0"] * 2 + ["cpu"] * 2
    assert [o.error for o in outcomes] == [None] * 2
    found = [pair_score(o.value).mean() for o in outcomes]
    assert found == pytest.approx([pair_score(scores).mean() for scores in alone], abs=2e-3)


@pytest.mark.usefixtures("in_process")
def test_training_registers_and_follows_trajectories_on_a_gpu(with_twin, ran, training_list, tmp_path, monkeypatch):
    walked, align = [], samples.align
    monkeypatch.setattr(samples, "align", lambda *a, **k: walked.append(k["device"].name) or align(*a, **k))
    listed = training_list.write(tmp_path / "list.csv", *(training_list.line(number) for number in range(2)))
    options = {"method": "global", "gate": False, "predictor": "perceptron", "folds": 2}
    model = rw.train(listed, config=training_list.settings, workers=1, device="cuda", **options)
    assert model.training.device == "cuda"
    assert walked == ["cuda:0"] * 2
    assert set(ran) == {"cuda:0"}


@pytest.mark.usefixtures("in_process")
def test_a_batch_on_a_gpu_says_so(with_twin, ran, training_list, tmp_path):
    rows = [{"id": "p0", **{k: str(v) for k, v in training_list.files(0).items()}}]
    found = rw.batch(rows, tmp_path / "out", config=training_list.folder / "tiny.toml", workers=1, device="cuda")
    assert found.failures == {}
    assert [row.device for row in found.rows] == ["cuda:0"]
    assert found["p0"].provenance.device == "cuda:0"
    assert ran == ["cuda:0"]


@pytest.mark.parametrize("command", [["batch", "-o", "out"], ["evaluate", "-o", "out"], ["train", "-o", "m.json"]])
def test_a_gpu_that_is_not_there_is_refused_before_anything_is_read(command, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(devices, "gpus", lambda: ((), "no driver of the tests"))
    assert main([command[0], "no-such-list.csv", *command[1:], "--device", "cuda"]) == 2
    assert "E157" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
