"""On phantoms where another metric is right in each organ, what is learned beats every tuned baseline by a margin."""

import pytest

from planted import PLANTED, PLANTED_RIGHT, planted_pair
from regweave.io import write_image, write_labels
from regweave.jobs.table import PairFiles, write_pairs
from regweave.study.evaluate import evaluate
from regweave.training.options import TrainOptions
from regweave.training.run import train

SETTINGS = """
name = "planted"
modality = "mr"
smoothness = 1.0
engine = "trws"
class_rule = "foreground"
class_at = "anchored"
class_reach = 1.5
loss = "voxel"
levels = [
  {spacing_mm = 48.0, voxels_per_spacing = 6.0, support = 5, steps = 4},
  {spacing_mm = 24.0, voxels_per_spacing = 6.0, support = 5, steps = 4},
  {spacing_mm = 12.0, voxels_per_spacing = 6.0, support = 5, steps = 4},
]
[banks]
mr = [{name = "sad", metric = "sad"}, {name = "mi", metric = "mi", support = 3}, {name = "ncc", metric = "ncc"}]
"""
LEAST_GAIN = 0.03


def write_phantoms(folder, seeds):
    pairs = []
    for seed in seeds:
        pair = planted_pair(seed)
        files = {n: folder / f"{seed}-{n}.nii.gz" for n in ("fixed", "moving", "fixed_labels", "moving_labels")}
        for name, path in files.items():
            (write_labels if name.endswith("labels") else write_image)(path, getattr(pair, name))
        pairs.append(PairFiles(id=f"p{seed}", group=f"p{seed}", **files))
    path = folder / f"{seeds[0]}.csv"
    write_pairs(path, pairs)
    return path


@pytest.mark.slow
def test_learned_weights_win_on_held_out_phantoms(tmp_path):
    (tmp_path / "planted.toml").write_text(SETTINGS)
    seen, unseen = write_phantoms(tmp_path, range(40, 48)), write_phantoms(tmp_path, range(400, 406))
    options = TrainOptions(C=300.0, alpha=0.05, eta=10.0)
    model = train(seen, tmp_path / "m.json", **vars(options), config=tmp_path / "planted.toml")
    found = evaluate(unseen, tmp_path / "out", models=[tmp_path / "m.json"], baselines=True, train_pairs=seen)
    learned = next(m.name for m in found.methods if m.model is not None and not m.predicted_classes)
    baselines = [m.name for m in found.methods if m.is_baseline]
    assert len(baselines) == 4  # three metrics and the uniform mix
    for rival in baselines:
        assert (found.dice(learned) - found.dice(rival)).mean() >= LEAST_GAIN, rival
    w = model.weights
    largest = {PLANTED[c]: w.members[int(w.matrix[:, w.classes.index(c)].argmax())] for c in PLANTED}
    assert {organ: largest[organ] for organ in PLANTED_RIGHT} == dict(PLANTED_RIGHT)
