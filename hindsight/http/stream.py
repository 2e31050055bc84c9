"""An event stream to one client: what waits to be sent, and the clock that pings, gives up and ends.

Putting something in never blocks, so no client can hold up a call; what may wait is bounded by who puts it in.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from functools import partial

from starlette.types import Message as Event
from starlette.types import Send

from hindsight.messages import encode
from hindsight.record import JsonObject
from hindsight.settings import Settings

MOST_WAITING = 1_024  # events that may wait for a client to read them; more, and its messages are refused
MOST_BYTES = 4 * 1024 * 1024
CHUNK = 64 * 1024

_PING = b": ping\r\n\r\n"
# Line ends to Python's str.splitlines, by which older clients cut the stream into lines.
_LINE_ENDS = tuple((end.encode(), f"\\u{ord(end):04x}".encode()) for end in "\x85\u2028\u2029")


class Stream:
    """What waits to be sent to one client. It never blocks who puts something in.

    One timer serves the pings, the send timeout and the idle limit, which can be late by a quarter of the shortest.
    """

    def __init__(self, settings: Settings) -> None:
        self.reason = "the client left"
        self._settings = settings
        self._waiting: deque[bytes] = deque()
        self._size = 0
        self._wake = asyncio.Event()
        self._finished = False
        self._used = self._pinged = time.monotonic()
        self._sending: float | None = None

    @property
    def full(self) -> bool:
        """Whether so much waits that no more messages should be taken."""
        return len(self._waiting) >= MOST_WAITING or self._size >= MOST_BYTES

    def use(self) -> None:
        """Note that the client is there; one that is not for the idle limit is taken for gone."""
        self._used = time.monotonic()

    def put(self, message: JsonObject) -> None:
        """Send a message when its turn comes."""
        self.put_event(b"message", encode(message))

    def put_event(self, kind: bytes, data: bytes) -> None:
        """Send an event when its turn comes; `data` is one line."""
        if not data.isascii():
            for end, escaped in _LINE_ENDS:
                data = data.replace(end, escaped)
        self._put(b"event: %b\r\ndata: %b\r\n\r\n" % (kind, data))

    def finish(self, reason: str) -> None:
        """End the stream once everything that waits is sent."""
        self._finished = True
        self.reason = reason
        self._wake.set()

    async def pump(self, send: Send, give_up: Callable[[], None]) -> None:
        """Send events as they come until the stream ends. Calls `give_up`, once, when the client does not read."""
        watch = _Repeated(self._period, partial(self._look, give_up))
        try:
            more = True
            while more:
                await self._wake.wait()
                self._wake.clear()
                event = self._next()
                more = event["more_body"]
                self._sending = time.monotonic()
                await send(event)
                self._sending = None
        finally:
            watch.stop()

    @property
    def _period(self) -> float:
        settings = self._settings
        return min(settings.ping_interval, settings.send_timeout, settings.session_idle) / 4

    def _look(self, give_up: Callable[[], None]) -> None:
        now = time.monotonic()
        if self._sending is not None and now - self._sending >= self._settings.send_timeout:
            self.reason = "the client does not read"
            give_up()
        elif now - self._used >= self._settings.session_idle:
            self.finish("idle")
        elif now - self._pinged >= self._settings.ping_interval - self._period / 2:
            self._pinged = now
            if not self._waiting:
                self._put(_PING)

    def _put(self, event: bytes) -> None:
        self._waiting.append(event)
        self._size += len(event)
        self._wake.set()

    def _next(self) -> Event:
        chunk = self._waiting.popleft() if self._waiting else b""
        while self._waiting and len(chunk) < CHUNK:
            chunk += self._waiting.popleft()
        self._size = self._size - len(chunk)
        if self._waiting:
            self._wake.set()
        return {"type": "http.response.body", "body": chunk, "more_body": bool(self._waiting) or not self._finished}


class _Repeated:
    """Calls a function every so many seconds until it is stopped; a timer, since a task would cost ten times more."""

    __slots__ = ("_call", "_seconds", "_timer")

    def __init__(self, seconds: float, call: Callable[[], None]) -> None:
        self._seconds = seconds
        self._call = call
        self._timer = asyncio.get_running_loop().call_later(seconds, self._turn)

    def stop(self) -> None:
        self._timer.cancel()

    def _turn(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._seconds, self._turn)
        self._call()
