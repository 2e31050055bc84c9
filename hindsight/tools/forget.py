"""forget: removes memories for good."""

from __future__ import annotations

from dataclasses import dataclass

from hindsight.arguments import Filter, Flag, Text, argument
from hindsight.bank import Bank, Narrowing
from hindsight.errors import ConfirmationRequired, InvalidArgument
from hindsight.filters import Predicate
from hindsight.record import ForgetAnswer, Memory
from hindsight.tools import Tool
from hindsight.tools.narrowed import STRING

SAMPLE = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Forget:
    """The arguments of forget."""

    id: str | None = argument(Text(), "The memory's id", default=None)
    filter: Predicate | None = argument(Filter(), "Metadata expression, instead of an id", default=None)
    dry_run: bool | None = argument(Flag(), "Only count and show some; true by default with a filter", default=None)
    confirm: bool = argument(Flag(), "With a filter: true, and dry_run=false, to really remove", default=False)


async def _forget(bank: Bank, arguments: Forget) -> ForgetAnswer:
    if (arguments.id is None) == (arguments.filter is None):
        raise InvalidArgument("either id or filter must be given, and not both")
    if arguments.id is not None:
        if arguments.dry_run:
            return _sampled(1, [await bank.get(arguments.id)])
        await bank.forget(arguments.id)
        return {"count": 1}
    narrowing = Narrowing(predicate=arguments.filter, superseded=True)
    if arguments.dry_run is not False:
        return _sampled(*await bank.sample(narrowing, SAMPLE))
    if not arguments.confirm:
        raise ConfirmationRequired("removing by filter needs confirm=true")
    return {"count": await bank.forget_all(narrowing)}


def _sampled(count: int, some: list[Memory]) -> ForgetAnswer:
    return {"count": count, "sample": [{"id": memory.id, "text": memory.text[:200]} for memory in some]}


FORGET = Tool(
    name="forget",
    title="Forget",
    description="Use when the user asks that something be forgotten.",
    arguments=Forget,
    output={
        "type": "object",
        "properties": {
            "count": {"type": "integer"},
            "sample": {"type": "array", "items": {"type": "object", "properties": {"id": STRING, "text": STRING}}},
        },
        "required": ["count"],
    },
    run=_forget,
    writes=True,
    destructive=True,
)
