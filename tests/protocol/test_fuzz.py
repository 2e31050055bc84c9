"""20,000 malformed requests and messages: an error answer each, never a 5xx or a traceback, and the server goes on."""

from __future__ import annotations

import json
import logging
import random
import re
from collections.abc import Callable
from typing import Any

import anyio
import httpx
import pytest
from anyio.abc import ByteStream

from .doors import Served, opened, structured

pytestmark = pytest.mark.anyio

REQUESTS = 20_000
AT_ONCE = 4
Rng = random.Random

ODD_TEXT = ["", "\x00", "\ud800", "\u202e", "a" * 5000, "../..", "%2e%2e", "%2F", "名前", "'; --", "{{7*7}}", "\r\nX"]
ODD_NUMBERS = [0, -1, 2**63, 2**200, -(2**70), 1.5, 1e308]
TARGETS = [
    "/mcp/{}/sse", "/mcp/{}/messages?session_id=" + "0" * 32, "/mcp/{}", "/mcp/{}/sse/..", "/{}",
    "/mcp/{}/sse?tools={}", "/mcp/../{}", "//mcp/{}//sse", "/mcp/{}/messages?session_id={}", "/healthz/{}",
]  # fmt: skip
ODD_BANKS = [
    "%2e%2e", "..", "%2F", "a%2Fb", "..%2f..%2fetc", "%00", "%ff", "%zz", "%", "%%%", "a" * 200, "%E6%97", "a..b", "-",
    "", "%0d%0aX:%20y", "%F0%9F%98%80", "~", "a;b", "a%5Cb", "*", "%7B%7D", "\xe9",
]  # fmt: skip
ODD_HEADERS = [
    ("mcp-protocol-version", "2026-07-28"), ("mcp-protocol-version", "\xff"), ("mcp-session-id", "x"),
    ("content-type", "text/plain"), ("content-type", ""), ("content-type", "application/json; charset=utf-16"),
    ("accept", "text/html"), ("accept", ";;,,"), ("x-forwarded-prefix", "//evil/%2e%2e"), ("origin", "null"),
    ("origin", "http://["), ("mcp-method", "tools/call"), ("mcp-name", "=?base64?!!?="), ("last-event-id", "9" * 300),
    ("host", ""), ("host", "a:b:c"), ("host", "[::1"), ("transfer-encoding", "x"), ("x-who", "reader"),
]  # fmt: skip


def odd_value(rng: Rng, depth: int = 0) -> Any:
    """Anything that JSON can say, and some that it can't."""
    kinds: list[Callable[[], Any]] = [
        lambda: rng.choice(ODD_TEXT), lambda: rng.choice(ODD_NUMBERS), lambda: rng.choice([None, True, False]),
        lambda: float("nan") if rng.random() < 0.02 else "",
    ]  # fmt: skip
    if depth < 3:
        kinds.append(lambda: [odd_value(rng, depth + 1) for _ in range(rng.randrange(4))])
        kinds.append(lambda: {rng.choice(ODD_TEXT): odd_value(rng, depth + 1) for _ in range(rng.randrange(4))})
    return rng.choice(kinds)()


def odd_message(rng: Rng) -> Any:
    """A request of which some parts are not what they must be."""
    meta = {"io.modelcontextprotocol/protocolVersion": odd_value(rng), "progressToken": odd_value(rng)}
    arguments = {"query": odd_value(rng), "max_results": odd_value(rng), "content": odd_value(rng), "x": odd_value(rng)}
    message = {
        "jsonrpc": "2.0",
        "id": rng.randrange(10**6),
        "method": rng.choice(["tools/call", "tools/list", "initialize", "ping", "server/discover", "prompts/get", "x"]),
        "params": {"name": rng.choice(["retain", "recall", "miss", "nope"]), "arguments": arguments, "_meta": meta},
    }
    for _ in range(rng.randrange(1, 4)):
        where: Any = rng.choice([message, message.get("params"), arguments])
        if isinstance(where, dict) and where:
            where[rng.choice(sorted(where))] = odd_value(rng)
    return message


