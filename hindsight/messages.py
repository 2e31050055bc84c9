"""JSON-RPC messages: read from bytes, strictly, and written to bytes.

Read with the standard library: it keeps integers exact and lets a lone surrogate through to the argument check, which
names the field; orjson would round the one and refuse the other. Written with orjson, which is several times faster,
except what it cannot write.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

import orjson
from mcp_types.jsonrpc import INVALID_REQUEST, PARSE_ERROR

from hindsight.errors import HindsightError, InvalidArgument
from hindsight.record import JsonObject

RequestId = str | int
DEEPEST = 100
EDGE = 1024  # bytes at each end of an oversized message that are searched for its id

_ADVICE = "Send one JSON-RPC 2.0 request or notification as UTF-8 JSON."
_ID = rb'"id"\s*:\s*(-?[0-9]{1,18}|"(?:[^"\\\x00-\x1f]|\\.){0,200}")'
_PLAIN = rb'"(?:jsonrpc|method)"\s*:\s*"[^"\\]*"'
_LEADING_ID = re.compile(rb"\s*\{\s*(?:" + _PLAIN + rb"\s*,\s*)*" + _ID + rb"\s*[,}]")
_TRAILING_ID = re.compile(rb",\s*" + _ID + rb"\s*(?:,\s*" + _PLAIN + rb"\s*)*\}\s*\Z")


@dataclass(frozen=True, slots=True)
class Message:
    """A request, or a notification when `id` is None. Its members have the types that JSON-RPC gives them."""

    method: str
    params: JsonObject | None
    id: RequestId | None


class NotAMessage(InvalidArgument):
    """Bytes that are no JSON-RPC message; `rpc_code` is JSON-RPC's code for it."""

    def __init__(self, message: str, *, rpc_code: int = INVALID_REQUEST) -> None:
        super().__init__(message, next_action=_ADVICE)
        self.rpc_code = rpc_code


def decode(body: bytes) -> Message | None:
    """The message in `body`; None for a response, which answers nothing that we asked. Raises NotAMessage."""
    try:
        found = _DECODER.decode(body.decode())
    except (ValueError, RecursionError) as error:
        raise NotAMessage("the body is not valid JSON in UTF-8", rpc_code=PARSE_ERROR) from error
    if body.count(b"[") + body.count(b"{") > DEEPEST and depth(found) > DEEPEST:
        raise NotAMessage(f"the JSON is nested deeper than {DEEPEST} levels")
    if isinstance(found, list):
        raise NotAMessage("batches are not supported; send each message on its own")
    if not isinstance(found, dict) or found.get("jsonrpc") != "2.0":
        raise NotAMessage('the body is not a JSON-RPC 2.0 message: an object with "jsonrpc": "2.0" is expected')
    if "method" not in found and "id" in found and ("result" in found or "error" in found):
        return None
    return _message(found)


def encode(value: object) -> bytes:
    """`value` as JSON in UTF-8, on one line."""
    try:
        return orjson.dumps(value)
    except TypeError:
        # Integers of more than 64 bits, lone surrogates, nesting deeper than 254: orjson refuses them.
        return json.dumps(value, separators=(",", ":")).encode()


def response(request_id: RequestId | None, result: JsonObject) -> JsonObject:
    """The answer to a request."""
    return {"jsonrpc": "2.0", "id": request_id, "result": result}


def failure(request_id: RequestId | None, code: int, message: str, data: Any = None) -> JsonObject:
    """The answer to a request that failed as a message; a tool that fails answers with a result instead."""
    error = {"code": code, "message": message} if data is None else {"code": code, "message": message, "data": data}
    return {"jsonrpc": "2.0", "id": request_id, "error": error}


def refusal(request_id: RequestId | None, error: HindsightError, code: int = INVALID_REQUEST) -> JsonObject:
    """One of our errors as a JSON-RPC error; its own code and next action are in `data`."""
    return failure(request_id, code, error.message, error.as_json()["error"])


def id_at_the_edges(head: bytes, tail: bytes) -> RequestId | None:
    """The id of a message of which only the first and last EDGE bytes are known.

    The Python SDK 2 writes it first, the Python SDK 1 and TypeScript write it last.
    """
    found = _LEADING_ID.match(head) or _TRAILING_ID.search(tail)
    if found is None:
        return None
    try:
        value = json.loads(found[1])
    except ValueError:
        return None
    return value if isinstance(value, str | int) else None


def _message(found: JsonObject) -> Message:
    method, params, request_id = found.get("method"), found.get("params"), found.get("id")
    if not isinstance(method, str):
        raise NotAMessage('"method" must be a string')
    if params is not None and not isinstance(params, dict):
        raise NotAMessage('"params" must be an object')
    if "id" in found and (isinstance(request_id, bool) or not isinstance(request_id, str | int)):
        raise NotAMessage('"id" must be a string or a whole number')
    return Message(method, params, request_id)


def depth(value: object) -> int:
    """How many levels of lists and objects stand in one another in a JSON value."""
    deepest, level = 0, [value]
    while level:
        deepest += 1
        level = [
            child
            for parent in level
            for child in (parent.values() if isinstance(parent, dict) else parent if isinstance(parent, list) else ())
            if isinstance(child, dict | list)
        ]
    return deepest


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)
