"""A tool's arguments: declared once as a dataclass, shown as a JSON schema, read forgivingly but never silently.

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Recall:
        query: str = argument(Text(most=10_000), "What to look for")
        max_results: int = argument(Whole(1, 100), "How many at most", default=10)

    arguments, warnings = read_arguments(Recall, {"query": "tea", "max_results": "3"})

What has been read is right and has its type; nothing behind this file checks it again.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC
from typing import Any, Protocol, TypeVar

from hindsight.errors import ContentTooLarge, InvalidArgument
from hindsight.filters import Predicate, parse_filter
from hindsight.messages import DEEPEST, depth
from hindsight.record import JsonObject
from hindsight.understanding.when import parse_when

ArgumentsT = TypeVar("ArgumentsT")
_SHOWN = 60
_NAMED = 10  # unknown arguments that are told one by one
_WHOLE = re.compile(r"\s*[+-]?[0-9]{1,18}(?:\.0+)?\s*")


class Kind(Protocol):
    """What an argument may be."""

    def schema(self) -> JsonObject:
        """The JSON schema of a proper value."""
        ...

    def read(self, value: object) -> Any:
        """The value in its own type. Raises ValueError saying what is allowed, ContentTooLarge when it is too long."""
        ...


def argument(kind: Kind, about: str, *, default: Any = dataclasses.MISSING) -> Any:
    """A dataclass field that is read by `kind`; without a default it is required."""
    return dataclasses.field(default=default, metadata={"kind": kind, "about": about})


def input_schema(arguments: type) -> JsonObject:
    """The JSON schema of a dataclass made of `argument` fields."""
    properties, required = {}, []
    # Required ones first: that is what a model reads first.
    for field in sorted(dataclasses.fields(arguments), key=lambda field: field.default is not dataclasses.MISSING):
        properties[field.name] = {**field.metadata["kind"].schema(), "description": field.metadata["about"]}
        if field.default is dataclasses.MISSING:
            required.append(field.name)
        elif field.default is not None and field.default != ():
            properties[field.name]["default"] = field.default
    return {"type": "object", "properties": properties, "required": required}


def read_arguments(arguments: type[ArgumentsT], given: Mapping[str, object]) -> tuple[ArgumentsT, list[str]]:
    """Read `given` into `arguments`; returns it with warnings about names that nobody knows.

    Raises InvalidArgument (or ContentTooLarge) naming the field, what came and what is allowed.
    """
    fields = {field.name: field for field in dataclasses.fields(arguments)}  # type: ignore[arg-type]  # a dataclass by convention
    values = {}
    for name, field in fields.items():
        value = given.get(name)
        if value is not None:
            values[name] = _read(name, field.metadata["kind"], value)
        elif field.default is dataclasses.MISSING:
            raise InvalidArgument(f"{name} is required and was not given", argument=name)
    unknown = [name for name in given if name not in fields]
    warnings = [_unknown(name, list(fields)) for name in unknown[:_NAMED]]
    if more := len(unknown) - len(warnings):
        warnings.append(f"{more} more arguments are not known and were ignored")
    return arguments(**values), warnings


def _read(name: str, kind: Kind, value: object) -> Any:
    try:
        return kind.read(value)
    except ValueError as error:
        raise InvalidArgument(f"{name} must be {error}; got {_shown(value)}", argument=name) from error
    except ContentTooLarge as error:
        raise ContentTooLarge(f"{name} {error.message}", argument=name) from error


def _unknown(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name[:_SHOWN], known, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known)}"
    return f"the argument {_shown(name)} is not known and was ignored; {hint}"


def _shown(value: object) -> str:
    text = json.dumps(value, ensure_ascii=True, default=str)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _characters(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("text")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ValueError("valid Unicode, without lone surrogates") from error
    return value


@dataclass(frozen=True, slots=True)
class Text:
    """Text of 1 to `most` characters, or `most_bytes` bytes of UTF-8, that is not only white space."""

    most: int | None = None
    most_bytes: int | None = None

    def schema(self) -> JsonObject:
        return {"type": "string", "maxLength": self.most} if self.most else {"type": "string"}

    def read(self, value: object) -> str:
        text = _characters(value)
        if not text.strip():
            raise ValueError("text that is not empty or only white space")
        if self.most is not None and len(text) > self.most:
            raise ValueError(f"text of at most {self.most:,} characters, not {len(text):,}")
        if self.most_bytes is not None and len(text.encode()) > self.most_bytes:
            raise ContentTooLarge(f"has {len(text.encode()):,} bytes; at most {self.most_bytes:,} are allowed")
        return text


@dataclass(frozen=True, slots=True)
class Whole:
    """A whole number from `least` to `most`; '10' and 10.0 are 10."""

    least: int
    most: int

    def schema(self) -> JsonObject:
        return {"type": "integer", "minimum": self.least, "maximum": self.most}

    def read(self, value: object) -> int:
        if isinstance(value, str) and _WHOLE.fullmatch(value):
            value = int(value.partition(".")[0])
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not self.least <= value <= self.most:
            raise ValueError(f"a whole number from {self.least:,} to {self.most:,}")
        return value


@dataclass(frozen=True, slots=True)
class Flag:
    """True or false; the words 'true' and 'false' count."""

    def schema(self) -> JsonObject:
        return {"type": "boolean"}

    def read(self, value: object) -> bool:
        if isinstance(value, bool):
            return value
        word = value.strip().lower() if isinstance(value, str) else ""
        if word not in ("true", "false"):
            raise ValueError("true or false")
        return word == "true"


@dataclass(frozen=True, slots=True)
class OneOf:
    """One of a few words; case does not matter."""

    words: tuple[str, ...]

    def schema(self) -> JsonObject:
        return {"type": "string", "enum": list(self.words)}

    def read(self, value: object) -> str:
        word = value.strip().lower() if isinstance(value, str) else ""
        if word not in self.words:
            raise ValueError(f"one of {', '.join(self.words)}")
        return word


@dataclass(frozen=True, slots=True)
class Date:
    """An ISO 8601 date or date-time, kept as text: the bank knows the zone of one without an offset."""

    def schema(self) -> JsonObject:
        return {"type": "string"}

    def read(self, value: object) -> str:
        text = _characters(value)
        parse_when(text, UTC)
        return text


@dataclass(frozen=True, slots=True)
class Filter:
    """A metadata expression, see docs/filters.md; read into a predicate. Raises InvalidFilter."""

    def schema(self) -> JsonObject:
        return {"type": "string"}

    def read(self, value: object) -> Predicate:
        return parse_filter(_characters(value))


@dataclass(frozen=True, slots=True)
class Listed:
    """Up to `most` values of one kind; 'a, b' and '["a", "b"]' count as two."""

    of: Kind
    most: int

    def schema(self) -> JsonObject:
        return {"type": "array", "items": self.of.schema(), "maxItems": self.most}

    def read(self, value: object) -> tuple[Any, ...]:
        values = self._split(value) if isinstance(value, str) else value
        if not isinstance(values, list) or len(values) > self.most:
            raise ValueError(f"a list of at most {self.most}")
        try:
            return tuple(dict.fromkeys(self.of.read(each) for each in values))
        except ValueError as error:
            raise ValueError(f"a list whose every value is {error}") from error

    @staticmethod
    def _split(text: str) -> object:
        if text.lstrip().startswith("["):
            try:
                return json.loads(text)
            except (ValueError, RecursionError) as error:
                raise ValueError("a list, or text that reads as a JSON list") from error
        return [part.strip() for part in text.split(",") if part.strip()]


@dataclass(frozen=True, slots=True)
class Json:
    """Any JSON object of at most `most_bytes` bytes; a string that reads as one counts."""

    most_bytes: int

    def schema(self) -> JsonObject:
        return {"type": "object"}

    def read(self, value: object) -> JsonObject:
        try:
            found = json.loads(value) if isinstance(value, str) else value
            text = json.dumps(found, ensure_ascii=False, allow_nan=False)
        except (ValueError, TypeError, RecursionError) as error:
            raise ValueError("a JSON object") from error
        if not isinstance(found, dict):
            raise ValueError("a JSON object")
        if depth(found) > DEEPEST:  # in text, it may be deeper than a message can be that brings it back
            raise ValueError(f"a JSON object of at most {DEEPEST} levels")
        size = len(_characters(text).encode())
        if size > self.most_bytes:
            raise ValueError(f"a JSON object of at most {self.most_bytes:,} bytes, not {size:,}")
        return found
