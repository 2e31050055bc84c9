"""Any ASGI app on a real socket, in the test's own event loop or thread.

The server stops as soon as it is told to: uvicorn itself looks and pauses a tenth of a second each, and most tests have
a server of their own.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import uvicorn
from starlette.types import ASGIApp

from tests.serving import BOUND, until


class Host(uvicorn.Server):
    """uvicorn that leaves the test's signals alone; `serving` is set once it listens, `should_exit` ends it."""

    def __init__(self, app: ASGIApp, **options: Any) -> None:
        super().__init__(uvicorn.Config(app, **{"log_config": None, "timeout_graceful_shutdown": 1, **options}))
        self.serving = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.serving.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def main_loop(self) -> None:
        await self.on_tick(0)
        while not self.should_exit:  # noqa: ASYNC110  # whatever sets it tells nobody
            await asyncio.sleep(0.005)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        with anyio.move_on_after(self.config.timeout_graceful_shutdown):
            await until(lambda: not (self.server_state.connections or self.server_state.tasks))
        for task in self.server_state.tasks:
            task.cancel()
        await self.lifespan.shutdown()


def listener(port: int = 0) -> socket.socket:
    """A socket that listens on a free port. asyncio turns Nagle's delay off only where the protocol is named."""
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.bind(("127.0.0.1", port))
    listening.listen(1024)
    return listening


def url_of(listening: socket.socket) -> str:
    """The URL that leads to a socket, without a slash at the end."""
    return f"http://127.0.0.1:{listening.getsockname()[1]}"


@asynccontextmanager
async def hosted(host: Host, listening: socket.socket) -> AsyncIterator[None]:
    """Serve on this socket, in this event loop, for as long as the context lasts."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(host.serve, [listening])
        with anyio.fail_after(BOUND):
            await host.serving.wait()
        try:
            yield
        finally:
            host.should_exit = True
