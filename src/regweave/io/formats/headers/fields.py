"""Fields of a text header, each taken by exactly one rule: a stated number of numbers, a word of a list, a switch."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from regweave.errors import RegweaveError
from regweave.io.disk.files import damaged, open_file
from regweave.io.disk.limits import MAX_HEADER_BYTES
from regweave.io.disk.texts import shown

WHOLE = re.compile(r"[+-]?\d{1,18}", re.ASCII)
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
LONGEST_NUMBER = 64
SWITCHES = {"true": True, "t": True, "1": True, "false": False, "f": False, "0": False}


def contradiction(subject: str, reason: str) -> RegweaveError:
    """Make the E113 error of a header that says two things which cannot both hold."""
    message = f"the header of {subject} contradicts itself: {reason}"
    return RegweaveError("E113", message, "export the file again, or correct its header")


def read_block(path: Path) -> bytes:
    """Read as much of a file as a header can take."""
    with open_file(path) as stream:
        return stream.read(MAX_HEADER_BYTES)


def decode(line: bytes) -> str:
    """Turn a line of a header into text; names of files keep their bytes, whatever they are."""
    return os.fsdecode(line.rstrip(b"\r"))


@dataclass(frozen=True)
class Fields:
    """Fields of one header by name, and how messages call its file."""

    subject: str
    values: Mapping[str, str]

    def bad(self, key: str, needed: str) -> RegweaveError:
        """Make the E102 error of a field that cannot be understood."""
        return damaged(self.subject, f"{key} is {shown(self.values[key])}, needed is {needed}")

    def first_of(self, *keys: str) -> str | None:
        """Return which of several names for one thing is there; where there are two, they must say the same."""
        found = [key for key in keys if key in self.values]
        if len({self.values[key].lower() for key in found}) > 1:
            raise contradiction(self.subject, f"{' and '.join(found)} mean the same thing and differ")
        return found[0] if found else None

    def numbers(self, key: str, count: int) -> list[float]:
        """Return exactly so many finite numbers."""
        return self.parse_numbers(key, self.values[key].split(), count)

    def parse_numbers(self, key: str, tokens: Sequence[str], count: int) -> list[float]:
        """Return finite numbers from the tokens of a field."""
        if len(tokens) != count:
            reason = f"{key} has {len(tokens)} numbers, for its dimensions needed are {count}"
            raise contradiction(self.subject, reason)
        if not all(len(token) <= LONGEST_NUMBER and NUMBER.fullmatch(token) for token in tokens):
            raise self.bad(key, f"{count} numbers")
        values = [float(token) for token in tokens]
        if not all(map(math.isfinite, values)):
            raise self.bad(key, f"{count} finite numbers")
        return values

    def whole_numbers(self, key: str, count: int) -> list[int]:
        """Return exactly so many whole numbers."""
        tokens = self.values[key].split()
        if len(tokens) != count:
            reason = f"{key} has {len(tokens)} numbers, for its dimensions needed are {count}"
            raise contradiction(self.subject, reason)
        if not all(WHOLE.fullmatch(token) for token in tokens):
            raise self.bad(key, f"{count} whole numbers")
        return [int(token) for token in tokens]

    def whole_number(self, key: str, default: int) -> int:
        """Return one whole number."""
        return self.whole_numbers(key, 1)[0] if key in self.values else default

    def switch(self, key: str, default: bool) -> bool:
        """Return a switch that is True or False."""
        if key not in self.values:
            return default
        found = SWITCHES.get(self.values[key].lower())
        if found is None:
            raise self.bad(key, "True or False")
        return found

    def sizes(self, key: str, count: int) -> list[int]:
        """Return the positive sizes of so many axes."""
        found = self.whole_numbers(key, count)
        if min(found) < 1:
            raise self.bad(key, "sizes above 0")
        return found


def without_trailing_ones(sizes: Sequence[int]) -> tuple[int, ...]:
    """Leave out axes of length one beyond the third."""
    kept = list(sizes)
    while len(kept) > 3 and kept[-1] == 1:
        kept.pop()
    return tuple(kept)
