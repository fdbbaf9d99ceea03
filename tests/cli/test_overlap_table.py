"""The table of many structures: the mean, then the worst."""

from rich.console import Console

from regweave.cli.tables import overlap_table
from regweave.measures.scores import PairScore, StructureScore


def test_many_structures_are_cut_to_the_worst(capsys):
    rows = [StructureScore(n, f"region {n}", "scored", 0.1, n / 100, dice_start=0.2) for n in range(1, 55)]
    score = PairScore((StructureScore(60, "extra", "no reference"), *reversed(rows)))
    Console(width=80).print(overlap_table(score, plain=True))
    lines = [line.split() for line in capsys.readouterr().out.splitlines()[1:]]
    assert lines[0] == ["structure", "as", "loaded", "after", "start", "after"]
    assert lines[1] == ["mean", "0.100", "0.200", "0.275"]
    assert [line[1] for line in lines[2:12]] == [str(n) for n in range(1, 11)]
    assert lines[12] == ["45", "more", "in", "result.json"]
    assert len(lines) == 13
