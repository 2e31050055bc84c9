"""The ASGI app: routes, middleware and lifespan. It only composes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Hashable, Mapping
from contextlib import asynccontextmanager
from functools import partial

import anyio.to_thread
from starlette.types import ASGIApp, Receive, Scope, Send

from hindsight.banks import Banks
from hindsight.checkup import look_over
from hindsight.embedding import Embedder
from hindsight.errors import EmbedderUnavailable
from hindsight.folder import BANKS
from hindsight.http.auth import Authentication, Refusal, ResourceMetadata, guarded
from hindsight.http.bodies import Bodies
from hindsight.http.edge import Edge
from hindsight.http.health import Alive, Metrics, Ready
from hindsight.http.hosts import HostGuard
from hindsight.http.limits import Allowance, limited_doors
from hindsight.http.memories import DeleteBank, Export, ListBanks, Load
from hindsight.http.paths import BankRoutes, Route
from hindsight.http.reindex import Reindex
from hindsight.http.requests import Requests
from hindsight.http.sse import SseMessages, SseSessions, SseStream
from hindsight.http.streamable import Streamable
from hindsight.keys import Keyring
from hindsight.session import MemoryServer
from hindsight.settings import Settings
from hindsight.telemetry import Meters, Observers, open_audit
from hindsight.wiring import TOOLS, make_tokens, preload, start_tracing

LATE = 5.0  # seconds that an index may be behind its ledger before /readyz says so

logger = logging.getLogger(__name__)


class App:
    """The server as an ASGI app over open banks. Enter `running` before the first request."""

    def __init__(self, settings: Settings, banks: Banks, embedder: Embedder, keyring: Keyring) -> None:
        self._banks = banks
        self._embedder = embedder
        self._keyring = keyring
        self._model = self._index = False
        self._preload = partial(preload, settings)
        self._meters = Meters()
        self._audit = open_audit(settings)
        observer = Observers([self._meters, self._audit] if self._audit else [self._meters])
        self._server = MemoryServer(TOOLS, banks.lease, settings, observer=observer, traced=start_tracing())
        self._requests = Requests(self._server)
        self._bodies = Bodies(settings)
        self._sessions = SseSessions(self._server, settings)
        self._bulk = Load(banks.lease, settings)
        self._meters.watch("sessions", "Event streams open", lambda: len(self._sessions))
        self._meters.watch("calls_in_flight", "Calls under way, loads and exports too", lambda: self._server.running)
        self._meters.watch("loads", "Loads under way", lambda: self._bulk.running)
        self._drain_time = settings.drain_time
        self._folder = settings.data_dir / BANKS
        self._edge = Edge(HostGuard(self._authenticated(settings), settings), self._meters.refused)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._edge(scope, receive, send)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Everything that runs beside the requests."""
        tasks = partial(asyncio.all_tasks, asyncio.get_running_loop())
        self._meters.watch("tasks", "Tasks in the event loop", lambda: len(tasks()))
        try:
            async with self._server:
                self._server.start(self._load)
                self._server.start(self._look_over)
                self._server.start(self._keyring.watch, self._end_of)
                yield
        finally:
            if self._audit is not None:
                self._audit.close()

    async def drain(self) -> None:
        """Take nothing new, finish the calls in flight, end all streams."""
        self._bodies.end()
        await asyncio.gather(self._bulk.drain(self._drain_time), self._sessions.drain(self._drain_time))
        self._edge.stopped = True

    def _authenticated(self, settings: Settings) -> ASGIApp:
        tokens, refused = make_tokens(settings), self._meters.refused
        refusal = Refusal(tokens.challenge if tokens else None, refused)
        public = [Route("/healthz", _readable(Alive())), Route("/readyz", _readable(Ready(self._parts, self._late)))]
        if tokens is not None:
            door, root = _readable(ResourceMetadata(tokens.metadata)), "/.well-known/oauth-protected-resource"
            at = f"{root}{tokens.prefix}/mcp/{{bank_id}}"
            public += [Route(at, door), Route(f"{at}/sse", door)]
        private = [guarded(route, refused) for route in self._routes(settings)]
        if settings.requests_per_minute:
            private = limited_doors(private, Allowance(settings.requests_per_minute), refused)
        return Authentication(
            BankRoutes([*public, *private], root_path=settings.root_path),
            BankRoutes(public, root_path=settings.root_path, otherwise=refusal),
            self._keyring,
            tokens.caller if tokens else None,
        )

    def _routes(self, settings: Settings) -> list[Route]:
        """All doors that need a key, where there are keys."""
        stream, streamable = SseStream(self._sessions), Streamable(self._server, self._bodies)
        export = Export(self._banks.lease, settings)
        load, watched = self._bulk, self._requests.watched
        return [
            Route("/mcp/{bank_id}/sse", {"GET": stream, "HEAD": stream}),
            Route("/mcp/{bank_id}/messages", {"POST": SseMessages(self._sessions, self._bodies)}),
            Route("/mcp/{bank_id}", {"POST": streamable}),
            watched("banks", Route("/banks", _readable(ListBanks(self._banks)))),
            watched("bank", Route("/banks/{bank_id}", {"DELETE": DeleteBank(self._banks)})),
            watched("memories", Route("/banks/{bank_id}/memories", {"POST": load, "PUT": load, "GET": export})),
            watched("reindex", Route("/banks/{bank_id}/reindex", {"POST": Reindex(self._banks.lease)})),
            Route("/metrics", _readable(Metrics(self._meters, self._banks.glances, self._banks.sights))),
        ]

    def _end_of(self, key: Hashable) -> None:
        self._sessions.end_of(key)
        self._requests.end_of(key)

    def _parts(self) -> dict[str, bool]:
        return {"model": self._model, "ledger": self._banks.writable, "index": self._index}

    def _late(self) -> list[str]:
        lags = self._banks.sights().lags
        found = {"embedding": any(lag.waits for lag in lags), "index": any(lag.seconds > LATE for lag in lags)}
        return [name for name, late in found.items() if late]

    async def _look_over(self) -> None:
        await anyio.to_thread.run_sync(look_over, self._folder)

    async def _load(self) -> None:
        try:
            await self._embedder.ready()
            self._model = True
        except EmbedderUnavailable as error:
            logger.error("the embedder does not work: %s %s", error.message, error.advice)
        await anyio.to_thread.run_sync(self._preload)
        self._index = True


def _readable(app: ASGIApp) -> Mapping[str, ASGIApp]:
    return {"GET": app, "HEAD": app}
