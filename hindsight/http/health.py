"""Alive, ready and measured, for whoever starts, watches and routes to the server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping

import anyio.to_thread
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.types import Receive, Scope, Send

from hindsight.caller import caller_of
from hindsight.http.answers import answer
from hindsight.messages import encode
from hindsight.record import BankId
from hindsight.telemetry import Meters

FRESH = 10.0  # seconds that a count of memories is used for


class Alive:
    """GET /healthz: 200 as long as the event loop turns."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await answer(send, 200, b'{"status":"ok"}')


class Ready:
    """GET /readyz: 200 when every part is ready, else 503 naming those that are not.

    `parts` gives the parts by name, true when ready; it is asked at each request and must not block.
    """

    def __init__(self, parts: Callable[[], Mapping[str, bool]]) -> None:
        self._parts = parts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        waiting = sorted(name for name, ready in self._parts().items() if not ready)
        body = {"status": "starting", "not_ready": waiting} if waiting else {"status": "ok"}
        await answer(send, 503 if waiting else 200, encode(body), [(b"retry-after", b"1")] if waiting else [])


class Metrics:
    """GET /metrics: Prometheus' text, with the memories of those banks that the caller may use.

    `memories` counts by bank; it is asked again after FRESH seconds.
    """

    def __init__(self, meters: Meters, memories: Callable[[], Awaitable[Mapping[str, int]]]) -> None:
        self._meters = meters
        self._memories = memories
        self._counted: Mapping[str, int] = {}
        self._until = 0.0
        self._counting = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._counting:
            if time.monotonic() >= self._until:
                self._counted = await self._memories()
                self._until = time.monotonic() + FRESH
        caller = caller_of(scope)
        seen = {bank: count for bank, count in self._counted.items() if caller.reaches(BankId(bank))}
        text = await anyio.to_thread.run_sync(self._meters.exposition, seen)
        await answer(send, 200, text, [(b"cache-control", b"no-store")], kind=CONTENT_TYPE_LATEST.encode())
