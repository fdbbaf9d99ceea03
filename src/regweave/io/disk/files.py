"""Files for reading: names, presence, digests, limits of length and memory; parsers of JSON, TOML and delimited text.

The parsers refuse what has two readings, for all files of the program: repeated keys, numbers that are not finite (NaN,
Infinity, 1e999), deep nesting and long numbers are a `ValueError`. Each reader turns it into the error code of its kind
of file.
"""

import csv
import hashlib
import io
import json
import math
import os
import re
import stat
import sys
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from regweave.errors import RegweaveError, ResourceError
from regweave.notices import terminal_safe

try:
    import resource
except ImportError:  # Windows, where no limit of memory is known
    resource = None  # type: ignore[assignment]

DOUBLE_SUFFIXES = (".nii.gz", ".mrk.json")
MAX_TEXT_BYTES = 64 << 20
"""Largest model, settings file, list, table of names or points: the largest that training writes has 100 kB."""
MAX_HEADER_BYTES = 1 << 20  # Largest text header of an image
MAX_ARCHIVE_BYTES = 1 << 30  # Most that the arrays of one archive may take: maps of nodes have some megabytes
BYTES_PER_VALUE = 10
"""Memory of a voxel beside its stored form: as float32, as float32 again while it is checked, and two marks."""
exists, is_file, is_folder = os.path.exists, os.path.isfile, os.path.isdir
"""They never fail: a name that no file can have, too long or with a NUL, is none."""


def suffix_of(path: Path) -> str:
    """Return the suffix in lower case, both parts where two belong together."""
    name = path.name.lower()
    double = next((suffix for suffix in DOUBLE_SUFFIXES if name.endswith(suffix) and name != suffix), None)
    return double or path.suffix.lower()


def stem_of(path: Path) -> str:
    """Return the name without the suffix of `suffix_of`."""
    return path.name[: len(path.name) - len(suffix_of(path))]


def open_file(path: str | Path) -> io.BufferedReader:
    """Open a regular file for reading, or raise E101.

    Pipes and devices, which have no end, are recognised by the open descriptor, which no rename can exchange. Opening
    never blocks.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError) as error:  # a NUL in the name is a ValueError
        reason = f"{error.strerror} (errno {error.errno})" if isinstance(error, OSError) else str(error)
        raise RegweaveError("E101", f"cannot open '{path}': {reason}", "check the name and the permissions") from error
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise RegweaveError("E101", f"'{path}' is a folder, a file is needed", "name the file inside it")
    message = f"'{path}' is a pipe or a device, a regular file is needed"
    raise RegweaveError("E101", message, "write the content to a file first")


def require_file(path: str | Path) -> Path:
    """Return the path of a regular file that can be opened, or raise E101."""
    with open_file(path):
        return Path(path)


def sha256(path: str | Path) -> str:
    """Return the SHA-256 of a file as 64 hexadecimal digits."""
    with open_file(path) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def damaged(subject: str, reason: str) -> RegweaveError:
    """Make the E102 error of a file whose bytes are not what its header promises."""
    return RegweaveError("E102", f"{subject} is damaged: {reason}", "copy or export the file again")


def contradiction(subject: str, reason: str) -> RegweaveError:
    """Make the E113 error of a header with two statements that exclude each other."""
    message = f"the header of {subject} contradicts itself: {reason}"
    return RegweaveError("E113", message, "export the file again, or correct its header")


def require_memory(needed: int, subject: str) -> None:
    """Raise E140 where a header asks for more memory than there is, before any of it is taken."""
    free = available_memory()
    if needed > free:
        message = f"{subject} needs about {needed / 2**20:.0f} MB to be read and {free / 2**20:.0f} MB are free"
        raise ResourceError("E140", message, "crop or downsample the image, or use a machine with more memory")


def available_memory(*, taken: bool = False) -> int:
    """Return the bytes that this process may still take: of the machine, its container and its own limit.

    With those that are ``taken``, all of the machine, or of the container where that is less.
    """
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else sys.maxsize
    with suppress(OSError, ValueError):
        total = min(total, int(Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii")))
    if taken:
        return total
    limits = [total]
    with suppress(OSError, ValueError):
        text = Path("/proc/meminfo").read_text(encoding="ascii")
        limits += [int(kb) << 10 for kb in re.findall(r"^MemAvailable:\s*(\d+) kB", text, flags=re.MULTILINE)]
    if resource is not None and (soft := resource.getrlimit(resource.RLIMIT_AS)[0]) != resource.RLIM_INFINITY:
        limits.append(soft)
    return min(limits)


def peak_memory_mb() -> float:
    """Most memory that this process has held so far, in megabytes; 0 where the system does not count it."""
    if resource is None:
        return 0.0
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2 ** (20 if sys.platform == "darwin" else 10)


MAX_JSON_CHARACTERS = 1 << 25  # The worst JSON of this length, lists of lists, is parsed within ten seconds
MAX_TOML_CHARACTERS = 1 << 20  # Settings are far shorter, and TOML is parsed slowly
MAX_NESTING = 64  # Deepest lists and tables in JSON and TOML
MAX_DIGITS = 40  # Longest whole number in JSON and TOML
LONGEST_SHOWN = 40  # Characters of a token that a message repeats
CELL_ENDS = re.compile(r"[\t\n\v\f\r\x1c-\x1f\x85\u2028\u2029]+")
"""What some program reads as the end of a line or of a cell."""
FORMULA_STARTS = ("=", "+", "-", "@")


def read_text(path: str | Path, limit: int = MAX_TEXT_BYTES) -> str:
    """Read a whole text file in UTF-8, with or without a byte order mark."""
    with open_file(path) as stream:
        content = stream.read(limit + 1)
    if len(content) > limit:
        message = f"'{path}' is longer than {limit} bytes, the most that is read of a text file"
        raise RegweaveError("E114", message, "check that it is the file you mean")
    return content.decode("utf-8-sig")


def parse_json(text: str) -> Any:
    """Parse strict JSON (RFC 8259), or raise ValueError."""
    if len(text) > MAX_JSON_CHARACTERS:
        raise ValueError(f"it has {len(text)} characters, allowed are {MAX_JSON_CHARACTERS}")
    try:
        content = json.loads(
            text, object_pairs_hook=_unique, parse_int=_integer, parse_float=_finite, parse_constant=_finite
        )
    except RecursionError as error:
        raise ValueError(f"it nests deeper than {MAX_NESTING} levels") from error
    if isinstance(content, dict | list):
        _require_bounds(content)
    return content


def parse_toml(text: str) -> dict[str, Any]:
    """Parse TOML 1.0, or raise ValueError."""
    if len(text) > MAX_TOML_CHARACTERS:
        raise ValueError(f"it has {len(text)} characters, allowed are {MAX_TOML_CHARACTERS}")
    try:
        content = tomllib.loads(text, parse_float=_finite)
    except RecursionError as error:
        raise ValueError(f"it nests deeper than {MAX_NESTING} levels") from error
    _require_bounds(content, numbers=True)
    return content


def parse_rows(lines: Sequence[str], delimiter: str = ",") -> list[list[str]]:
    """Parse delimited text (RFC 4180), one list of cells a record, or raise ValueError."""
    try:
        return list(csv.reader(lines, delimiter=delimiter))
    except csv.Error as error:
        raise ValueError(str(error)) from error


def parse_table(text: str, delimiter: str = ",") -> list[dict[str, str]]:
    """Parse delimited text with a header line: cells by column, names of columns in lower case.

    A line may be shorter than the header, and cells without a column are refused.
    """
    rows = [row for row in parse_rows(text.splitlines(), delimiter) if row]
    if not rows:
        return []
    columns = [name.strip().lower() for name in rows[0]]
    if len(set(columns)) < len(columns):
        raise ValueError("a column is repeated in its first line")
    if any(len(row) > len(columns) for row in rows):
        raise ValueError("a line has more cells than the first line has columns")
    return [dict(zip(columns, row, strict=False)) for row in rows[1:]]


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object from a file; E101 where there is no such file, E102 where it holds something else."""
    try:
        found = parse_json(read_text(path))
    except ValueError as error:
        raise damaged(f"'{path}'", f"it is no JSON ({error})") from error
    if not isinstance(found, dict):
        raise damaged(f"'{path}'", f"it holds a {type(found).__name__}, not an object")
    return found


