"""Alive and ready, for whoever starts, watches and routes to the server."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from starlette.types import Receive, Scope, Send

from hindsight.http.answers import answer
from hindsight.messages import encode


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
