"""Experiments of the paper: data, organs, simulated changes, and where they differ from the paper's."""

from __future__ import annotations

from regweave.datasets.simulate import ChangePlan, OrganChange
from regweave.study.reproduce.protocols import BetweenPatients, OnePatient, Protocol, TwoTimePoints

_PAROTIDS = {1: "left parotid", 2: "right parotid"}
_OPENKBP = "OpenKBP: Babier et al., Medical Physics 2021; MIT licence."
_PAROTID_ORGANS = {1: "Parotl", 2: "Parotr"}
_WEIGHTS_NOTE = (
    "The paper starts learning from weights found by a grid search, (0.1, 10, 10, 10), and does not give C, α and η; "
    "we start from equal weights of costs with equal scale."
)

IBSR = BetweenPatients(
    "ibsr", "IBSR brain MR, between subjects", "ibsr18_64", "IBSR",
    {1: "CSF", 2: "GM", 3: "WM"}, {1: "CSF", 2: "GM", 3: "WM"},
    (
        "The paper has 18 subjects: two folds of 9, 72 ordered pairs each. With the n subjects of the data "
        "folder each "
        "fold has n/2, and all their ordered pairs, at most 72, are tested.",
        "The 64³ volumes are our own downsampling of the same repository; brain centroids are at the origin "
        "and nothing "
        "else is aligned. The paper does not say how its volumes start.",
        _WEIGHTS_NOTE,
    ),
    "The MR brain data sets and their manual segmentations were provided by the Center for Morphometric Analysis at "
    "Massachusetts General Hospital. Skull-stripped: Rohlfing, IEEE TMI 31(2), 2012. Do not publish the pictures.",
    repetitions=3, overlay=False,
)  # fmt: skip
PAROTID_BETWEEN = BetweenPatients(
    "parotid-between", "Head and neck CT, between patients", "openkbp_head_neck", "RT Parotids",
    _PAROTIDS, _PAROTID_ORGANS,
    (
        "The paper registers two scans of one patient (4 patients, 8 pairs); this experiment registers "
        "different patients "
        "of OpenKBP at the paper's grid, which is harder. Its figures are not comparable with the paper's in level.",
        "At most 18 patients drawn by seed, as many as the paper's largest set has; two folds by patient, 10 random "
        "training pairs, the 72 ordered pairs of the other fold tested.",
        _WEIGHTS_NOTE,
    ),
    _OPENKBP,
)  # fmt: skip
PAROTID_TIME = TwoTimePoints(
    "parotid-time", "Head and neck CT, simulated second time point", "openkbp_head_neck", "RT Parotids",
    _PAROTIDS, _PAROTID_ORGANS,
    (
        "The paper's second scans are real. Ours are simulated from the first: parotids shrink to 60–85 %, "
        "most on the "
        "side of the midline, posture changes, gain, contrast and noise change; bones are not kept rigid.",
        "Warped labels are exact for the known deformation, so there is no disagreement between two "
        "segmentations, which "
        "real data have.",
        "The paper has 4 patients and one split; here each of at most 18 that are drawn by seed is tested once, in "
        "two folds by patient, in both directions; 10 random pairs of the other fold train.",
        _WEIGHTS_NOTE,
    ),
    _OPENKBP,
    time_points=1,
    plan=ChangePlan(
        tuple(OrganChange(c, volume=(0.6, 0.85), motion_mm=4.0, contrast=10.0, graded=True) for c in _PAROTIDS),
        posture_mm=16.0,
    ),
)  # fmt: skip
ABDOMEN = OnePatient(
    "abdomen", "Abdominal CT, one patient, simulated time points", "totalseg_abdomen", "RT Abdominal",
    {13: "bladder", 10: "colon", 11: "small bowel", 5: "stomach", 1: "liver", 2: "spleen"},
    {13: "Bladder", 10: "Sigmoid"},
    (
        "The paper has five real scans of one patient with bladder, sigmoid and rectum drawn by specialists. "
        "Ours are one "
        "real scan and four simulated from it: bladder filling, motion of the bowels, breathing and posture.",
        "The organs are those of a segmentation network. There is no sigmoid or rectum of its own: the whole "
        "colon stands "
        "beside the paper's sigmoid, and the paper's rectum has no partner.",
        "As in the paper, six pairs train and four test, and all show one patient: only the left-out scan is "
        "new. Each "
        "scan is left out once. Intervals and gates take scans, not patients, as the unit of chance.",
        "Warped labels are exact for the known deformation; real segmentations disagree, and sliding and gas "
        "are absent.",
        _WEIGHTS_NOTE,
    ),
    "TotalSegmentator example: Wasserthal et al., Radiology: Artificial Intelligence 2023; Apache-2.0.",
    folds=5, time_points=4, least_cases=1,
    plan=ChangePlan(
        (
            OrganChange(13, volume=(0.5, 2.0), contrast=15.0),
            OrganChange(10, volume=(0.8, 1.25), motion_mm=28.0, contrast=25.0),
            OrganChange(11, volume=(0.9, 1.1), motion_mm=22.0, contrast=10.0),
            OrganChange(5, volume=(0.6, 1.5), motion_mm=8.0, contrast=20.0),
            OrganChange(1, motion_mm=8.0),
        ),
        posture_mm=14.0, posture_width_mm=35.0,
    ),
)  # fmt: skip

ABDOMEN_BETWEEN = BetweenPatients(
    "abdomen-between", "Abdominal CT, between patients", "btcv_abdomen", "RT Abdominal",
    {6: "liver", 1: "spleen", 2: "right kidney", 3: "left kidney", 7: "stomach"}, {},
    (
        "The paper registers five scans of one patient; this experiment registers different patients, whose organs "
        "differ far more. No organ is the paper's: its figures are not comparable in level, only as differences.",
        "Of the thirteen organs those that are larger than a cell of the 25 mm control grid are learned and scored; "
        "gallbladder, adrenals, oesophagus, pancreas and vessels move inside one cell.",
        "Body sizes differ, so every registration, of every method, begins with an affine start; 'before' is after "
        "it. The paper names no start.",
        "Two folds by patient, 10 random training pairs, the 72 ordered pairs of the other fold tested.",
        _WEIGHTS_NOTE,
    ),
    "BTCV: Multi-Atlas Labeling Beyond the Cranial Vault, Landman et al., MICCAI 2015 workshop, Synapse syn3193805. "
    "Do not publish the pictures.",
    initial="affine",
)  # fmt: skip

EXPERIMENTS: dict[str, tuple[Protocol, ...]] = {
    "ibsr": (IBSR,),
    "parotid": (PAROTID_BETWEEN, PAROTID_TIME),
    "abdomen": (ABDOMEN, ABDOMEN_BETWEEN),
    "all": (IBSR, PAROTID_BETWEEN, PAROTID_TIME, ABDOMEN, ABDOMEN_BETWEEN),
}
"""Protocols by the word of the command line."""
