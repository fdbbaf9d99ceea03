"""Golden results: what presets, shipped models and commands give on generated pairs.

``python tests/golden/make.py`` writes ``numbers.json`` and ``pages`` again and says what changed; the tests compare.
"""

import hashlib
import json
import platform
import re
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import scipy

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(1, str(Path(__file__).parents[1] / "datasets"))
import chain
import doors
from texts import change, page_text

import regweave as rw
from regweave import _core

__all__ = ["change", "page_text"]
NUMBERS = Path(__file__).with_name("numbers.json")
PRESETS = ("paper@1", "default@1")
HOUNSFIELD = {"head-neck": 1400, "planted": 2000}
"""Width of a CT's scale: enough of each phantom must look like air, and enough like water."""
PHANTOMS = (("head-neck", "mr"), ("head-neck", "ct"), ("planted", "ct"), ("cohort", "mr"))
SAMPLES = 24
"""Voxels whose displacement is kept, evenly through the grid."""
Case = Callable[[], rw.Result]
Pair = dict[str, doors.Part]


@cache
def pair(kind: str, modality: str) -> Pair:
    """Return a small pair; a CT one has air below and numbers on the Hounsfield scale."""
    found = doors.phantom(kind, seed=5)
    if modality == "mr":
        return found
    low, bright = (np.float32(v) for v in np.percentile(found["moving"][0], [0.5, 99]))
    for part in ("fixed", "moving"):
        data, affine = found[part]
        found[part] = ((HOUNSFIELD[kind] * (data - low) / (bright - low) - 1000).astype(np.float32), affine)
    return found


def cases() -> dict[str, Case]:
    """Return a registration for each name."""
    return dict(_cases())


def _cases() -> Iterator[tuple[str, Case]]:
    for preset in PRESETS:
        for kind, modality in PHANTOMS:
            yield (
                f"{preset} on {kind} {modality}",
                partial(_register, _stated(pair(kind, modality), modality), preset=preset),
            )
    for name in doors.shipped_models():
        modality, classes = doors.model_classes(name)
        for kind, _ in (p for p in PHANTOMS if p[1] == modality):
            given = _stated(pair(kind, modality), modality)
            masked = {**given, **{k: _known(given[k], classes) for k in ("fixed_labels", "moving_labels")}}
            yield f"{name} on {kind} with masks", partial(_register, masked, model=name)
            blind = {k: part for k, part in masked.items() if k != "moving_labels"}
            yield f"{name} on {kind} without moving mask", partial(_register, blind, model=name)


def _stated(found: Pair, modality: str) -> dict[str, Any]:
    """Return the arguments of a registration; a phantom is no CT by its histogram, so its modality is stated."""
    return found if modality == "mr" else {**found, "fixed_modality": modality, "moving_modality": modality}


def _known(labels: doors.Part, classes: tuple[int, ...]) -> doors.Part:
    return np.where(np.isin(labels[0], classes), labels[0], 0), labels[1]


def _register(given: dict[str, Any], **options: Any) -> rw.Result:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # models meet images that they were not made for
        return rw.register(**given, **options)


def numbers(result: rw.Result) -> dict[str, Any]:
    """Return what is kept of a result: its bits, and numbers that another processor gives as well."""
    field = doors.field_of(result)
    places = np.linspace(0, field[0].size - 1, SAMPLES + 2).astype(int)[1:-1]
    return {
        "sha256": hashlib.sha256(field.tobytes()).hexdigest(),
        "displacement_mm": [[round(float(x), 3) for x in field.reshape(3, -1)[:, v]] for v in places],
        "mean_length_mm": round(float(np.sqrt((field.astype(np.float64) ** 2).sum(axis=0)).mean()), 4),
        "dice": {str(k): round(float(row["after"]), 4) for k, row in result.dice.items()},
        "energies": [float(f"{step.energy:.6g}") for step in result.steps],
        "modality": result.provenance.modality.bank,
    }


def machine() -> str:
    """Name what bits depend on: the processor and the libraries that compute."""
    info = Path("/proc/cpuinfo")
    text = info.read_text(encoding="utf-8").split("\n\n")[0] if info.exists() else platform.processor()
    told = re.findall(r"^(?:vendor_id|cpu family|model|stepping|flags)\s*: (.*)$", text, flags=re.MULTILINE)
    kind = hashlib.sha256("\n".join(told or [text]).encode()).hexdigest()[:12]
    build = "" if _core.BUILD == "avx2" else f", {_core.BUILD} kernels"
    return f"{platform.machine()} processor {kind}, numpy {np.__version__}, scipy {scipy.__version__}{build}"


def differences(old: dict[str, Any], new: dict[str, Any], *, same_machine: bool) -> list[str]:
    """Say in what two sets of numbers of one case differ by more than the machine may account for."""
    found = []
    if old["modality"] != new["modality"]:
        found.append(f"modality {old['modality']} -> {new['modality']}")
    for key, places, tolerance in (("displacement_mm", "mm", 0.05), ("mean_length_mm", "mm", 0.01)):
        change = float(np.abs(np.array(old[key]) - np.array(new[key])).max())
        if change > tolerance:
            found.append(f"{key} by {change:.3f} {places}")
    for label in sorted({*old["dice"], *new["dice"]}):
        a, b = (d["dice"].get(label, float("nan")) for d in (old, new))
        if not (abs(a - b) <= 0.003 or (np.isnan(a) and np.isnan(b))):
            found.append(f"Dice of {label} {a} -> {b}")
    if len(old["energies"]) != len(new["energies"]) or not np.allclose(old["energies"], new["energies"], rtol=1e-3):
        found.append(f"energies {old['energies']} -> {new['energies']}")
    if same_machine and old["sha256"] != new["sha256"] and not found:
        found.append("the last bits of the field")
    return found


def main() -> None:
    """Write the numbers of this machine and tell what changed."""
    before = json.loads(NUMBERS.read_text(encoding="utf-8")) if NUMBERS.exists() else {"machine": "", "cases": {}}
    after: dict[str, Any] = {"machine": machine(), "cases": {}}
    for name, case in cases().items():
        after["cases"][name] = numbers(case())
        if name not in before["cases"]:
            print(f"{name}: new")
            continue
        same = before["machine"] == after["machine"]
        changed = differences(before["cases"][name], after["cases"][name], same_machine=same)
        print(f"{name}: {'; '.join(changed) or 'unchanged'}", flush=True)
    text = json.dumps(after, indent=1, allow_nan=True)
    # One line for each vector: a difference of two versions is then easy to read.
    NUMBERS.write_text(_flat(text) + "\n", encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:
        _write_texts(chain.texts(Path(folder)))


def _write_texts(texts: dict[str, str]) -> None:
    for path in chain.TEXTS.glob("*.txt"):
        if path.name not in texts:
            path.unlink()
            print(f"{path.name}: gone")
    for name, text in texts.items():
        path = chain.TEXTS / name
        old = path.read_text(encoding="utf-8") if path.exists() else ""
        print(f"{name}: {change(old, text, same_machine=True) or 'unchanged'}" if old else f"{name}: new", flush=True)
        path.write_text(text, encoding="utf-8")


def _flat(text: str) -> str:
    return re.sub(r"\[\s+([-\d.eE+,\s]+?)\s+\]", lambda m: "[" + " ".join(m[1].split()) + "]", text)


if __name__ == "__main__":
    main()
