"""The nouns that every layer speaks of: BankId, Memory, MemoryType, and the shapes they take on the wire."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NotRequired, TypedDict

from hindsight.errors import InvalidArgument

JsonObject = dict[str, Any]

BANK_ID_RULE = (
    "a bank id has 1 to 128 characters: letters and digits of any script, space and . _ @ : + -, "
    "the first one a letter or digit, and no '..'"
)
_PLAIN_ID = re.compile(r"[a-z0-9](?:[a-z0-9._-]{0,98}[a-z0-9])?")
_PUNCTUATION = frozenset(" ._@:+-")


class MemoryType(StrEnum):
    """What kind of thing a memory says."""

    WORLD = "world"
    EXPERIENCE = "experience"
    OPINION = "opinion"
    OBSERVATION = "observation"


@dataclass(frozen=True, slots=True)
class BankId:
    """A bank's name; one that exists is a good one. Make it with `parse`."""

    text: str

    @classmethod
    def parse(cls, raw: str) -> BankId:
        """Normalise to NFC and check. Raises InvalidArgument with the rule."""
        text = unicodedata.normalize("NFC", raw)
        good = 1 <= len(text) <= 128 and text[0].isalnum() and ".." not in text
        if not (good and all(_allowed(character) for character in text)):
            raise InvalidArgument(BANK_ID_RULE, next_action="Choose another bank id for the URL.")
        return cls(text)

    @property
    def folder(self) -> str:
        """An injective name, good as a file's and as a Chroma collection's, also where case does not count."""
        if _PLAIN_ID.fullmatch(self.text):
            return f"b-{self.text}"
        encoded = self.text.encode()
        return f"x-{encoded.hex()}" if len(encoded) <= 100 else f"s-{hashlib.sha256(encoded).hexdigest()}"

    @classmethod
    def of_folder(cls, name: str) -> BankId | None:
        """The id whose `folder` this is; None when it does not tell."""
        kind, _, text = name.partition("-")
        try:
            found = cls.parse(bytes.fromhex(text).decode() if kind == "x" else text)
        except (ValueError, InvalidArgument):
            return None
        return found if found.folder == name else None


def _allowed(character: str) -> bool:
    # Combining marks: scripts such as Devanagari write letters with them.
    return character.isalnum() or character in _PUNCTUATION or unicodedata.category(character)[0] == "M"


@dataclass(frozen=True, slots=True)
class Traits:
    """What a memory's text says of itself that recall wants to know.

    `label` is the leading "Name:" in lower case, or empty; `only_asks` that it is nothing but a short question.
    """

    label: str
    asks: bool
    only_asks: bool
    tells_time: bool


@dataclass(frozen=True, slots=True)
class Memory:
    """One retained record.

    `event_date` is a date ('2024-05-03') or a UTC date-time ('2024-05-03T10:15:00Z'), `retained_at` a UTC date-time.
    """

    id: str
    text: str
    type: MemoryType
    context: str
    retained_at: str
    event_date: str | None = None
    session_id: str | None = None
    document_id: str | None = None
    tags: tuple[str, ...] = ()
    metadata: JsonObject = field(default_factory=dict)
    supersedes: str | None = None
    superseded_by: str | None = None


class Result(TypedDict):
    """A memory in the answer of `recall`: five keys in the plain case."""

    id: str
    text: str
    type: str
    context: str
    event_date: str | None
    truncated: NotRequired[bool]
    superseded_by: NotRequired[str]


class RecallAnswer(TypedDict):
    """The answer of `recall`, best first."""

    results: list[Result]
    more: NotRequired[bool]
    warnings: NotRequired[list[str]]


class RetainAnswer(TypedDict):
    """The structured answer of `retain`; `status` is 'stored' or 'known'."""

    id: str
    status: str
    type: str
    event_date: str | None
    superseded: NotRequired[str]
    warnings: NotRequired[list[str]]


class MemoryRecord(TypedDict):
    """A whole memory, flat, under the names of retain's arguments; `text` is the content."""

    id: str
    text: str
    type: str
    context: str
    event_date: str | None
    tags: list[str]
    metadata: JsonObject
    session_id: str | None
    document_id: str | None
    retained_at: str
    supersedes: str | None
    superseded_by: str | None
    truncated: NotRequired[bool]
    warnings: NotRequired[list[str]]


def as_record(memory: Memory) -> MemoryRecord:
    """A memory as it goes over the wire."""
    return MemoryRecord(
        id=memory.id,
        text=memory.text,
        type=memory.type.value,
        context=memory.context,
        event_date=memory.event_date,
        tags=list(memory.tags),
        metadata=memory.metadata,
        session_id=memory.session_id,
        document_id=memory.document_id,
        retained_at=memory.retained_at,
        supersedes=memory.supersedes,
        superseded_by=memory.superseded_by,
    )


class Row(TypedDict):
    """A memory in the answer of `list_memories`; `truncated` when `text` is only its start."""

    id: str
    text: str
    type: str
    context: str
    event_date: str | None
    tags: list[str]
    retained_at: str
    superseded_by: str | None
    truncated: NotRequired[bool]


class ListAnswer(TypedDict):
    """The answer of `list_memories`."""

    memories: list[Row]
    next_cursor: NotRequired[str]


class Sample(TypedDict):
    """A memory that `forget` would remove; `text` is its start."""

    id: str
    text: str


class ForgetAnswer(TypedDict):
    """The answer of `forget`: how many are gone, or, with a sample, how many would go."""

    count: int
    sample: NotRequired[list[Sample]]


class StatsAnswer(TypedDict):
    """The answer of `bank_stats`; counts are by value, `bytes` is the ledger on disk."""

    memories: int
    superseded: int
    types: dict[str, int]
    contexts: dict[str, int]
    tags: dict[str, int]
    first_date: str | None
    last_date: str | None
    embedder: str
    dimension: int
    bytes: int
