"""retain: stores a memory."""

from __future__ import annotations

from dataclasses import dataclass

from hindsight.arguments import Date, OneOf, Text, argument
from hindsight.bank import Bank, Draft
from hindsight.record import MemoryType, RetainAnswer
from hindsight.tools import Tool

KIB = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Retain:
    """The arguments of retain."""

    content: str = argument(Text(most_bytes=1024 * KIB), "What to remember, in full sentences that stand alone")
    context: str = argument(Text(most=128), "Category, such as preferences or work", default="general")
    type: str | None = argument(
        OneOf(tuple(MemoryType)),
        "world: a fact; experience: what happened; opinion: a judgement; observation: derived from other memories. "
        "Decided from the text when absent",
        default=None,
    )
    event_date: str | None = argument(
        Date(), "When it happened, ISO 8601; read from the text when absent", default=None
    )
    session_id: str | None = argument(Text(most=256), "Conversation it comes from", default=None)


async def _retain(bank: Bank, arguments: Retain) -> RetainAnswer:
    return await bank.retain(
        Draft(
            content=arguments.content,
            context=arguments.context,
            type=MemoryType(arguments.type) if arguments.type else None,
            event_date=arguments.event_date,
            session_id=arguments.session_id,
        )
    )


RETAIN = Tool(
    name="retain",
    title="Remember",
    description="Use when the user shares a fact, preference, decision or milestone that later talks need.",
    arguments=Retain,
    output={
        "type": "object",
        "properties": {
            "id": {"type": "string"},
            "status": {"enum": ["stored", "known"]},
            "type": {"type": "string"},
            "event_date": {"type": ["string", "null"]},
            "superseded": {"type": "string"},
            "warnings": {"type": "array", "items": {"type": "string"}},
        },
        "required": ["id", "status", "type", "event_date"],
    },
    run=_retain,
    writes=True,
    sentence="Memory stored successfully",
)
