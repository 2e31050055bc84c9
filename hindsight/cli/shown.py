"""Answers of tools as lines for people to read."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from hindsight.record import JsonObject


def lines_of(tool: str, answer: JsonObject) -> Iterator[str]:
    """An answer of the tool, line by line."""
    return _FORMS.get(tool, _fields)(answer)


def printable(text: str) -> str:
    """`text` without what a terminal would obey: a memory may hold anything."""
    return "".join(c if c in "\n\t" or c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def table(rows: list[tuple[str, ...]]) -> Iterator[str]:
    """Rows with their columns one below the other."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _retained(answer: JsonObject) -> Iterator[str]:
    yield "Memory stored successfully" if answer["status"] == "stored" else "This memory is known already"
    yield _about(answer)


def _recalled(answer: JsonObject) -> Iterator[str]:
    yield from _memories(answer["results"])
    if not answer["results"]:
        yield "Nothing found."
    if answer.get("more"):
        yield "There is more: raise --max-results or --max-tokens."


def _listed(answer: JsonObject) -> Iterator[str]:
    yield from _memories(answer["memories"])
    if not answer["memories"]:
        yield "No memories."
    if "next_cursor" in answer:
        yield f"There is more: --cursor {answer['next_cursor']}"


def _memories(found: list[JsonObject]) -> Iterator[str]:
    for memory in found:
        yield memory["text"] + (" […]" if memory.get("truncated") else "")
        yield f"    {_about(memory)}"


def _about(memory: Mapping[str, Any]) -> str:
    parts = [memory["id"], memory["type"], memory.get("context"), memory["event_date"], *memory.get("tags", ())]
    if memory.get("superseded"):
        parts.append(f"supersedes {memory['superseded']}")
    if memory.get("superseded_by"):
        parts.append(f"superseded by {memory['superseded_by']}")
    return " · ".join(part for part in parts if part)


def _forgotten(answer: JsonObject) -> Iterator[str]:
    count = answer["count"]
    if "sample" not in answer:
        yield f"Forgotten: {count:,}"
        return
    yield f"Would be forgotten: {count:,}"
    for memory in answer["sample"]:
        yield f"    {memory['id']} · {memory['text']}"
    if count:
        yield "To do it, add --dry-run false --confirm"


def _fields(answer: JsonObject) -> Iterator[str]:
    width = max(len(name) for name in answer)
    for name, value in answer.items():
        if name != "warnings":
            yield f"{name.ljust(width)}  {value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}"


_FORMS: dict[str, Callable[[JsonObject], Iterator[str]]] = {
    "retain": _retained,
    "recall": _recalled,
    "list_memories": _listed,
    "forget": _forgotten,
}
