"""Protocol of a commissioning, made from its record."""

from pathlib import Path

from regweave.clinic.commission import RECORD, CommissionRecord
from regweave.io import owned_path
from regweave.io.disk.files import sha256
from regweave.io.disk.records import read_record
from regweave.report.page import render

PROTOCOL = "protocol.html"


def write_protocol(folder: str | Path) -> Path:
    """Write ``protocol.html`` beside the record of a commissioning."""
    where = Path(folder)
    record = read_record(CommissionRecord, where / RECORD)
    context = {"record": record, "digest": sha256(where / RECORD)}
    with owned_path(where / PROTOCOL) as part:
        part.write_text(render("commission.j2", context), encoding="utf-8", newline="\n")
    return where / PROTOCOL
