"""The transports alone, on a real socket: a bank that is a list, and tools that stop where a test wants them to."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import anyio
import httpx
from starlette.types import Receive, Scope, Send

from hindsight.arguments import Listed, Text, Whole, argument
from hindsight.bank import Bank
from hindsight.caller import ANYONE, SCOPE_KEY, Caller
from hindsight.errors import MemoryNotFound
from hindsight.http.bodies import Bodies
from hindsight.http.edge import Edge
from hindsight.http.health import Alive, Ready
from hindsight.http.hosts import HostGuard
from hindsight.http.paths import BankRoutes, Route
from hindsight.http.sse import SseMessages, SseSessions, SseStream
from hindsight.http.streamable import Streamable
from hindsight.record import BankId, JsonObject
from hindsight.session import MemoryServer
from hindsight.settings import Settings, read_settings
from hindsight.tools import AnyTool, Tool
from tests.hosting import Host, hosted, listener, url_of
from tests.serving import BOUND, browser

READER = Caller("reader", may_write=False, key="reader")
WRITER = Caller("writer", key="writer")


@dataclass(eq=False)
class Notes:
    """A bank: what was written to it. A tool that holds waits for `go`, after it has set `started`."""

    written: list[str] = field(default_factory=list)
    started: anyio.Event = field(default_factory=anyio.Event)
    go: anyio.Event = field(default_factory=anyio.Event)
    stopped: anyio.Event = field(default_factory=anyio.Event)


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    content: str = argument(Text(most_bytes=1024 * 1024), "What to remember")
    tags: tuple[str, ...] = argument(Listed(Text(most=64), 32), "Labels", default=())


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    query: str = argument(Text(most=10_000), "What to look for")
    max_results: int = argument(Whole(1, 100), "How many at most", default=10)


@dataclass(frozen=True, slots=True, kw_only=True)
class Nothing:
    pass


async def _note(bank: Bank, arguments: Note) -> JsonObject:
    notes = cast(Notes, bank)
    notes.written.append(arguments.content)
    return {"id": str(len(notes.written)), "status": "stored", "tags": list(arguments.tags)}


async def _look(bank: Bank, arguments: Look) -> JsonObject:
    notes = cast(Notes, bank)
    found = [text for text in notes.written if arguments.query in text]
    return {"results": [{"text": text, "event_date": None} for text in found[: arguments.max_results]]}


async def _hold(bank: Bank, arguments: Nothing) -> JsonObject:
    notes = cast(Notes, bank)
    notes.started.set()
    try:
        await notes.go.wait()
    finally:
        notes.stopped.set()
    return {"results": []}


async def _hold_write(bank: Bank, arguments: Note) -> JsonObject:
    notes = cast(Notes, bank)
    notes.written.append(f"began {arguments.content}")
    notes.started.set()
    await notes.go.wait()
    notes.written.append(f"ended {arguments.content}")
    notes.stopped.set()
    return {"id": "1", "status": "stored"}


async def _break(bank: Bank, arguments: Look) -> JsonObject:
    raise ValueError(f"a bug that quotes {arguments.query}")


async def _miss(bank: Bank, arguments: Nothing) -> JsonObject:
    raise MemoryNotFound("no memory has the id nope")


_STORED: JsonObject = {
    "type": "object",
    "properties": {"id": {"type": "string"}, "status": {"type": "string"}},
    "required": ["id", "status"],
}
_FOUND: JsonObject = {"type": "object", "properties": {"results": {"type": "array"}}, "required": ["results"]}

TOOLS: tuple[AnyTool, ...] = (
    Tool("retain", "Retain", "When the user shares a fact.", Note, _STORED, _note, writes=True, sentence="Stored"),
    Tool("recall", "Recall", "At the start of a conversation.", Look, _FOUND, _look),
    Tool("hold", "Hold", "Never.", Nothing, _FOUND, _hold),
    Tool("hold_write", "Hold a write", "Never.", Note, _STORED, _hold_write, writes=True),
    Tool("break", "Break", "Never.", Look, _FOUND, _break),
    Tool("miss", "Miss", "Never.", Nothing, _FOUND, _miss),
)


class App:
    """Composes the doors as app.py does, with a caller that a test names in a header instead of keys."""

    def __init__(self, settings: Settings, tools: tuple[AnyTool, ...] = TOOLS) -> None:
        self.banks: dict[str, Notes] = {}
        self.server = MemoryServer(tools, self._lease, settings)
        self.sessions = SseSessions(self.server, settings)
        self.ready = {"embedder": True}
        stream, bodies = SseStream(self.sessions), Bodies(settings)
        routes = BankRoutes(
            [
                Route("/mcp/{bank_id}/sse", {"GET": stream, "HEAD": stream}),
                Route("/mcp/{bank_id}/messages", {"POST": SseMessages(self.sessions, bodies)}),
                Route("/mcp/{bank_id}", {"POST": Streamable(self.server, bodies)}),
                Route("/healthz", {"GET": Alive()}),
                Route("/readyz", {"GET": Ready(lambda: self.ready)}),
            ],
            root_path=settings.root_path,
        )
        self._app = Edge(HostGuard(routes, settings))

    def bank(self, name: str) -> Notes:
        """The bank of this name, made when it is not there."""
        return self.banks.setdefault(name, Notes())

    @asynccontextmanager
    async def _lease(self, bank_id: BankId) -> AsyncIterator[Bank]:
        yield cast(Bank, self.bank(bank_id.text))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
            return
        who = dict(scope["headers"]).get(b"x-who", b"").decode()
        scope[SCOPE_KEY] = {"reader": READER, "writer": WRITER}.get(who, ANYONE)
        await self._app(scope, receive, send)

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        async with self.server:
            await send({"type": "lifespan.startup.complete"})
            await receive()
        await send({"type": "lifespan.shutdown.complete"})


class Draining(Host):
    """A server that drains the sessions before it closes connections."""

    def __init__(self, app: App, drain_time: float, **options: Any) -> None:
        super().__init__(app, timeout_graceful_shutdown=5, **options)
        self._app = app
        self._drain_time = drain_time

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await self._app.sessions.drain(self._drain_time)
        await super().shutdown(sockets)


@dataclass(frozen=True, slots=True)
class Served:
    """A running server: its app, and its URL without a slash at the end."""

    app: App
    url: str

    def url_of(self, bank: str, door: str = "/sse") -> str:
        """The URL of a bank's door."""
        return f"{self.url}/mcp/{bank}{door}"


