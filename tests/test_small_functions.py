"""Small functions on single values: each line is what an interpreter shows."""

import doctest
from importlib import import_module

CASES = {
    "regweave.jobs.runner": r"""
>>> next_values([1, 2, 4, 8, 16], {})
[2, 4, 8]
>>> next_values([1, 2, 4, 8, 16], {2: 0.5, 4: 0.6, 8: 0.7})
[16]
>>> next_values([1, 2, 4, 8, 16], {2: 0.5, 4: 0.6, 8: 0.7, 16: 0.6})
[]
""",
    "regweave.study.bids": r"""
>>> _space("tpl-MNI152NLin2009cAsym_res-01_T1w.nii.gz"), _space("our mean.nii")
('MNI152NLin2009cAsym', 'ourmean')
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
    "regweave.io.dicom.parse": r"""
>>> require_same_patient(Identity("17", "DOE^JANE^^"), Identity("17", "Doe, Jane"), "plan and scan")
""",
    "regweave.io.disk.files": r"""
>>> suffix_of(Path("scan.NII.gz")), suffix_of(Path("a.b.nrrd"))
('.nii.gz', '.nrrd')
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
    "regweave.progress": r"""
>>> duration(75), duration(7384)
('1:15', '2:03:04')
""",
    "regweave.spatial.control_grid": r"""
>>> nearest_whole(np.array([2.5, 2.5000001, 2.4999999, 2.6])).tolist()
[2.0, 2.0, 2.0, 3.0]
""",
    "regweave.cli.tables": r"""
>>> short("glandula parotidea sinistra")
'glandula paroti…'
""",
    "regweave.report.viewer": r"""
>>> ct_window(np.float32([-850, -800, 40])), ct_window(np.float32([-80, 40, 60])), ct_window(np.float32([30, 35]))
('lung', 'soft tissue', 'brain')
""",
    "regweave.report.page": r"""
>>> ml(0.456), ml(12.34), ml(1234.5)
('0.46', '12.3', '1234')
""",
}


def test_values_are_those_shown():
    for name, text in CASES.items():
        test = doctest.DocTestParser().get_doctest(text, dict(vars(import_module(name))), name, None, None)
        assert test.examples
        assert doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test).failed == 0, name
