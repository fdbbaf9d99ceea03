"""Protocol of a commissioning, made from its record."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from regweave.io import owned_path
from regweave.io.disk.files import sha256
from regweave.io.disk.records import Count, Known, Number, RecordPart, Text, read_record
from regweave.report.page import render

RECORD = "commission.json"
PROTOCOL = "protocol.html"
Passed = Literal["pass", "fail"]


class TrialCheck(RecordPart):
    """A number with its limit and the limit's source."""

    words: Text
    value: Known
    limit: Number
    source: Text
    word: Passed


class TrialRecord(RecordPart):
    """Numbers of one phantom."""

    name: Text
    what: Text
    kind: Text
    word: Passed
    points: Count
    mean_mm: Known
    p95_mm: Known
    max_mm: Known
    dice: dict[str, Known]
    seconds: Number
    checks: list[TrialCheck]


class CommissionRecord(RecordPart):
    """``commission.json``."""

    seed: int
    word: Passed
    phantom: Text
    trials: list[TrialRecord]
    program: dict[str, Any]


def write_protocol(folder: str | Path) -> Path:
    """Write ``protocol.html`` beside the record of a commissioning."""
    where = Path(folder)
    record = read_record(CommissionRecord, where / RECORD)
    context = {"record": record, "digest": sha256(where / RECORD)}
    with owned_path(where / PROTOCOL) as part:
        part.write_text(render("commission.j2", context), encoding="utf-8", newline="\n")
    return where / PROTOCOL