def odd_body(rng: Rng) -> bytes:
    """A message, whole, cut, doubled, in another encoding, nested too deep, or no message at all."""
    text = json.dumps(odd_message(rng))
    whole = text.encode("utf-8", "surrogatepass")
    if rng.random() < 0.7:
        return whole
    kinds: list[Callable[[], bytes]] = [
        lambda: whole[: rng.randrange(len(whole))], lambda: whole * 2,
        lambda: text.encode("utf-16"), lambda: b"\xef\xbb\xbf" + whole, lambda: b"[" * rng.randrange(1, 5000),
        lambda: b'{"a":' * rng.randrange(1, 3000), lambda: b'{"jsonrpc":"2.0","id":' + b"9" * 5000 + b"}",
        lambda: rng.randbytes(rng.randrange(200)), lambda: b"[%b]" % whole, lambda: whole.replace(b"2.0", b"1.0"),
        lambda: b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":' + b"[" * 90 + b"]" * 90 + b"}",
    ]  # fmt: skip
    return rng.choice(kinds)()


def odd_request(rng: Rng, session: str) -> bytes:
    """The bytes of a request; half of the messages go to a session that is open."""
    body, method = odd_body(rng), "POST"
    target = rng.choice([session, "/mcp/a"])
    if rng.random() < 0.3:
        target = rng.choice(TARGETS).format(rng.choice(ODD_BANKS), rng.choice(ODD_BANKS))
        method = rng.choice(["POST", "PUT", "DELETE", "OPTIONS", "PATCH", "BREW"])
    headers = {"host": "localhost", "content-type": "application/json", "content-length": str(len(body))}
    for name, value in rng.sample(ODD_HEADERS, rng.choice([0, 0, 1, 2])):
        headers[name] = value
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"{method} {target} HTTP/1.1\r\n{lines}\r\n".encode("latin-1") + body


class Connection:
    """An HTTP connection that is opened again whenever the server closed it."""

    def __init__(self, server: Served) -> None:
        self._url = httpx.URL(server.url)
        self._stream: ByteStream | None = None

    async def status_of(self, request: bytes) -> int:
        """The status of the answer to these bytes."""
        if self._stream is None:
            self._stream = await anyio.connect_tcp(self._url.host, self._url.port or 0)
        seen = b""
        try:
            await self._stream.send(request)
            while b"\r\n\r\n" not in seen:
                seen += await self._stream.receive()
            head, _, body = seen.partition(b"\r\n\r\n")
            length = re.search(rb"\r\ncontent-length: *(\d+)", head.lower())
            while length is not None and len(body) < int(length[1]):
                body += await self._stream.receive()
            if b"connection: close" in head.lower():
                await self.close()
        except (anyio.EndOfStream, anyio.BrokenResourceError):
            await self.close()
        return int(seen[9:12] or 0)

    async def close(self) -> None:
        """Close it, if it is open."""
        if self._stream is not None:
            await self._stream.aclose()
            self._stream = None


async def test_nothing_malformed_breaks_the_server(server: Served, caplog: pytest.LogCaptureFixture) -> None:
    statuses: dict[int, int] = {}

    async def send(seed: int, session: str) -> None:
        rng, connection = Rng(seed), Connection(server)
        for _ in range(REQUESTS // AT_ONCE):
            status = await connection.status_of(odd_request(rng, session))
            statuses[status] = statuses.get(status, 0) + 1
        await connection.close()

    async def read(wire: Any) -> None:
        while True:
            assert (await wire.message())["jsonrpc"] == "2.0"

    caplog.set_level(logging.WARNING)
    with anyio.fail_after(300):
        async with opened(server.url_of("a")) as wire, anyio.create_task_group() as reading:
            reading.start_soon(read, wire)
            async with anyio.create_task_group() as sending:
                for seed in range(AT_ONCE):
                    sending.start_soon(send, seed, wire.path)
            reading.cancel_scope.cancel()
        async with opened(server.url_of("b")) as wire:
            after = await wire.call("recall", query="tea")

    assert sum(statuses.values()) == REQUESTS // AT_ONCE * AT_ONCE
    assert [status for status in statuses if status >= 500] == []
    assert "Traceback" not in caplog.text
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []
    assert structured(after) == {"results": []}
