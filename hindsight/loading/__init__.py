"""Files of many kinds read into what `retain` takes: one `Item` per memory, or `Broken` with the reason.

Readers are generators over an open binary file; NDJSON, tables and texts are read piece by piece, whatever their size.
A place such as 'notes.csv:12' tells where something stands.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO

from hindsight.record import JsonObject

LONGEST = 2 * 1024 * 1024  # bytes of one line


@dataclass(frozen=True, slots=True)
class Item:
    """One memory to be: the arguments of `retain`, as they stand in the file."""

    place: str
    fields: JsonObject


@dataclass(frozen=True, slots=True)
class Broken:
    """What can't be read, and why; `raw` is it as it stands, where that is a line."""

    place: str
    reason: str
    raw: bytes = b""


Found = Item | Broken


def lines_of(file: IO[bytes]) -> Iterator[tuple[int, bytes]]:
    """The lines with their numbers, without line ends and a byte order mark; of too long a one LONGEST + 1 bytes."""
    number = 0
    while line := file.readline(LONGEST + 1):
        number += 1
        rest = line
        while len(rest) > LONGEST and not rest.endswith(b"\n"):
            rest = file.readline(LONGEST + 1)
        if number == 1:
            line = line.removeprefix(b"\xef\xbb\xbf")
        yield number, line.rstrip(b"\r\n")