@asynccontextmanager
async def served(tools: tuple[AnyTool, ...] = TOOLS, /, *, prefix: str = "", **options: Any) -> AsyncIterator[Served]:
    """Serve on a free port, in this event loop, with these settings; `prefix` is uvicorn's --root-path."""
    settings = read_settings(**{"drain_time": 0.5, **options})
    app = App(settings, tools)
    with listener() as listening:
        async with hosted(Draining(app, settings.drain_time, root_path=prefix), listening):
            yield Served(app, url_of(listening))


@dataclass(eq=False)
class Wire:
    """A client that speaks SSE by hand: what it sends and what it sees, byte for byte."""

    http: httpx.AsyncClient
    response: httpx.Response
    _lines: AsyncIterator[str]
    path: str = ""

    async def event(self) -> tuple[str, str]:
        """The next event's kind and data; a comment is ('', its text)."""
        kind, data = "message", list[str]()
        with anyio.fail_after(BOUND):
            async for line in self._lines:
                if line.startswith(":"):
                    return "", line[1:].strip()
                if not line and data:
                    return kind, "\n".join(data)
                name, _, value = line.partition(": ")
                if name == "event":
                    kind = value
                elif name == "data":
                    data.append(value)
        raise EOFError("the stream ended")

    async def message(self) -> JsonObject:
        """The next message; comments are passed over."""
        while True:
            kind, data = await self.event()
            if kind == "message":
                return cast(JsonObject, json.loads(data))

    async def post(self, content: bytes | JsonObject, **headers: str) -> httpx.Response:
        """POST a message to the announced path."""
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        sent = {"content-type": "application/json", **headers}
        return await self.http.post(self.path, content=body, headers=sent)

    async def call(self, tool: str, request_id: int | str = 1, /, **arguments: object) -> JsonObject:
        """Call a tool and wait for the next message."""
        await self.post(call(tool, request_id, **arguments))
        return await self.message()


def call(tool: str, request_id: int | str = 1, /, **arguments: object) -> JsonObject:
    """A tools/call request."""
    return request("tools/call", request_id, name=tool, arguments=arguments)


def request(method: str, request_id: int | str = 1, /, **params: object) -> JsonObject:
    """A JSON-RPC request."""
    return {"jsonrpc": "2.0", "id": request_id, "method": method, "params": params}


@asynccontextmanager
async def opened(url: str, **headers: str) -> AsyncIterator[Wire]:
    """Open a stream and read its first event, the announced path; the headers go with the POSTs too."""
    base = str(httpx.URL(url).copy_with(raw_path=b"/"))
    async with (
        browser(base, headers=headers) as http,
        http.stream("GET", url) as response,
    ):
        wire = Wire(http, response, response.aiter_lines())
        kind, wire.path = await wire.event()
        assert kind == "endpoint"
        yield wire


async def reply_to(server: Served, sent: str) -> str:
    """All that comes back for these characters, each one byte, until the server hangs up."""
    url = httpx.URL(server.url)
    async with await anyio.connect_tcp(url.host, url.port or 0) as connection:
        await connection.send(sent.encode("latin-1"))
        with anyio.fail_after(BOUND):
            return b"".join([part async for part in connection]).decode("latin-1")


def post_head(path: str, length: int, *headers: str) -> str:
    """The head of a POST of JSON, with these lines in it."""
    fixed = ("Host: localhost", "Content-Type: application/json", f"Content-Length: {length}")
    return "\r\n".join([f"POST {path} HTTP/1.1", *fixed, *headers, "", ""])


def structured(message: JsonObject) -> JsonObject:
    """The structured content of a call's answer."""
    return cast(JsonObject, message["result"]["structuredContent"])


def code(message: JsonObject) -> str:
    """The error code of a call that failed; its text says the same as its structured content."""
    result = message["result"]
    assert result["isError"] is True
    assert json.loads(result["content"][0]["text"]) == result["structuredContent"]
    return cast(str, result["structuredContent"]["error"]["code"])


def main() -> None:
    """Serve until a signal comes; prints the port."""
    with listener() as listening:
        print(listening.getsockname()[1], flush=True)
        app = App(read_settings(drain_time=2.0))
        Signalled(app, 2.0).run([listening])


class Signalled(Draining):
    """A server that ends by signal with status 0; uvicorn would raise the signal again after its shutdown."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        signal.signal(signal.SIGTERM, self.handle_exit)
        yield


if __name__ == "__main__":
    main()
