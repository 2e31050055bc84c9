"""What a tool is: a name, when to use it, its arguments, and what it does with the bank it is given.

A tool never learns which bank it works on, so it can't reach another one. One file a tool.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from hindsight.bank import Bank
from hindsight.record import JsonObject

ArgumentsT = TypeVar("ArgumentsT")


@dataclass(frozen=True, slots=True)
class Tool(Generic[ArgumentsT]):
    """One tool.

    `description` says when to use it and nothing else: clients pay for it in every conversation.
    `arguments` is a dataclass of `hindsight.arguments.argument` fields, `output` the JSON schema of what `run` returns.
    `run` may raise any HindsightError. `sentence`, when set, is the answer's text instead of the JSON.
    `writes` hides the tool from keys that may only read; `destructive` and `idempotent` are MCP's hints.
    """

    name: str
    title: str
    description: str
    arguments: type[ArgumentsT]
    output: JsonObject
    run: Callable[[Bank, ArgumentsT], Awaitable[Mapping[str, Any]]]
    writes: bool = False
    destructive: bool = False
    idempotent: bool = True
    sentence: str | None = None


AnyTool = Tool[Any]
