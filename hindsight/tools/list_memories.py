"""list_memories: goes through memories in the order of retaining, page by page."""

from __future__ import annotations

import re
from dataclasses import dataclass

from hindsight.arguments import OneOf, Text, Whole, argument
from hindsight.bank import Bank
from hindsight.errors import InvalidArgument
from hindsight.record import ListAnswer, Memory, Row
from hindsight.tools import Tool
from hindsight.tools.narrowed import SHOWN, STRING, Narrowed

_SHOWN = 500  # characters of a text: 500 memories stay below what clients take in one event
_CURSOR = re.compile(r"(newest|oldest):([0-9]{1,18})")


@dataclass(frozen=True, slots=True, kw_only=True)
class ListMemories(Narrowed):
    """The arguments of list_memories."""

    order: str = argument(OneOf(("newest", "oldest")), "Which come first", default="newest")
    limit: int = argument(Whole(1, 500), "At most", default=50)
    cursor: str | None = argument(Text(), "next_cursor of the page before", default=None)


async def _list_memories(bank: Bank, arguments: ListMemories) -> ListAnswer:
    memories, more = await bank.page(
        arguments.narrowing(),
        newest=arguments.order == "newest",
        beyond=_beyond(arguments.cursor, arguments.order),
        most=arguments.limit,
    )
    answer = ListAnswer(memories=[_row(memory) for memory in memories])
    if more is not None:
        answer["next_cursor"] = f"{arguments.order}:{more}"
    return answer


def _beyond(cursor: str | None, order: str) -> int | None:
    if cursor is None:
        return None
    found = _CURSOR.fullmatch(cursor)
    if found is None or found[1] != order:
        raise InvalidArgument(f"cursor must be the next_cursor of a list in the order {order}", argument="cursor")
    return int(found[2])


def _row(memory: Memory) -> Row:
    row = Row(
        id=memory.id,
        text=memory.text[:_SHOWN],
        type=memory.type.value,
        context=memory.context,
        event_date=memory.event_date,
        tags=list(memory.tags),
        retained_at=memory.retained_at,
        superseded_by=memory.superseded_by,
    )
    if len(memory.text) > _SHOWN:
        row["truncated"] = True
    return row


LIST_MEMORIES = Tool(
    name="list_memories",
    title="List memories",
    description="Use to review or count memories rather than to find one.",
    arguments=ListMemories,
    output={
        "type": "object",
        "properties": {"memories": {"type": "array", "items": SHOWN}, "next_cursor": STRING},
        "required": ["memories"],
    },
    run=_list_memories,
)
