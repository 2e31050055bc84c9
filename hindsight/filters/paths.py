"""The JSONPath of `val` and `exists`: names, indexes and [*], from the top of the metadata.

Walked step by step, not by recursion: neither a long path nor a deep record can use up the stack.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection

from hindsight.filters.lexer import Token, content, refusal
from hindsight.record import JsonObject

Step = str | int | None  # a member's name, an item's index, or None for all of them

_STEP = re.compile(
    r"""
      (?P<every> \.\* | \[ \s* \* \s* \] )
    | \. (?P<name> [^\s.\[\]*'"()?]+ )
    | \[ \s* (?P<index> [0-9]{1,9} ) \s* \]
    | \[ \s* (?P<quoted> ' (?: [^'\\] | \\. )*+ ' | " (?: [^"\\] | \\. )*+ " ) \s* \]
    """,
    re.VERBOSE | re.DOTALL,
)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_EXPECTED = 'a path such as $.name, $["two words"], $.list[0] or $.list[*]'


def parse_path(token: Token) -> tuple[Step, ...]:
    """The steps that a text token names. Raises InvalidFilter at the token, naming the part that is wrong."""
    path = content(token.text).strip()
    steps: list[Step] = []
    at = 1
    while path.startswith("$") and (found := _STEP.match(path, at)):
        steps.append(_step(found))
        at = found.end()
    if at < len(path) or not path.startswith("$"):
        raise refusal(token.position, _EXPECTED, repr(path[:80]))
    return tuple(steps)


def _step(found: re.Match[str]) -> Step:
    if found["every"]:
        return None
    if found["index"]:
        return int(found["index"])
    return found["name"] or _ESCAPED.sub(r"\1", found["quoted"][1:-1])


def first_match(steps: tuple[Step, ...]) -> Callable[[JsonObject], object]:
    """What `val` reads: the first match in document order, None without one."""
    if len(steps) == 1 and isinstance(steps[0], str):
        name = steps[0]
        return lambda metadata: metadata.get(name)
    return lambda metadata: next(iter(_matches(steps, metadata)), None)


def any_match(steps: tuple[Step, ...]) -> Callable[[JsonObject], bool]:
    """What `exists` asks; a JSON null is there."""
    return lambda metadata: bool(_matches(steps, metadata))


def _matches(steps: tuple[Step, ...], metadata: JsonObject) -> list[object]:
    nodes: list[object] = [metadata]
    for step in steps:
        nodes = [child for node in nodes for child in _children(node, step)]
    return nodes


def _children(node: object, step: Step) -> Collection[object]:
    if isinstance(node, dict):
        if step is None:
            return node.values()
        return (node[step],) if isinstance(step, str) and step in node else ()
    if isinstance(node, list):
        if step is None:
            return node
        return (node[step],) if isinstance(step, int) and step < len(node) else ()
    return ()
