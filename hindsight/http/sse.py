"""A bank's two doors for MCP over SSE: GET its event stream, POST messages to the session that the stream announced.

Sessions are keyed by bank, session id and caller together: with the id alone, as in the SDK, bank B's door would reach
A's sessions. A call runs in the task of the POST that brought it, after its 202, so a session at rest is two tasks.
"""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
import time
from collections.abc import Hashable
from dataclasses import dataclass
from urllib.parse import quote

import anyio
from starlette.types import Receive, Scope, Send

from hindsight.caller import Caller, caller_of
from hindsight.errors import ContentTooLarge, HindsightError, NotFound, TooBusy
from hindsight.http.answers import answer, answer_error
from hindsight.http.auth import require_still
from hindsight.http.bodies import CLOSE, Bodies, ClientGone, Oversized, Stopped, TooSlow, gone, require_json
from hindsight.http.limits import limited
from hindsight.http.paths import bank_of, mount_of, tools_of
from hindsight.http.stream import Stream
from hindsight.messages import decode, id_at_the_edges, refusal
from hindsight.record import BankId, JsonObject
from hindsight.session import MemoryServer, Session
from hindsight.settings import Settings

GRACE = 1.0  # seconds that streams get to end once their calls are done

_HEADERS = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-store, no-transform"),
    (b"x-accel-buffering", b"no"),
]
_SESSION_ID = re.compile(rb"(?:\A|&)session_id=([0-9a-f]{32})(?:&|\Z)")

_log = logging.getLogger("hindsight.sse")

Key = tuple[str, str, Hashable]


@dataclass(slots=True, eq=False)
class _Open:
    """A session and its stream, for as long as the client holds the stream open."""

    session: Session
    stream: Stream
    scope: anyio.CancelScope


class SseSessions:
    """The sessions that are open over SSE; shared by the two doors."""

    def __init__(self, server: MemoryServer, settings: Settings) -> None:
        self._server = server
        self._settings = settings
        self._open: dict[Key, _Open] = {}
        self._draining = False
        self._nobody = asyncio.Event()
        self._nobody.set()

    def __len__(self) -> int:
        return len(self._open)

    def get(self, key: Key) -> _Open:
        """Raises NotFound, in the same words whether a session never was, has ended or is somebody else's."""
        found = self._open.get(key)
        if found is None:
            raise NotFound("there is no such session", next_action="Open a new one at /mcp/{bank_id}/sse.")
        return found

    def begin(self, key: Key, bank_id: BankId, caller: Caller, only: str | None) -> _Open:
        """Open a session. Raises TooBusy, and InvalidArgument for a tool in `only` that is not known."""
        if self._draining:
            raise TooBusy("the server is shutting down", retry_after=5)
        if len(self._open) >= self._settings.max_sessions:
            raise TooBusy(f"{self._settings.max_sessions} sessions are open, which is the most", retry_after=5)
        stream = Stream(self._settings)
        session = self._server.session(bank_id, caller, only=only, tell=stream.put, name=key[1][:8])
        self._open[key] = opened = _Open(session, stream, anyio.CancelScope())
        self._nobody.clear()
        return opened

    def close(self, key: Key) -> None:
        """Forget a session and stop its calls."""
        self._open.pop(key).session.end()
        if not self._open:
            self._nobody.set()

    async def drain(self, seconds: float) -> None:
        """Open no more sessions, let calls in flight finish for at most so long, then end every stream cleanly.

        Returns when all have ended, at most GRACE seconds later: a client that does not read is cut off.
        """
        self._draining = True
        await self._server.drain(seconds)
        for opened in self._open.values():
            opened.stream.finish("the server stops")
        with anyio.move_on_after(GRACE):
            await self._nobody.wait()
        for opened in self._open.values():
            opened.scope.cancel()

    def end_of(self, key: Hashable) -> None:
        """End every session of the caller with this key, as when it is revoked."""
        for (_, _, owner), opened in self._open.items():
            if owner == key:
                opened.session.end()
                opened.stream.finish("the key was revoked")


class SseStream:
    """GET /mcp/{bank_id}/sse: opens a session and streams its events. HEAD: the same without a session or body."""

    def __init__(self, sessions: SseSessions) -> None:
        self._sessions = sessions

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] == "HEAD":
            await _start(send)
            await send({"type": "http.response.body", "body": b""})
            return
        bank_id, caller, session_id = bank_of(scope), caller_of(scope), secrets.token_hex(16)
        key = (bank_id.text, session_id, caller.key)
        try:
            opened = self._sessions.begin(key, bank_id, caller, tools_of(scope))
        except HindsightError as error:
            await answer_error(send, error)
            return
        try:
            path = f"{mount_of(scope)}/mcp/{quote(bank_id.text, safe='')}/messages?session_id={session_id}"
            opened.stream.put_event(b"endpoint", path.encode())
            await _serve(opened, receive, send)
        finally:
            self._sessions.close(key)


async def _serve(opened: _Open, receive: Receive, send: Send) -> None:
    session, stream, began = opened.session, opened.stream, time.monotonic()
    place = f"bank={session.bank_id.text} session={session.name}"
    _log.info("session opened: %s caller=%s", place, session.caller.name)
    try:
        with opened.scope:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_watch, receive, opened.scope)
                await _start(send)
                await stream.pump(send, opened.scope.cancel)
                tasks.cancel_scope.cancel()
    finally:
        seconds = time.monotonic() - began
        _log.info("session closed: %s seconds=%.1f calls=%d reason=%s", place, seconds, session.calls, stream.reason)


async def _watch(receive: Receive, scope: anyio.CancelScope) -> None:
    await gone(receive)
    scope.cancel()


async def _start(send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})


class SseMessages:
    """POST /mcp/{bank_id}/messages?session_id=…: takes one message with 202; its answer comes on the stream."""

    def __init__(self, sessions: SseSessions, bodies: Bodies) -> None:
        self._sessions = sessions
        self._bodies = bodies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            opened = self._find(scope)
            if opened.stream.full:
                raise TooBusy("the client does not read its event stream")
            await self._take(opened, scope, receive, send)
        except ClientGone:
            return
        except (TooSlow, Stopped) as error:
            await answer_error(send, error, headers=CLOSE)
        except HindsightError as error:
            await answer_error(send, error)

    def _find(self, scope: Scope) -> _Open:
        found = _SESSION_ID.search(scope["query_string"])
        session_id = found[1].decode() if found else ""
        return self._sessions.get((bank_of(scope).text, session_id, caller_of(scope).key))

    async def _take(self, opened: _Open, scope: Scope, receive: Receive, send: Send) -> None:
        require_json(scope)
        body = await self._bodies.read(receive)
        require_still(scope)
        opened.stream.use()
        if isinstance(body, Oversized):
            opened.stream.put(self._too_large(body))
            await answer(send, 202)
            return
        message, refused = decode(body), limited(scope)
        await answer(send, 202)
        if refused is not None:
            if message is not None and message.id is not None:
                opened.stream.put(refusal(message.id, refused))
            return
        reply = await opened.session.answer(message) if message is not None else None
        if reply is not None:
            opened.stream.put(reply)

    def _too_large(self, body: Oversized) -> JsonObject:
        # Answered with 413, today's Python clients wait for ever; an error with the call's id fails the call at once.
        error = ContentTooLarge(f"the message has more than {self._bodies.most:,} bytes, which is the most allowed")
        request_id = id_at_the_edges(body.head, body.tail)
        if request_id is None:
            raise error
        return refusal(request_id, error)
