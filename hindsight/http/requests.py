"""Requests at the doors beside MCP: each counts and is told as a call is, and ends when its caller's key does.

However long a load or an export takes, it takes up one call of those that may be in flight; of one key, as many may be
as in one session.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Hashable

import anyio
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hindsight.caller import caller_of
from hindsight.errors import Internal, TooBusy
from hindsight.http.answers import answer_error
from hindsight.http.paths import BANK_KEY, Route
from hindsight.record import BankId
from hindsight.session import MemoryServer
from hindsight.telemetry import SUCCESS, Finished, begin_call

LEFT = "CLIENT_LEFT"


class Requests:
    """The requests under way."""

    def __init__(self, server: MemoryServer) -> None:
        self._server = server
        self._open: dict[anyio.CancelScope, Hashable] = {}

    def watched(self, name: str, route: Route) -> Route:
        """The route, its requests watched; the observer knows them as `name` and the method: 'memories.get'."""
        doors = {method: _Watched(self, f"{name}.{method.lower()}", app) for method, app in route.methods.items()}
        return Route(route.path, doors)

    def end_of(self, key: Hashable) -> None:
        """Break off the requests of the caller with this key; what is being written is written."""
        for open_, owner in self._open.items():
            if owner == key:
                open_.cancel()

    async def run(self, name: str, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        """Have `app` answer a request."""
        begin_call()
        started, noted, caller = time.monotonic(), _Noted(send), caller_of(scope)
        try:
            self._server.admit(sum(owner == caller.key for owner in self._open.values()), whose="key")
        except TooBusy as error:
            await answer_error(send, error)
            self._tell(scope, name, error.code, started)
            return
        with anyio.CancelScope() as open_:
            self._open[open_] = caller.key
            try:
                await app(scope, receive, noted)
            finally:
                del self._open[open_]
                self._server.release()
                broken = isinstance(sys.exception(), Exception)
                self._tell(scope, name, Internal.code if broken else noted.outcome, started)

    def _tell(self, scope: Scope, name: str, outcome: str, started: float) -> None:
        bank_id: BankId | None = scope.get(BANK_KEY)
        bank = bank_id.text if bank_id is not None else ""
        call = Finished(caller_of(scope).name, bank, name, outcome, time.monotonic() - started)
        self._server.observer.finished(call)


class _Watched:
    def __init__(self, requests: Requests, name: str, app: ASGIApp) -> None:
        self._requests = requests
        self._name = name
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._requests.run(self._name, self._app, scope, receive, send)


class _Noted:
    """A `send` that hands on everything untouched and remembers how it went."""

    def __init__(self, send: Send) -> None:
        self.outcome = LEFT
        self._send = send
        self._status = 0

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._status = message["status"]
        await self._send(message)
        if message["type"] == "http.response.body" and not message.get("more_body"):
            self.outcome = SUCCESS if self._status < 400 else f"HTTP_{self._status}"
