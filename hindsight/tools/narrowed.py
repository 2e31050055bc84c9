"""Arguments that narrow down which memories several tools look at, and the shape of a memory in their answers."""

from __future__ import annotations

from dataclasses import dataclass

from hindsight.arguments import Date, Filter, Flag, Listed, OneOf, Text, argument
from hindsight.bank import Narrowing
from hindsight.filters import Predicate
from hindsight.record import JsonObject, MemoryType

STRING: JsonObject = {"type": "string"}
STRINGS: JsonObject = {"type": "array", "items": STRING}
OPTIONAL: JsonObject = {"type": ["string", "null"]}
FIVE_KEYS = ["id", "text", "type", "context", "event_date"]
SHOWN: JsonObject = {"type": "object", "required": FIVE_KEYS}

RECORD: JsonObject = {
    "type": "object",
    "properties": {
        "tags": STRINGS,
        "metadata": {"type": "object"},
        "retained_at": STRING,
        "supersedes": OPTIONAL,
        "superseded_by": OPTIONAL,
    },
    "required": FIVE_KEYS,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Narrowed:
    """Arguments that must all hold for a memory to count."""

    types: tuple[str, ...] = argument(Listed(OneOf(tuple(MemoryType)), 4), "Only of these types", default=())
    contexts: tuple[str, ...] = argument(Listed(Text(), 100), "Only in these", default=())
    tags: tuple[str, ...] = argument(Listed(Text(), 32), "Only with these", default=())
    tags_match: str = argument(OneOf(("any", "all")), "Of tags", default="any")
    since: str | None = argument(Date(), "ISO 8601", default=None)
    until: str | None = argument(Date(), "ISO 8601, inclusive", default=None)
    filter: Predicate | None = argument(Filter(), "On metadata: CAST(val('$.team') AS text) = 'sales'", default=None)
    session_id: str | None = argument(Text(), "Only from this one", default=None)
    include_superseded: bool = argument(Flag(), "Replaced ones too", default=False)

    def narrowing(self) -> Narrowing:
        """What the bank is asked for."""
        return Narrowing(
            types=tuple(MemoryType(word) for word in self.types),
            contexts=self.contexts,
            tags=self.tags,
            all_tags=self.tags_match == "all",
            since=self.since,
            until=self.until,
            session_id=self.session_id,
            predicate=self.filter,
            superseded=self.include_superseded,
        )
