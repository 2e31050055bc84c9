"""Alive, ready and measured, for whoever starts, watches and routes to the server."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence

import anyio.to_thread
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.types import Receive, Scope, Send

from hindsight.caller import caller_of
from hindsight.errors import StorageGone
from hindsight.http.answers import answer
from hindsight.ledger import Glance
from hindsight.messages import encode
from hindsight.record import BankId
from hindsight.telemetry import Meters, Sights

FRESH = 10.0  # seconds that a count of memories is used for


class Alive:
    """GET /healthz: 200 as long as the event loop turns."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await answer(send, 200, b'{"status":"ok"}')


class Ready:
    """GET /readyz: 200 when every part is ready, else 503 naming those that are not.

    `parts` gives the parts by name, true when ready; `late` names what serves already and still catches up. Both are
    asked at each request and must not block, nor tell what a stranger may not know.
    """

    def __init__(self, parts: Callable[[], Mapping[str, bool]], late: Callable[[], Sequence[str]] = tuple) -> None:
        self._parts = parts
        self._late = late

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        waiting, late = sorted(name for name, ready in self._parts().items() if not ready), self._late()
        body: dict[str, object] = {"status": "not ready", "not_ready": waiting} if waiting else {"status": "ok"}
        if late:
            body["catching_up"] = late
        await answer(send, 503 if waiting else 200, encode(body), [(b"retry-after", b"1")] if waiting else [])


class Metrics:
    """GET /metrics: Prometheus' text, with the memories and ledgers of those banks that the caller may use.

    What `glances` tells of the banks is used for FRESH seconds.
    """

    def __init__(
        self, meters: Meters, glances: Callable[[], Awaitable[Sequence[Glance]]], sights: Callable[[], Sights]
    ) -> None:
        self._meters = meters
        self._glances = glances
        self._sights = sights
        self._seen: Sequence[Glance] = ()
        self._until = 0.0
        self._looking = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._looking:
            if time.monotonic() >= self._until:
                with contextlib.suppress(StorageGone):  # /readyz tells that; what was last seen does here
                    self._seen = await self._glances()
                self._until = time.monotonic() + FRESH
        caller = caller_of(scope)
        own = [glance for glance in self._seen if caller.reaches(BankId(glance.bank_id)) and not glance.damaged]
        memories, ledgers = {glance.bank_id: glance.memories for glance in own}, sum(glance.bytes for glance in own)
        text = await anyio.to_thread.run_sync(self._meters.exposition, memories, ledgers, self._sights())
        await answer(send, 200, text, [(b"cache-control", b"no-store")], kind=CONTENT_TYPE_LATEST.encode())
