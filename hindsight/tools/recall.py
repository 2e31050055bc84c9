"""recall: finds memories by meaning and words."""

from __future__ import annotations

from dataclasses import dataclass

from hindsight.arguments import Text, Whole, argument
from hindsight.bank import Bank, Query
from hindsight.record import RecallAnswer
from hindsight.tools import Tool


@dataclass(frozen=True, slots=True, kw_only=True)
class Recall:
    """The arguments of recall."""

    query: str = argument(Text(most=10_000), "What to look for: a question or key words")
    max_results: int = argument(Whole(1, 100), "How many memories at most", default=10)


async def _recall(bank: Bank, arguments: Recall) -> RecallAnswer:
    return await bank.recall(Query(text=arguments.query, max_results=arguments.max_results))


RECALL = Tool(
    name="recall",
    title="Recall",
    description="Use at the start of a conversation, before a recommendation, and when earlier talks may matter.",
    arguments=Recall,
    output={
        "type": "object",
        "properties": {
            "results": {
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": {
                        "id": {"type": "string"},
                        "text": {"type": "string"},
                        "type": {"type": "string"},
                        "context": {"type": "string"},
                        "event_date": {"type": ["string", "null"]},
                        "truncated": {"type": "boolean"},
                        "superseded_by": {"type": "string"},
                    },
                    "required": ["id", "text", "type", "context", "event_date"],
                },
            },
            "more": {"type": "boolean"},
            "warnings": {"type": "array", "items": {"type": "string"}},
        },
        "required": ["results"],
    },
    run=_recall,
)