def table_cell(text: str) -> str:
    r"""Return a text as one cell of a table: on one line, and no formula of a spreadsheet."""
    line = terminal_safe(CELL_ENDS.sub(" ", text)).strip()
    return f"'{line}" if line.startswith(FORMULA_STARTS) else line


def write_tsv(stream: IO[str], rows: Sequence[Mapping[str, Any]], columns: Sequence[str] = ()) -> None:
    """Write rows with tabs between the cells; numbers have six digits, and texts are no formulas."""

    def text(cell: Any) -> str:
        cell = "n/a" if cell is None else cell
        return f"{cell:.6g}" if isinstance(cell, float) else table_cell(cell) if isinstance(cell, str) else str(cell)

    columns = columns or list(dict.fromkeys(name for row in rows for name in row))
    writer = csv.writer(stream, delimiter="\t", lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([text(row.get(name)) for name in columns] for row in rows)


def shown(token: object) -> str:
    """Quote what was found, cut where it is long."""
    text = str(token)
    return repr(text if len(text) <= LONGEST_SHOWN else text[:LONGEST_SHOWN] + "…")


def some(names: Sequence[str], most: int = 5) -> str:
    """List the first of some names."""
    return ", ".join(names[:most]) + (" …" if len(names) > most else "")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        # Each key is taken out where it is met first.
        twice = next(key for key, _ in pairs if found.pop(key, pairs) is pairs)
        raise ValueError(f"the key {shown(twice)} is repeated")
    return found


def _integer(text: str) -> int:
    if len(text) > MAX_DIGITS:
        raise ValueError(f"a number of {len(text)} digits, allowed are {MAX_DIGITS}")
    return int(text)


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"the number {shown(text)} is not finite")
    return value


def _require_bounds(content: Any, *, numbers: bool = False) -> None:
    """Bound the nesting of a content, and the whole numbers of TOML, whose parser has no hook for them."""
    level, depth = [content], 0
    while level:
        depth += 1
        if depth > MAX_NESTING:
            raise ValueError(f"it nests deeper than {MAX_NESTING} levels")
        inside = [outer.values() if type(outer) is dict else outer for outer in level]
        if numbers and any(isinstance(one, int) and abs(one) >= 10**MAX_DIGITS for items in inside for one in items):
            raise ValueError(f"a number of more than {MAX_DIGITS} digits")
        level = [one for items in inside for one in items if type(one) in (dict, list)]
