"""SIGTERM with requests under way that will never be whole: each is told, and the log stays quiet."""

from __future__ import annotations

import json
from contextlib import AsyncExitStack
from pathlib import Path
from urllib.parse import urlsplit

import anyio
import anyio.to_thread
import pytest
from anyio.abc import SocketStream

from tests.serving import BOUND, serving

from .doors import opened, post_head

pytestmark = pytest.mark.anyio

HALF = '{"jsonrpc": "2.0", "id": 1, '


async def _received(connection: SocketStream) -> str:
    """All that comes until the server hangs up."""
    with anyio.fail_after(BOUND):
        return b"".join([part async for part in connection]).decode()


async def test_bodies_that_are_half_sent_are_refused_and_leave_no_traceback(tmp_path: Path, model_folder: Path) -> None:
    with serving(tmp_path, model_dir=model_folder) as running:
        port = urlsplit(running.url).port
        assert port is not None
        async with opened(f"{running.url}/mcp/a/sse") as wire, AsyncExitStack() as stack:
            sent = {
                "a message": post_head(wire.path, 1000) + HALF,
                "a message not begun": post_head(wire.path, 1000),
                "a call": post_head("/mcp/a", 1000) + HALF,
                "a load": post_head("/banks/a/memories", 1000) + '{"content": "half a li',
                "a head": "POST /mcp/a HTTP/1.1\r\nHost: loc",
            }
            connections = {}
            for name, text in sent.items():
                connections[name] = await stack.enter_async_context(await anyio.connect_tcp("127.0.0.1", port))
                await connections[name].send(text.encode())
            begun = await connections["a load"].receive()
            status = await anyio.to_thread.run_sync(running.stop)
            told = {name: await _received(connection) for name, connection in connections.items()}

    log = "".join(running.log.lines)
    assert status == 0
    for name in ("a message", "a message not begun", "a call"):
        head, _, body = told[name].partition("\r\n\r\n")
        assert head.startswith("HTTP/1.1 503 ")
        assert "retry-after: " in head
        assert json.loads(body)["error"]["code"] == "TOO_BUSY"
    assert begun.startswith(b"HTTP/1.1 200 ")
    assert '"code":"TOO_BUSY"' in told["a load"]
    assert told["a head"] == ""
    assert "Traceback" not in log
    assert " ERROR " not in log
