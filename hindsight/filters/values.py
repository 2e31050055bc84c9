"""What a filter computes with: text, numbers, booleans, dates, timestamps, lists, and None for SQL's NULL.

A cast or a comparison that makes no sense is None, never an error; these functions raise nothing on any value.
"""

from __future__ import annotations

import json
import math
import operator
import re
from collections.abc import Callable, Iterable
from datetime import UTC, date, datetime
from typing import Any

Cast = Callable[[object], object]
Comparison = Callable[[object, object], bool | None]

# Exact types: bool is a subclass of int, datetime of date. What is not here (None, lists, objects) equals nothing.
_KINDS: dict[type, str] = {
    str: "text",
    int: "number",
    float: "number",
    bool: "boolean",
    date: "date",
    datetime: "timestamp",
}
_NUMBER = re.compile(r"\s*[+-]?(?:[0-9]+(\.[0-9]*)?|(\.[0-9]+))([eE][+-]?[0-9]+)?\s*")
_INTEGER = re.compile(r"\s*[+-]?[0-9]+\s*")
_BOOLEANS = dict.fromkeys(("true", "t", "yes", "y", "on", "1"), True) | dict.fromkeys(
    ("false", "f", "no", "n", "off", "0"), False
)
_DATE_LENGTH = len("2024-10-01")


def comparison(holds: Callable[[Any, Any], bool]) -> Comparison:
    """`holds` made safe: None unless both sides are of one kind."""

    def compare(left: object, right: object) -> bool | None:
        kind, other = _KINDS.get(type(left)), _KINDS.get(type(right))
        if kind is None or other is None:
            return None
        if kind != other:
            if {kind, other} != {"date", "timestamp"}:
                return None
            left, right = to_timestamp(left), to_timestamp(right)
        return holds(left, right)

    return compare


equal = comparison(operator.eq)
COMPARISONS: dict[str, Comparison] = {
    "=": equal,
    "==": equal,
    "!=": comparison(operator.ne),
    "<>": comparison(operator.ne),
    "<": comparison(operator.lt),
    "<=": comparison(operator.le),
    ">": comparison(operator.gt),
    ">=": comparison(operator.ge),
}


def any_equal(value: object, members: Iterable[object]) -> bool | None:
    """SQL's IN: None when no member is equal but one can't be compared."""
    if value is None:
        return None
    found: bool | None = False
    for member in members:
        same = equal(value, member)
        if same:
            return True
        if same is None:
            found = None
    return found


def contains(left: object, right: object) -> bool | None:
    """Whether a list has all the members of another, or a single value; None when `left` is no list."""
    if not isinstance(left, list) or right is None:
        return None
    wanted = right if isinstance(right, list) else [right]
    return all(type(member) in _KINDS for member in wanted) and _keys(wanted) <= _keys(left)


def overlaps(left: object, right: object) -> bool | None:
    """Whether two lists have a member in common; None when either is no list."""
    if not isinstance(left, list) or not isinstance(right, list):
        return None
    return not _keys(left).isdisjoint(_keys(right))


def _keys(members: list[object]) -> set[tuple[str, object]]:
    return {(kind, member) for member in members if (kind := _KINDS.get(type(member)))}


def number(text: str) -> int | float | None:
    """The number that a text is, None when it is none or too large."""
    found = _NUMBER.fullmatch(text)
    if found is None:
        return None
    try:
        value = float(text) if any(found.groups()) else int(text)
    except ValueError:  # Python reads no integer of more than 4,300 digits
        return None
    return None if value in (math.inf, -math.inf) else value


def to_number(value: object) -> object:
    if isinstance(value, str):
        return number(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return int(value) if isinstance(value, int) else None


def to_integer(value: object) -> object:
    """Rounds half away from zero, as SQL does; text must be a whole number already."""
    if isinstance(value, str):
        return number(value) if _INTEGER.fullmatch(value) else None
    value = to_number(value)
    if not isinstance(value, float):
        return value
    whole = int(value)
    return whole + (value - whole >= 0.5) - (whole - value >= 0.5)


def to_boolean(value: object) -> object:
    if isinstance(value, str):
        return _BOOLEANS.get(value.strip().lower())
    return bool(value) if isinstance(value, bool | int | float) else None


def to_date(value: object) -> object:
    """A text's own day, whatever its offset; a timestamp's day in UTC."""
    if isinstance(value, datetime):
        return value.date()
    if not isinstance(value, str):
        return value if isinstance(value, date) else None
    text = value.strip()
    try:
        return date.fromisoformat(text) if len(text) <= _DATE_LENGTH else datetime.fromisoformat(text).date()
    except ValueError:
        return None


def to_timestamp(value: object) -> object:
    """An instant in UTC; a text without an offset is in UTC."""
    try:
        if isinstance(value, str):
            value = datetime.fromisoformat(value.strip())
        elif isinstance(value, date) and not isinstance(value, datetime):
            value = datetime(value.year, value.month, value.day)
        if not isinstance(value, datetime):
            return None
        if value.tzinfo is None:
            return value.replace(tzinfo=UTC)
        return value if value.tzinfo is UTC else value.astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def to_text(value: object) -> object:
    """SQL's spelling: true, 2.5, 2024-10-01; a list or an object as JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    if isinstance(value, date):
        return value.isoformat()
    if not isinstance(value, bool | int | float | list | dict):
        return None
    try:
        return json.dumps(value, ensure_ascii=False)
    except (ValueError, TypeError, RecursionError):  # 4,301 digits; what is not JSON; deeper than the stack
        return None


CASTS: dict[str, Cast] = {
    **dict.fromkeys(("TEXT", "VARCHAR", "STRING"), to_text),
    **dict.fromkeys(("INTEGER", "INT", "BIGINT", "SMALLINT"), to_integer),
    **dict.fromkeys(("NUMERIC", "DECIMAL", "FLOAT", "DOUBLE", "DOUBLE PRECISION", "REAL"), to_number),
    **dict.fromkeys(("BOOLEAN", "BOOL"), to_boolean),
    "DATE": to_date,
    **dict.fromkeys(("TIMESTAMP", "TIMESTAMPTZ", "DATETIME", "TIMESTAMP WITH TIME ZONE"), to_timestamp),
}
