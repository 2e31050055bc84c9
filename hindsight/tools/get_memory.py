"""get_memory: shows one memory whole."""

from __future__ import annotations

import json
from dataclasses import dataclass

from hindsight.arguments import Text, argument
from hindsight.bank import Bank
from hindsight.record import MemoryRecord, as_record
from hindsight.tools import Tool
from hindsight.tools.narrowed import RECORD

_MOST = 900_000  # bytes: the official clients drop a stream whose event has over 1 MiB


@dataclass(frozen=True, slots=True, kw_only=True)
class GetMemory:
    """The arguments of get_memory."""

    id: str = argument(Text(), "The memory's id")


async def _get_memory(bank: Bank, arguments: GetMemory) -> MemoryRecord:
    record = as_record(await bank.get(arguments.id))
    size = len(json.dumps(record["text"], ensure_ascii=False).encode())
    if size > _MOST:
        record["text"] = record["text"][: len(record["text"]) * _MOST // size]
        record["truncated"] = True
        record["warnings"] = ["the text is too long for one message; an export of the bank has it whole"]
    return record


GET_MEMORY = Tool(
    name="get_memory",
    title="Show a memory",
    description="Use when a recalled memory is truncated, or its tags, metadata or history matter.",
    arguments=GetMemory,
    output=RECORD,
    run=_get_memory,
)
