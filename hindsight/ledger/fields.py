"""The fields of a memory as a ledger that may be damaged has them, and the same ones made readable.

A field that can't be what it should be gets what else is known of it, so that the rest of the memory is not lost with
it. Texts come as bytes: SQLite hands out no text that is not UTF-8.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

from hindsight.ledger import Span
from hindsight.record import MemoryType
from hindsight.retrieval.traits import traits_of

FIRST_MOMENT = "1970-01-01T00:00:00.000000Z"


@dataclass(frozen=True, slots=True)
class Fields:
    """A memory's fields by name, all of them readable, and which of them were `damaged`."""

    values: Mapping[str, Any]
    damaged: tuple[str, ...]

    @property
    def tags(self) -> set[str]:
        return set(json.loads(self.values["tags"]))


def readable(row: Sequence[object], before: str = FIRST_MOMENT) -> Fields | None:
    """The fields of a row in the order of FIELDS; None when there is nothing of its text.

    `before` is when another memory, the one before it if need be, was retained.
    """
    values: dict[str, Any] = {"before": before}
    damaged = []
    for (name, (read, instead)), value in zip(_FORMS.items(), row, strict=True):
        try:
            values[name] = read(value)
        except (ValueError, TypeError, RecursionError):
            values[name] = instead(values, value)
            damaged.append(name)
    del values["before"]
    return Fields(values, tuple(damaged)) if values["text"] else None


def _text(value: object) -> str:
    if not isinstance(value, bytes):
        raise TypeError
    return value.decode()


def _some(value: object) -> str:
    text = _text(value)
    if not text:
        raise ValueError
    return text


def _optional(value: object) -> str | None:
    return None if value is None else _text(value)


def _identity(value: object) -> bytes:
    if not isinstance(value, bytes) or not value:
        raise TypeError
    return value


def _type(value: object) -> str:
    return MemoryType(_text(value)).value


def _moment(value: object) -> str:
    text = _text(value)
    datetime.fromisoformat(text)
    return text


def _day(value: object) -> str | None:
    text = _optional(value)
    if text is not None:
        date.fromisoformat(text[:10])
    return text


def _number(value: object) -> int:
    if not isinstance(value, int):
        raise TypeError
    return value


def _flag(value: object) -> int:
    if value not in (0, 1):
        raise ValueError
    return _number(value)


def _tags(value: object) -> str:
    text = _text(value)
    tags = json.loads(text)
    if not isinstance(tags, list) or not all(isinstance(tag, str) for tag in tags):
        raise TypeError
    "".join(tags).encode()  # half a character can't be stored as a tag
    return text


def _metadata(value: object) -> str:
    text = _text(value)
    if not isinstance(json.loads(text), dict):
        raise TypeError
    return text


def _in_part(values: Mapping[str, Any], value: object) -> str:
    """What a text still says, with a mark wherever it says nothing."""
    return value.decode(errors="replace") if isinstance(value, bytes) else ""


def _span(values: Mapping[str, Any]) -> Span:
    if values["event_date"] is None:
        moment = datetime.fromisoformat(values["retained_at"])
        return Span.between(moment, moment)
    start = datetime.combine(date.fromisoformat(values["event_date"][:10]), time(), UTC)
    return Span.between(start, start + timedelta(days=1) if start.date() < date.max else start)


Read = Callable[[object], object]
Instead = Callable[[Mapping[str, Any], object], object]

# How each field is read, and what stands for it, given those before it, when that fails.
_FORMS: dict[str, tuple[Read, Instead]] = {
    "id": (_some, lambda values, value: str(uuid.uuid4())),
    "identity": (_identity, lambda values, value: hashlib.sha256(values["id"].encode()).digest()),
    "text": (_some, _in_part),
    "type": (_type, lambda values, value: MemoryType.WORLD.value),
    "context": (_text, lambda values, value: "general"),
    "retained_at": (_moment, lambda values, value: values["before"]),
    "event_date": (_day, lambda values, value: None),
    "time_start": (_number, lambda values, value: _span(values).start),
    "time_end": (_number, lambda values, value: max(values["time_start"], _span(values).end)),
    "session_id": (_optional, lambda values, value: None),
    "document_id": (_optional, lambda values, value: None),
    "tags": (_tags, lambda values, value: "[]"),
    "metadata": (_metadata, lambda values, value: "{}"),
    "supersedes": (_optional, lambda values, value: None),
    "superseded_by": (_optional, lambda values, value: None),
    "label": (_text, lambda values, value: traits_of(values["text"]).label),
    "asks": (_flag, lambda values, value: int(traits_of(values["text"]).asks)),
    "only_asks": (_flag, lambda values, value: int(traits_of(values["text"]).only_asks)),
    "tells_time": (_flag, lambda values, value: int(traits_of(values["text"]).tells_time)),
}
FIELDS = tuple(_FORMS)
