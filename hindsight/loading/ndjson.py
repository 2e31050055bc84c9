"""NDJSON: one JSON object a line, or one string, under the names of retain's arguments."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import IO

from hindsight.loading import LONGEST, Broken, Found, Item, lines_of

ERROR = "_error"  # what `hindsight load --errors` adds to a line; not read


def read_ndjson(file: IO[bytes], name: str) -> Iterator[Found]:
    """One memory a line; blank lines are left out."""
    for number, line in lines_of(file):
        if line.strip():
            yield _item(f"{name}:{number}", line)


def _item(place: str, line: bytes) -> Found:
    if len(line) > LONGEST:
        return Broken(place, f"the line has more than {LONGEST:,} bytes, which is the most allowed")
    try:
        found = json.loads(line.decode())
    except (ValueError, RecursionError) as error:
        return Broken(place, f"not valid JSON in UTF-8: {error}", line)
    if isinstance(found, str):
        return Item(place, {"content": found})
    if not isinstance(found, dict):
        return Broken(place, "not a JSON object", line)
    found.pop(ERROR, None)
    return Item(place, found)
