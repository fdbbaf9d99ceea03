"""Small functions on single values: each line is what an interpreter shows."""

import doctest
from importlib import import_module

import pytest

CASES = {
    "regweave.config.presets": r"""
>>> metric_weights(["ncc=0.7", "mi"]) == metric_weights({"ncc": 0.7, "mi": 1})
True
""",
    "regweave.jobs.folds": r"""
>>> pairs = [PairFiles(g, *["x"] * 4, g) for g in ("a+b", "a+c", "b+c", "c+d")]
>>> sorted(p.id for p in cover_patients(pairs, 2))
['a+b', 'b+c']
""",
    "regweave.jobs.methods": r"""
>>> next_values([1, 2, 4, 8, 16], {})
[2, 4, 8]
>>> next_values([1, 2, 4, 8, 16], {2: 0.5, 4: 0.6, 8: 0.7})
[16]
>>> next_values([1, 2, 4, 8, 16], {2: 0.5, 4: 0.6, 8: 0.7, 16: 0.6})
[]
""",
    "regweave.jobs.store": r"""
>>> content_hash({"a": 1.5, "b": Path("x")}) == content_hash({"b": "x", "a": 1.5})
True
""",
    "regweave.jobs.table": r"""
>>> check_leak(["a+b", "c"], ["d", "b+e"], allow=True)
('b',)
""",
    "regweave.jobs.workers": r"""
>>> code_of("x = 2*y  # twice")
'x = 2 * y'
>>> place("cpu")
Placement(word='cpu', gpus=())
""",
    "regweave.learning.lssvm": r"""
>>> LssvmOptions().words()
'C 300, alpha 1, eta 10'
""",
    "regweave.learning.qp": r"""
>>> cut = Cuts(np.array([0]), np.array([[1.0]]), np.array([0.0]))
>>> solve(cut, 1, np.array([1.0]), C=1.0, alpha=1.0, lower=np.array([0.0])).w
array([0.33333333])
""",
    "regweave.measures.likeness": r"""
>>> one, other = np.float32([0, 1, 0, 0]), np.float32([1, 0, 0, 1])
>>> _differences(one, other, np.array([0, 0, 1, 1]), 2).tolist()
[0.0, 0.5]
>>> word_of(0.3), word_of(-1.2), word_of(-2.5)
('alike', 'doubtful', 'not the same anatomy')
>>> worse_than(0.4, [k / 16 for k in range(17)], "contour")
0.66
""",
    "regweave.model.record": r"""
>>> TrainingRecord(groups=("p07+p11",)).to_json()
{'groups': ['p07+p11']}
""",
    "regweave.predictors.unet": r"""
>>> layer_shapes(1, 16, 3, 4)["up0.0.weight"]
(16, 48, 3, 3, 3)
>>> filled_shape((7, 33, 5), [(2, 2, 1), (2, 2, 1), (2, 2, 1)])
(16, 40, 5)
>>> channels(np.array([-1024.0, 40.0, 1500.0]), "ct").tolist()
[[-1.0, 0.0, 1.0], [-1.0, -0.168..., 1.0]]
>>> strides_for((2.5, 2.5, 10.0), (64, 64, 12))
((2, 2, 1), (2, 2, 1), (2, 2, 2))
>>> likeliest([np.array([0.2, 0.6], np.float32), np.array([0.8, 0.4], np.float32)]).tolist()
[1, 0]
>>> mirror_places((0, 3, 4, 5), {3: "Parotid_L", 4: "Parotid_R", 5: "brainstem"})
(0, 2, 1, 3)
>>> spared([n // 5 for n in range(100)], 0), spared(range(40), 0)
((20, 21, 22, 23, 24, 95, 96, 97, 98, 99), ())
""",
    "regweave.run.guides": r"""
>>> asked_guides(True), asked_guides(False), asked_guides("liver; left kidney=0.5")
({}, None, {'liver': 1.0, 'left kidney': 0.5})
""",
    "regweave.run.images": r"""
>>> "displacement" in usual_outputs(64**3), "displacement" in usual_outputs(512 * 512 * 55)
(True, False)
>>> check_outputs(["transform", "warped"])
('warped', 'transform')
>>> parse_outputs("warped, inverse")
('warped', 'inverse')
""",
    "regweave.run.memory": r"""
>>> cache = Cache(1.0)
>>> cache("zeros", lambda: np.zeros(10)) is cache("zeros", lambda: np.ones(10))
True
""",
    "regweave.spatial.rigid": r"""
>>> points = np.eye(3)
>>> rigid_fit(points, points + 2.0)[:3, 3].round(6).tolist()
[2.0, 2.0, 2.0]
""",
    "regweave.study.bids": r"""
>>> _space("tpl-MNI152NLin2009cAsym_res-01_T1w.nii.gz"), _space("our mean.nii")
('MNI152NLin2009cAsym', 'ourmean')
""",
    "regweave.training.candidates": r"""
>>> judge_pairs([0.02, 0.03, 0.02]).used, judge_pairs([0.02, -0.03, 0.01]).used
(True, False)
""",
    "regweave.training.predictor_fits": r"""
>>> within([3.0, 3.0, 3.0], 7.0, np.random.default_rng(0))
[0, 2]
>>> described(LeftOutDice(mean_dice=0.8123, n_images=12))
'mean Dice 0.812 on 12 images of left-out patients'
""",
    "regweave.training.refinement": r"""
>>> start = WeightTable(np.array([[1.0, 1.0], [0.0, 0.0]]), ("ncc", "maps"), (0, 1), 0.1)
>>> mixed = WeightTable(np.array([[0.2, 0.2], [0.8, 0.8]]), ("ncc", "maps"), (0, 1), 0.1)
>>> found = background_of(mixed, start, ("ncc", "maps"), 4.0)
>>> found.matrix.tolist(), found.stiffness.tolist()
([[1.0, 0.2], [0.0, 0.8]], [4.0, 1.0])
""",
    "regweave.training.state": r"""
>>> TrainingLog(print, 12, 340, {"tune": 1.25, "learn": 3.0}).text()
'12 registrations, 340 inferences; tune 1.2 s, learn 3.0 s'
""",
}


@pytest.mark.parametrize("name", CASES)
def test_values_are_those_shown(name):
    test = doctest.DocTestParser().get_doctest(CASES[name], dict(vars(import_module(name))), name, None, None)
    assert test.examples
    assert doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test).failed == 0
