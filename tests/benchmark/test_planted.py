"""On phantoms where another metric is right in each organ, what is learned beats every tuned baseline by a margin."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from regweave.study.evaluate import evaluate
from regweave.training.options import TrainOptions
from regweave.training.run import train

BENCHMARK = Path(__file__).resolve().parents[2] / "benchmark"


@pytest.mark.slow
def test_learned_weights_win_on_held_out_phantoms(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [str(BENCHMARK), *sys.path])
    planted = importlib.import_module("planted")
    monkeypatch.setattr(planted, "SEEDS", {"train": range(40, 48), "test": range(400, 406)})
    lists = planted.write_phantoms(tmp_path)
    options = TrainOptions(C=300.0, alpha=0.05, eta=10.0)
    model = train(lists["train"], tmp_path / "m.json", options=options, config=planted.SETTINGS)
    found = evaluate(
        lists["test"], tmp_path / "out", models=[tmp_path / "m.json"], baselines=True, train_pairs=lists["train"]
    )
    content, claims = planted.condense(found.scores, model)
    assert len(claims) == 5  # three metrics, the uniform mix, and which metric each organ trusts most
    assert all(claim.met for claim in claims), content
