"""Records of demos from strangers: a page, or a code; and nothing written anywhere else."""

import json

import numpy as np
from reading import GONE, changed, places

from regweave.cli import main
from regweave.errors import RegweaveError
from regweave.report import demo
from regweave.study.demo import DemoSummary
from regweave.study.evaluate import Difference

DIFFERENCE = Difference(
    method="model:weights", label=None, n=2, mean=0.3, low=0.2, high=0.4, better=2, worse=0, equal=0
)
SUMMARY = DemoSummary(
    n_train=4,
    n_test=2,
    structures=["cord"],
    dice={"before": [0.4, 0.4], "learned": [0.8, 0.8], "sad alone": [0.5, None]},
    best_single="sad alone",
    against={"sad alone": DIFFERENCE},
    shares={"background": {"sad": 0.5, "mi": 0.5}, "cord": {"sad": 0.1, "mi": 0.9}},
    uniform=[],
    gain=0.1,
    shown={"a": 0.8},
    failures=[],
)
STRANGE = (None, True, "x", -1, 3.5, 1e99, [], {"a": 1}, [[]], [1, 2])


def test_a_demo_of_a_stranger(tmp_path):
    record, codes = SUMMARY.model_dump(), set()
    every = [(path, value) for path in places(record) for value in (*STRANGE, GONE)]
    for i in np.random.default_rng(0).choice(len(every), 150, replace=False):
        (tmp_path / "demo.json").write_text(json.dumps(changed(record, *every[i])))
        try:
            demo.write_page(tmp_path)
        except RegweaveError as error:
            codes.add(error.code)
        else:
            codes.add("")
    assert codes == {"", "E178"}


def test_a_demo_names_no_page_elsewhere(tmp_path, capsys):
    for name in ["../../../x", "a/b", "", ".."]:
        record = {**SUMMARY.model_dump(), "shown": {name: 0.8}}
        (tmp_path / "demo.json").write_text(json.dumps(record))
        assert main(["report", str(tmp_path)]) == 3
        assert "the name is not one that regweave gives" in capsys.readouterr().err
