"""recall: finds memories by meaning, words and time."""

from __future__ import annotations

from dataclasses import dataclass

from hindsight.arguments import Text, Whole, argument
from hindsight.bank import Bank, Query
from hindsight.record import RecallAnswer
from hindsight.tools import Tool
from hindsight.tools.narrowed import SHOWN, Narrowed


@dataclass(frozen=True, slots=True, kw_only=True)
class Recall(Narrowed):
    """The arguments of recall."""

    query: str = argument(Text(most=10_000), "A question or key words")
    max_results: int = argument(Whole(1, 100), "At most", default=10)
    max_tokens: int = argument(Whole(1, 1_000_000), "Answer length", default=2048)


async def _recall(bank: Bank, arguments: Recall) -> RecallAnswer:
    query = Query(
        text=arguments.query,
        max_results=arguments.max_results,
        max_tokens=arguments.max_tokens,
        narrowing=arguments.narrowing(),
    )
    return await bank.recall(query)


RECALL = Tool(
    name="recall",
    title="Recall",
    description="Use at the start of a conversation, before a recommendation, and for continuity.",
    arguments=Recall,
    output={
        "type": "object",
        "properties": {"results": {"type": "array", "items": SHOWN}, "more": {"type": "boolean"}},
        "required": ["results"],
    },
    run=_recall,
)
