"""Evaluations of made-up scores, without a registration."""

from collections.abc import Collection, Mapping, Sequence

from regweave.jobs.runner import PairNumbers
from regweave.measures.verdict import default_rules
from regweave.study.evaluate import Evaluation, MethodRecord, PairInputs, PairResult, compare, verdict_of

RULES = default_rules()


def evaluation(
    dice: Mapping[str, Sequence[float | None]],
    groups: Sequence[str] = "abcdefgh",
    failed: Collection[tuple[str, str]] = (),
    methods: Mapping[str, Mapping[str, object]] | None = None,
    notes: Sequence[str] = (),
) -> Evaluation:
    """Return an evaluation with the Dice of one structure by method in each pair; None where one image lacks it."""
    results = []
    for method, values in dice.items():
        for pair, value in zip(groups, values, strict=False):
            state = {None: "no reference", 0.0: "vanished"}.get(value, "scored")
            row = {"label": 4, "name": "organ", "dice_before": None if value is None else 0.4, "dice_after": value}
            row |= {"state": state, "hd95_mm": 2.0, "assd_mm": 1.0}
            content = {"structures": [row], "seconds": 1.0, "peak_mb": 9.0, "smoothness": 0.1}
            content |= {"regularity": {"folding_fraction": 0.0, "sdlogj": 0.1}}
            error = "E102: x" if (method, pair) in failed else None
            numbers = None if error else PairNumbers.model_validate(content)
            verdict = verdict_of(error, numbers, RULES)
            results.append(PairResult(id=pair, method=method, error=error, verdict=verdict, scores=numbers))
    found = Evaluation(
        notes=tuple(notes),
        pairs=tuple(PairInputs(id=pair, group=pair) for pair, _ in zip(groups, values, strict=False)),
        methods=tuple(MethodRecord(name=name, **(methods or {}).get(name, {})) for name in dice),
        reference="uniform" if "uniform" in dice else next(iter(dice)),
        rules=RULES,
        results=tuple(results),
    )
    return found.model_copy(update={"comparison": compare(found)})
