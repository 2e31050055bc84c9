"""The ASGI app: routes, middleware and lifespan. It only composes."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import anyio.to_thread
from starlette.types import ASGIApp, Receive, Scope, Send

from hindsight.banks import Banks
from hindsight.embedding import Embedder
from hindsight.errors import EmbedderUnavailable
from hindsight.http.health import Alive, Ready
from hindsight.http.hosts import HostGuard
from hindsight.http.paths import BankRoutes, Route
from hindsight.http.sse import SseMessages, SseSessions, SseStream
from hindsight.http.streamable import Streamable
from hindsight.session import MemoryServer
from hindsight.settings import Settings
from hindsight.wiring import TOOLS, preload

logger = logging.getLogger(__name__)


class App:
    """The server as an ASGI app over open banks. Enter `running` before the first request."""

    def __init__(self, settings: Settings, banks: Banks, embedder: Embedder) -> None:
        self._embedder = embedder
        self._ready = False
        self._server = MemoryServer(TOOLS, banks.lease, settings)
        self._sessions = SseSessions(self._server, settings)
        self._drain_time = settings.drain_time
        self._entry: ASGIApp = HostGuard(BankRoutes(self._routes(settings), root_path=settings.root_path), settings)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._entry(scope, receive, send)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Everything that runs beside the requests."""
        async with self._server:
            self._server.start(self._load)
            yield

    async def drain(self) -> None:
        """Take nothing new, finish the calls in flight, end all streams."""
        await self._sessions.drain(self._drain_time)

    def _routes(self, settings: Settings) -> list[Route]:
        stream, streamable = SseStream(self._sessions), Streamable(self._server, settings)
        return [
            Route("/mcp/{bank_id}/sse", {"GET": stream, "HEAD": stream}),
            Route("/mcp/{bank_id}/messages", {"POST": SseMessages(self._sessions, settings)}),
            Route("/mcp/{bank_id}", {"POST": streamable}),
            Route("/healthz", _readable(Alive())),
            Route("/readyz", _readable(Ready(self._parts))),
        ]

    def _parts(self) -> dict[str, bool]:
        return {"model": self._ready}

    async def _load(self) -> None:
        try:
            await self._embedder.ready()
        except EmbedderUnavailable as error:
            logger.error("the embedder does not work: %s %s", error.message, error.advice)
            return
        await anyio.to_thread.run_sync(preload)
        self._ready = True


def _readable(app: ASGIApp) -> Mapping[str, ASGIApp]:
    return {"GET": app, "HEAD": app}
