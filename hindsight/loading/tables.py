"""CSV and TSV: a memory per row, the columns by their names; columns that no argument has become metadata."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping
from typing import IO

from hindsight.loading import LONGEST, Broken, Found, Item
from hindsight.record import JsonObject

# retain's arguments, and what an export adds.
FIELDS = frozenset(
    "content context type event_date tags metadata session_id document_id supersedes id retained_at identity".split()
)


def read_table(file: IO[bytes], name: str, *, separator: str, columns: Mapping[str, str]) -> Iterator[Found]:
    """One memory a row; `columns` names the column of a field where the header does not."""
    csv.field_size_limit(LONGEST)
    text = io.TextIOWrapper(file, encoding="utf-8-sig", errors="surrogateescape", newline="")
    rows = csv.reader(text, delimiter=separator, strict=True)
    try:
        header = [column.strip() for column in next(rows, [])]
        names = _names(header, columns)
        if "content" not in names:
            known = ", ".join(header) or "none"
            yield Broken(f"{name}:1", f"no column is named content; say --map content=COLUMN. Columns: {known}")
            return
        while (row := next(rows, None)) is not None:
            if any(row):
                yield _item(f"{name}:{rows.line_num}", names, row)
    except csv.Error as error:
        yield Broken(f"{name}:{rows.line_num}", f"the rest is not read: {error}")


def _names(header: list[str], columns: Mapping[str, str]) -> list[str]:
    mapped = {column: field for field, column in columns.items()}
    names = [mapped.get(column, column) for column in header]
    if "content" not in names:
        names = ["content" if name == "text" else name for name in names]
    return names


def _item(place: str, names: list[str], row: list[str]) -> Found:
    if len(row) > len(names):
        return Broken(place, f"the row has {len(row)} values and the header {len(names)}")
    given = {name: value for name, value in zip(names, row, strict=False) if name and value.strip()}
    fields: JsonObject = {name: value for name, value in given.items() if name in FIELDS}
    rest: JsonObject = {name: value for name, value in given.items() if name not in FIELDS}
    if rest:
        fields["metadata"] = _metadata(fields.get("metadata"), rest)
    return Item(place, fields)


def _metadata(given: str | None, rest: JsonObject) -> JsonObject | str:
    try:
        found = json.loads(given) if given else {}
    except ValueError:
        found = None
    return {**rest, **found} if isinstance(found, dict) else given or ""
