"""get_memory: shows one memory whole."""

from __future__ import annotations

from dataclasses import dataclass

from hindsight.arguments import Text, argument
from hindsight.bank import Bank
from hindsight.record import MemoryRecord, as_record
from hindsight.tools import Tool
from hindsight.tools.narrowed import RECORD


@dataclass(frozen=True, slots=True, kw_only=True)
class GetMemory:
    """The arguments of get_memory."""

    id: str = argument(Text(), "The memory's id")


async def _get_memory(bank: Bank, arguments: GetMemory) -> MemoryRecord:
    return as_record(await bank.get(arguments.id))


GET_MEMORY = Tool(
    name="get_memory",
    title="Show a memory",
    description="Use when a recalled memory is truncated, or its tags, metadata or history matter.",
    arguments=GetMemory,
    output=RECORD,
    run=_get_memory,
)
