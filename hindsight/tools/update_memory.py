"""update_memory: changes a memory's categories; its text stays."""

from __future__ import annotations

from dataclasses import dataclass

from hindsight.arguments import Date, Json, Listed, OneOf, Text, argument
from hindsight.bank import Bank, Edit
from hindsight.record import JsonObject, MemoryRecord, MemoryType, as_record
from hindsight.tools import Tool
from hindsight.tools.narrowed import RECORD

KIB = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateMemory:
    """The arguments of update_memory."""

    id: str = argument(Text(), "The memory's id")
    context: str | None = argument(Text(most=128), "New category", default=None)
    type: str | None = argument(OneOf(tuple(MemoryType)), "New type", default=None)
    event_date: str | None = argument(Date(), "New date", default=None)
    tags: tuple[str, ...] | None = argument(Listed(Text(most=64), 32), "New tags, instead of the old", default=None)
    metadata: JsonObject | None = argument(Json(16 * KIB), "New metadata, instead of the old", default=None)


async def _update_memory(bank: Bank, arguments: UpdateMemory) -> MemoryRecord:
    edit = Edit(
        context=arguments.context,
        type=MemoryType(arguments.type) if arguments.type else None,
        event_date=arguments.event_date,
        tags=arguments.tags,
        metadata=arguments.metadata,
    )
    return as_record(await bank.update(arguments.id, edit))


UPDATE_MEMORY = Tool(
    name="update_memory",
    title="Recategorize a memory",
    description="Use to correct a memory's categories. To correct its text, retain the new one with supersedes.",
    arguments=UpdateMemory,
    output=RECORD,
    run=_update_memory,
    writes=True,
)
