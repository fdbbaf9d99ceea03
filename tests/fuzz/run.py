"""Mutation fuzzing of the files that users hand in, each through the command that reads it, in a child process.

    python tests/fuzz/run.py [--seconds 120] [--cases N] [--seed S] [--only CASE]

A case fails on a crash, a hang, too much memory, an internal error, files left behind, an error without a code, a file
that lost its end and is read all the same, two readings of one file that differ, and a change without meaning that
changes the reading. ``FUZZ_SEED`` and ``FUZZ_SECONDS`` stand for the options; without a seed the date is one. Files of
failed cases are kept in ``build/fuzz``; seed and case number give the same file again.
"""

import argparse
import collections
import os
import re
import shutil
import sys
import tempfile
import time
import zlib
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # children are forked; threads would not come along

import fuzz_child
import numpy as np
from fuzz_corpus import Sample, corpus
from fuzz_mutate import cut

import regweave.cli.app

KEPT = Path(__file__).parents[2] / "build" / "fuzz"
NEUTRAL_SHARE = 0.05
assert regweave.cli.app.make_app  # loaded once, here: a child has no time for it


@dataclass(frozen=True)
class Case:
    """A damaged file and what is known about it."""

    sample: Sample
    data: bytes
    done: str
    must_refuse: bool = False
    same_as_good: bool = False


def make_case(samples: list[Sample], seed: int, number: int) -> Case:
    """Return the case of that number: chosen by the seed alone."""
    rng = np.random.default_rng([seed, number])
    sample = samples[int(rng.integers(len(samples)))]
    if sample.neutral and rng.random() < NEUTRAL_SHARE:
        change = sample.neutral[int(rng.integers(len(sample.neutral)))]
        return Case(sample, change(sample.data), "neutral", same_as_good=True)
    if sample.whole and rng.random() < NEUTRAL_SHARE:
        return Case(sample, cut(sample.data, rng), "cut", must_refuse=True)
    data, done = sample.data, []
    for _ in range(1 if rng.random() < 0.7 else int(rng.integers(2, 5))):
        mutation = sample.mutations[int(rng.integers(len(sample.mutations)))]
        try:
            data = mutation(data, rng)
        except (OSError, EOFError, ValueError, zlib.error):  # the first change left nothing that the second can read
            break
        done.append(mutation.__name__)
        if not data:
            break
    return Case(sample, data, "+".join(done))


def judge(case: Case, folder: Path) -> tuple[str, fuzz_child.Outcome]:
    """Run a case in a fresh folder; "" where all is well, else what is not."""
    outcome = _run(case.sample, case.data, folder)
    if not outcome.good:
        return outcome.kind, outcome
    if case.must_refuse and outcome.kind == "accepted":
        return "a cut file was read", outcome
    if outcome.kind == "accepted":
        again = _run(case.sample, case.data, folder)
        if _reading(again) != _reading(outcome):
            return "two readings differ", again
    if case.same_as_good and _reading(_run(case.sample, case.sample.data, folder)) != _reading(outcome):
        return "a change without meaning changed the reading", outcome
    return "", outcome


def _run(sample: Sample, data: bytes, folder: Path) -> fuzz_child.Outcome:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name, content in {**sample.beside, sample.name: data}.items():
        (folder / name).write_bytes(content)
    return fuzz_child.run(sample.call, folder)


def _reading(outcome: fuzz_child.Outcome) -> tuple[int, str, dict[str, bytes]]:
    """What a user gets: status, output but for check sums, sizes and times, files."""
    text = re.sub(r"\b[0-9a-f]{64}\b|about [\d.]+ \w+|[\d.]+ (?:s|min|seconds)\b|\"bytes\": \d+", "", outcome.output)
    return outcome.status, text, outcome.files


def main() -> int:
    """Run cases until the time is over; the number of failed kinds decides the exit status."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=float(os.environ.get("FUZZ_SECONDS") or 120))
    parser.add_argument("--cases", type=int, default=10**9)
    parser.add_argument("--seed", type=int, default=int(os.environ.get("FUZZ_SEED") or time.time() // 86400))
    parser.add_argument("--only", type=int)
    options = parser.parse_args()
    print(f"fuzz: FUZZ_SEED={options.seed}", flush=True)
    counts: collections.Counter[str] = collections.Counter()
    failures, accepted = 0, set[int]()
    with tempfile.TemporaryDirectory(prefix="regweave-fuzz-") as name:
        work = Path(name)
        samples = corpus(work)
        end = time.monotonic() + options.seconds
        numbers = range(options.cases) if options.only is None else [options.only]
        for number in numbers:
            if time.monotonic() > end:
                break
            case = make_case(samples, options.seed, number)
            if id(case.sample) not in accepted:
                good = _run(case.sample, case.sample.data, work / "case")
                if good.kind != "accepted":
                    sys.exit(f"the good {case.sample.name} is not accepted: {good.kind}\n{good.errors}{good.output}")
                accepted.add(id(case.sample))
            wrong, outcome = judge(case, work / "case")
            counts[wrong or outcome.kind] += 1
            if wrong:
                failures += 1
                _tell(options.seed, number, case, wrong, outcome)
    print(f"fuzz: {counts.total()} cases, {dict(counts.most_common())}")
    return 1 if failures else 0


def _tell(seed: int, number: int, case: Case, wrong: str, outcome: fuzz_child.Outcome) -> None:
    KEPT.mkdir(parents=True, exist_ok=True)
    kept = KEPT / f"{seed}-{number}-{case.sample.name}"
    kept.write_bytes(case.data)
    call = " ".join(case.sample.call) if isinstance(case.sample.call, list) else "a reader in Python"
    last = (outcome.errors.strip() or outcome.output.strip()).splitlines()[-1:]
    left = f", left {sorted(outcome.files)[:3]}" if outcome.files and outcome.status else ""
    print(f"FAILED case {number} ({case.done}): {wrong}; regweave {call}; status {outcome.status}{left}; {last}")
    print(f"  kept {kept}; again: python tests/fuzz/run.py --seed {seed} --only {number}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
