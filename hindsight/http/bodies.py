"""Request bodies, read within limits of size and time."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass

from starlette.types import Message as Event
from starlette.types import Receive, Scope

from hindsight.errors import DeadlineExceeded, InvalidArgument, TooBusy
from hindsight.messages import EDGE
from hindsight.settings import Settings

SKIPPED = 16  # an oversized body is read to its end, for its id, up to so many times the limit
PACE = 64 * 1024  # bytes that have to come before the time limit starts anew
CLOSE = [(b"connection", b"close")]  # goes with an answer to a body that was not read to its end
_STOPS = "the server is shutting down"
_JSON_TYPE = re.compile(rb"\s*application/(?:[a-z0-9.+-]+\+)?json\s*(?:;.*)?", re.IGNORECASE)


class NotJson(InvalidArgument):
    status = 415
    next_action = "Send it with the header Content-Type: application/json."


class TooSlow(DeadlineExceeded):
    status = 408
    next_action = "Send the whole body without a pause."


class Stopped(TooBusy):
    """The server stops before the body is whole."""


class ClientGone(Exception):
    """The client left before its body was complete; there is nobody to tell."""


@dataclass(frozen=True, slots=True)
class Oversized:
    """What is kept of a body over the limit: its first and last bytes. `whole` says whether its end was reached."""

    head: bytes
    tail: bytes
    whole: bool


class Bodies:
    """Reads whole bodies, until the server stops: `end` breaks off those that still arrive."""

    def __init__(self, settings: Settings) -> None:
        self.most = settings.max_body
        self._patience = settings.send_timeout
        self._arriving: set[asyncio.Timeout] = set()
        self._ended = False

    async def read(self, receive: Receive) -> bytes | Oversized:
        """The whole body, or its edges when it has more than `most` bytes.

        A body over the limit is never held in memory: what comes after the limit is dropped as it arrives. Raises
        ClientGone, TooSlow when fewer than PACE bytes come in the time there is, and Stopped.
        """
        if self._ended:
            raise Stopped(_STOPS)
        limit = asyncio.timeout(self._patience)
        self._arriving.add(limit)
        try:
            async with limit:
                event = await receive()
                if event["type"] == "http.request" and not event.get("more_body") and len(event["body"]) <= self.most:
                    return bytes(event["body"])
                return await _read_parts(event, receive, self.most, lambda: self._rearm(limit))
        except TimeoutError as error:
            if self._ended:
                raise Stopped(_STOPS) from error
            raise TooSlow(f"for {self._patience:g} s hardly anything of the body came") from error
        finally:
            self._arriving.remove(limit)

    def end(self) -> None:
        """Read no more: whoever waits for the rest of a body is told that the server stops."""
        self._ended = True
        for limit in self._arriving:
            if not limit.expired():  # one that has run out just now can't be moved any more
                limit.reschedule(0)

    def _rearm(self, limit: asyncio.Timeout) -> None:
        if not self._ended:
            limit.reschedule(asyncio.get_running_loop().time() + self._patience)


async def _read_parts(event: Event, receive: Receive, most: int, rearm: Callable[[], None]) -> bytes | Oversized:
    kept, size, passed = bytearray(), 0, 0
    head = tail = b""
    while event["type"] == "http.request":
        part = event.get("body", b"")
        size += len(part)
        if size <= most:
            kept += part
        else:
            head = head or bytes((kept + part)[:EDGE])
            tail = (tail + bytes(kept) + part)[-EDGE:]
            kept.clear()
        if not event.get("more_body"):
            return bytes(kept) if size <= most else Oversized(head, tail, whole=True)
        if size > most * SKIPPED:
            return Oversized(head, tail, whole=False)
        if size // PACE > passed:
            passed = size // PACE
            rearm()
        event = await receive()
    raise ClientGone


async def gone(receive: Receive) -> None:
    """Return when the client has left."""
    while (await receive())["type"] != "http.disconnect":
        pass


def require_json(scope: Scope) -> None:
    """Raises NotJson unless the body says it is JSON.

    A browser may send text/plain to any site without asking; with JSON it has to ask first.
    """
    for name, value in scope["headers"]:
        if name == b"content-type" and (value == b"application/json" or _JSON_TYPE.fullmatch(value)):
            return
    raise NotJson("the body must be JSON")
