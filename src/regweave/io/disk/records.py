"""JSON records: their base class with strict limits, their files, and the versions that made them.

A folder may come from a stranger. A record is refused as a whole where a part is of another kind than regweave writes;
keys that no field has are ignored.
"""

import json
import math
import platform
from collections.abc import Mapping
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from regweave import __version__
from regweave.errors import RegweaveError
from regweave.io.disk.files import read_json, shown
from regweave.io.disk.outputs import SAFE_ID, atomic_path

DEPENDENCIES = ("numpy", "scipy", "SimpleITK", "h5py", "nibabel", "pydantic")
"""Libraries whose versions can change a number."""


def plain(value: Any) -> Any:
    """Replace what JSON has no word for: numbers that are not finite become null."""
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def record_text(content: Mapping[str, Any]) -> str:
    """Return a JSON object as the text of a file."""
    return json.dumps(plain(content), indent=2) + "\n"


def write_record(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON object, whole or not at all."""
    with atomic_path(path) as part:
        part.write_text(record_text(content), encoding="utf-8")


@cache
def this_program() -> dict[str, Any]:
    """Versions of the program, of Python and of the libraries that compute; each is looked up in a file once."""
    return {
        "regweave": __version__, "python": platform.python_version(),
        "dependencies": {name: metadata.version(name) for name in DEPENDENCIES},
        "platform": platform.system() + "-" + platform.machine(),
    }  # fmt: skip


KINDS = {
    "list_type": "a list is needed", "model_type": "a table is needed", "dataclass_type": "a table is needed",
    "tuple_type": "a list is needed", "dict_type": "a table is needed", "float_type": "a number is needed",
    "int_type": "a whole number is needed", "string_type": "a text is needed", "missing": "it is missing",
    "string_pattern_mismatch": "the name is not one that regweave gives",
}  # fmt: skip
"""Plain words for what does not fit."""
LARGEST = 1e100  # Beyond this a number is none that a registration measures, and no axis can hold it


def _in_range(value: float) -> float:
    if math.isfinite(value) and abs(value) > LARGEST:
        raise ValueError(f"the number is beyond {LARGEST:g}")
    return value


Text = Annotated[str, Field(strict=True, max_length=10_000)]
Number = Annotated[float, Field(strict=True, ge=-LARGEST, le=LARGEST, allow_inf_nan=False)]
Whole = Annotated[int, Field(strict=True, ge=-(2**64), le=2**64)]  # Label values have up to 64 bits
Count = Annotated[int, Field(strict=True, ge=0, le=10**15)]
Known = Number | None
Measured = Annotated[
    float, Field(strict=True), BeforeValidator(lambda value: math.nan if value is None else value),
    AfterValidator(_in_range),
]  # fmt: skip
"""A number in memory; NaN, where nothing could be measured, is null in JSON."""
SafeName = Annotated[str, Field(pattern=f"^{SAFE_ID.pattern}$", max_length=200)]
"""A name that becomes part of a file's name: it leads nowhere else."""
SafePath = Annotated[str, Field(pattern=f"^{SAFE_ID.pattern}(/{SAFE_ID.pattern})*$", max_length=400)]
"""A file below the folder of the record."""


Record = TypeVar("Record", bound="RecordPart")


class RecordPart(BaseModel):
    """Table of a JSON record: lists become tuples, keys of tables become whole numbers, no scalar is converted."""

    model_config = ConfigDict(frozen=True)

    def content(self) -> dict[str, Any]:
        """Return the record as JSON values."""
        found: dict[str, Any] = plain(self.model_dump(mode="json", by_alias=True))
        return found


def read_record(kind: type[Record], path: Path) -> Record:
    """Read a JSON file and check it against its schema."""
    return checked(kind, read_json(path), path)


def checked(kind: type[Record], content: Mapping[str, Any], path: Path) -> Record:
    """Check the content of a record against its schema; E178 names the first place that does not fit."""
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=True)[0]
        place = ".".join(map(str, first["loc"]))[:80] or "it"
        text = KINDS.get(first["type"], first["msg"].removeprefix("Value error, "))
        found = "" if first["type"] in {"missing", "value_error"} else f", found {shown(first['input'])}"
        more = f" ({error.error_count()} faults in all)" if error.error_count() > 1 else ""
        message = f"'{path}' is not a record that regweave wrote: {place}: {text}{found}{more}"
        hint = "report on the folder as it was written, or make the result again"
        raise RegweaveError("E178", message, hint) from error


RESULT = "result.json"
RESULTS = "results.json"
REPORT = "report.html"
INDEX = "index.html"
"""A registration; an evaluation or a batch; the page of either, and the list of their registrations."""
PAGES = "pages"
PAGE_RECORD = "page.json"  # Registrations that an evaluation keeps, and in each the pair and the method it belongs to
DEMO = "demo.json"
DEMO_MODEL = "weights.json"
DEMO_EVALUATION = "evaluation"  # Summary, learned model and evaluation of a demo
