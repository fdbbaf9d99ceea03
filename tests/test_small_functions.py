"""Small functions on single values: each line is what an interpreter shows."""

import doctest
from importlib import import_module

import pytest

CASES = {
    "regweave.config.presets": r"""
>>> metric_weights(["ncc=0.7", "mi"]) == metric_weights({"ncc": 0.7, "mi": 1})
True
""",
    "regweave.jobs.runner": r"""
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
>>> pairs = [PairFiles(g, *["x"] * 4, g) for g in ("a+b", "a+c", "b+c", "c+d")]
>>> sorted(p.id for p in cover_patients(pairs, 2))
['a+b', 'b+c']
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
    "regweave.cli.options": r"""
>>> parse_values("1,2,7")
(1, 2, 7)
""",
    "regweave.cli.tables": r"""
>>> short("glandula parotidea sinistra")
'glandula paroti…'
>>> print(text_table("structure", ["Dice"], [("cord", ["0.9"])]))
structure  Dice
cord        0.9
>>> print(terminal_text("## Dice\n\n| | mean |\n| --- | ---: |\n| sad | 0.7 |"))
Dice
<BLANKLINE>
     mean
sad   0.7
""",
    "regweave.contours.regions": r"""
>>> int(even_odd((4, 4), [np.array([[0.5, 0.5], [2.5, 0.5], [2.5, 2.5], [0.5, 2.5]])]).sum())
4
""",
    "regweave.io.dicom.parse": r"""
>>> require_same_patient(Identity("17", "DOE^JANE^^"), Identity("17", "Doe, Jane"), "plan and scan")
""",
    "regweave.io.disk.files": r"""
>>> suffix_of(Path("scan.NII.gz")), suffix_of(Path("a.b.nrrd"))
('.nii.gz', '.nrrd')
>>> table_cell("first\nsecond"), table_cell(" =1+1")
('first second', "'=1+1")
""",
    "regweave.io.geometry": r"""
>>> nearest_axes(np.array([[0.0, 0.0, 1.0], [1.0, 0.0, 0.0], [0.0, -1.0, 0.0]]))
(2, 0, 1)
""",
    "regweave.io.images": r"""
>>> orientation(Geometry((4, 4, 4), np.diag([-1.0, -1.0, 2.0, 1.0])))
'RAS'
""",
    "regweave.io.labels": r"""
>>> normalised("LeftParotid") == normalised("parotid_L") == normalised("PAROTID, left") == normalised("leftparotid")
True
>>> normalised("BRSTEM"), normalised("Cord"), normalised("Bone_Mandible")
('brainstem', 'spinalcord', 'mandible')
>>> normalised("BrainStem") == normalised("brainstem"), normalised("Femur_L") == normalised("Femur_R")
(True, False)
""",
    "regweave.io.modality": r"""
>>> bank_of("ct", "ct"), bank_of("t1", "mr"), bank_of("t1", "t2"), bank_of("ct", "mr")
('ct', 'mr', 'multi', 'multi')
""",
    "regweave.io.write": r"""
>>> list(in_order(len, ["a", "bc"]))
[1, 2]
""",
    "regweave.jobs.atlas": r"""
>>> ramp = np.arange(1000, dtype=np.float32)
>>> round(mutual_information(ramp, -ramp), 6), round(mutual_information(ramp, 0 * ramp), 6)
(2.0, 1.0)
""",
    "regweave.jobs.regions": r"""
>>> from regweave.types import Geometry
>>> grid = Geometry((2, 1, 1), np.diag([10.0, 10.0, 10.0, 1.0]))
>>> region_table(LabelMap(np.array([0, 3]).reshape(2, 1, 1), grid, {3: "cord"}))
[{'label': 3, 'name': 'cord', 'voxels': 1, 'volume_ml': 1.0...}]
""",
    "regweave.measures.deformation": r"""
>>> regularity(np.float32([[[1.0, -0.5, 0.0, 2.0]]]))["folding_fraction"]
0.5
""",
    "regweave.measures.overlap": r"""
>>> dice(np.array([[[1, 1, 2, 0]]]), np.array([[[1, 0, 2, 0]]]))
{1: 0.6666666666666666, 2: 1.0}
""",
    "regweave.measures.statistics": r"""
>>> paired_bootstrap([0.25, 0.25, 0.25], ["a", "b", "c"])
Interval(mean=0.25, low=0.25, high=0.25)
""",
    "regweave.measures.verdict": r"""
>>> judge(PairScore(), default_rules(), regularity={"folding_fraction": 0.002}).text
'voxels folded: 0.2 % (fail above 0.1 %, look above 0 %)'
>>> default_rules().words("folding_percent")
'fail above 0.1 %, look above 0 %'
>>> clinic_rules().brief("structure_volume_percent", 31.2, "look")
'volume 31.2 %: look above 25 %'
""",
    "regweave.notices": r"""
>>> print(terminal_safe("a\x1b[2Jb"))
a\u001b[2Jb
>>> with collected() as texts, muted():
...     warn("W203: label 4 vanished")
>>> texts
['W203: label 4 vanished']
>>> with collected() as texts, unheard():
...     warn("W203: label 4 vanished")
>>> texts
[]
""",
    "regweave.progress": r"""
>>> duration(75), duration(7384)
('1:15', '2:03:04')
""",
    "regweave.registration.forces": r"""
>>> spread(np.array([[[0, 0, 0, 2, 0, 1, 0]]]), 1.0, np.ones(3)).ravel().tolist()
[0, 0, 2, 2, 2, 1, 1]
""",
    "regweave.registration.scene": r"""
>>> share_channels(np.eye(5, dtype=bool)[:, :, None, None])[0]
((1, 4), (2,), (0, 3))
""",
    "regweave.report.batch": r"""
>>> dice = [0.8, 0.81, 0.82, 0.83, 0.2]
>>> strips, apart = spread_of("abcde", [("Dice after", ".2f")], [[d] for d in dice])
>>> strips[0].far, apart[0]["value"]
(frozenset({'e'}), '0.20')
""",
    "regweave.report.charts": r"""
>>> s = Scale([0.62, 0.91], 100, 0)
>>> s.ticks, round(s(0.8))
((0.6, 0.7, 0.8, 0.9, 1.0), 50)
>>> tag("line", x1=0.5, stroke_width=2)
'<line x1="0.5" stroke-width="2"/>'
>>> line_chart({"a": [(0, 1.0), (1, 0.5)]}, title="Loss", x_label="step", y_label="loss").count("<polyline")
1
>>> box_plot({"liver": {"sad": [0.8, 0.9]}}, title="Dice", x_label="Dice").count('class="median"')
1
>>> strip = Strip("Dice", ".2f", [("a", 0.8), ("b", 0.2)], 0.8, frozenset({"b"}))
>>> strip_plot([strip], title="Group").count('class="far"')
1
""",
    "regweave.report.page": r"""
>>> visible("a\u202eb") == "a\ufffdb"
True
>>> cell(0.123456), cell(None), cell("x")
('0.123', '–', 'x')
>>> number(0.5, ".1%"), number(-2.0, ".0f"), number(float("nan"))
('50.0%', '−2', '–')
>>> ml(0.456), ml(12.34), ml(1234.5)
('0.46', '12.3', '1234')
""",
    "regweave.report.pictures": r"""
>>> encode_png(np.zeros((2, 3), dtype=np.uint8))[:4]
b'\x89PNG'
>>> square_rows(np.array([[1, 2], [3, 4]]), 2.0)[:, 0].tolist()
[1, 1, 3, 3]
""",
    "regweave.report.viewer": r"""
>>> (codes,), table = quantise([np.float32([[[0, 5, 7]]])])
>>> table[codes].ravel().tolist()
[0.0, 5.0, 7.0]
>>> ct_window(np.float32([-850, -800, 40])), ct_window(np.float32([-80, 40, 60])), ct_window(np.float32([30, 35]))
('lung', 'soft tissue', 'brain')
>>> by_label(np.float32([[[1.0, 0.5, 2.0]]]), np.array([[[0, 1, 1]]]))
{1: (0.5, 1.25, 2.0)}
>>> nodes = Geometry((2, 1, 1), np.diag([2.0, 1.0, 1.0, 1.0]))
>>> on_image(np.float32([[[0.0]], [[4.0]]]), nodes, Geometry((3, 1, 1), np.eye(4))).ravel().tolist()
[0.0, 2.0, 4.0]
""",
    "regweave.spatial.control_grid": r"""
>>> nearest_whole(np.array([2.5, 2.5000001, 2.4999999, 2.6])).tolist()
[2.0, 2.0, 2.0, 3.0]
""",
}


@pytest.mark.parametrize("name", CASES)
def test_values_are_those_shown(name):
    test = doctest.DocTestParser().get_doctest(CASES[name], dict(vars(import_module(name))), name, None, None)
    assert test.examples
    assert doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test).failed == 0
