"""retain: stores a memory."""

from __future__ import annotations

from dataclasses import dataclass

from hindsight.arguments import Date, Json, Listed, OneOf, Text, argument
from hindsight.bank import Bank
from hindsight.drafts import NEW, Draft, Origin
from hindsight.record import JsonObject, MemoryType, RetainAnswer
from hindsight.tools import Tool
from hindsight.tools.narrowed import STRING

KIB = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Retain:
    """The arguments of retain."""

    content: str = argument(Text(most_bytes=1024 * KIB), "What to remember, in sentences that stand alone")
    context: str = argument(Text(most=128), "Category, e.g. preferences", default="general")
    type: str | None = argument(
        OneOf(tuple(MemoryType)),
        "Fact, event, judgement, or drawn from other memories; found from content if absent",
        default=None,
    )
    event_date: str | None = argument(Date(), "ISO 8601; read from content if absent", default=None)
    tags: tuple[str, ...] = argument(Listed(Text(most=64), 32), "Labels", default=())
    metadata: JsonObject | None = argument(Json(16 * KIB), "Further data, returned as given", default=None)
    session_id: str | None = argument(Text(most=256), "Source conversation", default=None)
    document_id: str | None = argument(Text(most=256), "Source document", default=None)
    supersedes: str | None = argument(Text(), "Id of the memory it replaces", default=None)


async def _retain(bank: Bank, arguments: Retain) -> RetainAnswer:
    return await bank.retain(draft_of(arguments))


def draft_of(arguments: Retain, origin: Origin = NEW) -> Draft:
    """What the arguments want to have retained; `origin` is what an exported memory brings along."""
    return Draft(
        content=arguments.content,
        context=arguments.context,
        type=MemoryType(arguments.type) if arguments.type else None,
        event_date=arguments.event_date,
        tags=arguments.tags,
        metadata=arguments.metadata or {},
        session_id=arguments.session_id,
        document_id=arguments.document_id,
        supersedes=arguments.supersedes,
        origin=origin,
    )


RETAIN = Tool(
    name="retain",
    title="Remember",
    description="Use when the user shares facts, preferences, decisions or milestones.",
    arguments=Retain,
    output={
        "type": "object",
        "properties": {"id": STRING, "status": {"enum": ["stored", "known"]}},
        "required": ["id", "status", "type", "event_date"],
    },
    run=_retain,
    writes=True,
    sentence="Memory stored successfully",
)
