"""bank_stats: counts what the bank holds."""

from __future__ import annotations

from dataclasses import dataclass

from hindsight.bank import Bank
from hindsight.record import JsonObject, StatsAnswer
from hindsight.tools import Tool
from hindsight.tools.narrowed import OPTIONAL

COUNTS: JsonObject = {"type": "object", "additionalProperties": {"type": "integer"}}


@dataclass(frozen=True, slots=True, kw_only=True)
class BankStats:
    """bank_stats has no arguments."""


async def _bank_stats(bank: Bank, arguments: BankStats) -> StatsAnswer:
    stats, embedder = await bank.stats()
    return StatsAnswer(
        memories=stats.memories,
        superseded=stats.superseded,
        types=stats.types,
        contexts=stats.contexts,
        tags=stats.tags,
        first_date=stats.first_date,
        last_date=stats.last_date,
        embedder=embedder.name,
        dimension=embedder.dimension,
        bytes=stats.bytes,
    )


BANK_STATS = Tool(
    name="bank_stats",
    title="Bank statistics",
    description="Use to see which contexts, types and tags the memory has.",
    arguments=BankStats,
    output={
        "type": "object",
        "properties": {
            "memories": {"type": "integer"},
            "types": COUNTS,
            "contexts": COUNTS,
            "tags": COUNTS,
            "first_date": OPTIONAL,
            "last_date": OPTIONAL,
        },
        "required": ["memories", "types", "contexts", "tags"],
    },
    run=_bank_stats,
)
