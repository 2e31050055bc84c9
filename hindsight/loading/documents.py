"""JSON files: a list of memories, or an export whose form is known."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from typing import IO, Any

from hindsight.loading import Broken, Found, Item
from hindsight.loading.chats import is_chatgpt, is_claude, is_mem0, read_chatgpt, read_claude, read_mem0
from hindsight.loading.ndjson import read_ndjson

# Keys under which exports keep their list.
_LISTS = ("memories", "results", "conversations", "data")


def read_json(file: IO[bytes], name: str) -> Iterator[Found]:
    """One memory per element of the list. A file of JSON lines is read as such. Takes the whole file into memory."""
    data = file.read().removeprefix(b"\xef\xbb\xbf")
    try:
        found = json.loads(data.decode())
    except (ValueError, RecursionError) as error:
        if isinstance(error, json.JSONDecodeError) and error.msg == "Extra data":
            yield from read_ndjson(io.BytesIO(data), name)
        else:
            yield Broken(name, f"not valid JSON in UTF-8: {error}")
        return
    for number, value in enumerate(_listed(found), 1):
        yield from _read(value, f"{name}, {number}")


def _listed(found: Any) -> list[Any]:
    if isinstance(found, list):
        return found
    lists = [found[key] for key in _LISTS if isinstance(found.get(key), list)] if isinstance(found, dict) else []
    return lists[0] if lists else [found]


def _read(value: Any, place: str) -> Iterator[Found]:
    if is_chatgpt(value):
        yield from read_chatgpt(value, place)
    elif is_claude(value):
        yield from read_claude(value, place)
    elif is_mem0(value):
        yield read_mem0(value, place)
    elif isinstance(value, dict):
        yield Item(place, value)
    elif isinstance(value, str):
        yield Item(place, {"content": value})
    else:
        yield Broken(place, "neither a JSON object nor a string")
