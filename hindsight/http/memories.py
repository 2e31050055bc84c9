"""A bank's memories in bulk over plain HTTP: NDJSON in, NDJSON out; and which banks there are, and the end of one.

A load answers while its body still arrives, and takes no more than it can work off. Many HTTP libraries send a whole
body before they read an answer: results wait for such a client up to BACKLOG, beyond which it has to read.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from urllib.parse import parse_qs

import anyio
from starlette.types import Message, Receive, Scope, Send

from hindsight.bank import Bank
from hindsight.banks import Banks
from hindsight.bulk import LineResult, export, load, windows_of
from hindsight.caller import caller_of
from hindsight.errors import ConfirmationRequired, HindsightError, InvalidArgument, NotFound, TooBusy
from hindsight.http.answers import answer, answer_error
from hindsight.http.bodies import ClientGone
from hindsight.http.paths import bank_of
from hindsight.messages import encode
from hindsight.record import BankId
from hindsight.settings import Settings

BACKLOG = 8 * 1024 * 1024  # bytes of results that may wait for a client to read them
IDLE = 300.0  # seconds that a client may take for the next piece of its body

Lease = Callable[[BankId], AbstractAsyncContextManager[Bank]]
_PIECE = 64 * 1024
_GZIP = 16 + zlib.MAX_WBITS
_HEADERS = [(b"content-type", b"application/x-ndjson"), (b"cache-control", b"no-store"), (b"x-accel-buffering", b"no")]


class UnknownEncoding(InvalidArgument):
    status = 415
    next_action = "Send the body as it is, or with Content-Encoding: gzip."


class Load:
    """POST or PUT /banks/{bank_id}/memories: retains each line of the body and answers it with a line."""

    def __init__(self, lease: Lease, settings: Settings) -> None:
        self._lease = lease
        self._patience = settings.send_timeout
        self.running = 0
        self._quiet, self._stopping = asyncio.Event(), asyncio.Event()

    async def drain(self, seconds: float) -> None:
        """End every load behind the lines in work, which are answered; returns when all have ended or time is up."""
        self._stopping.set()
        if self.running:
            with anyio.move_on_after(seconds):
                await self._quiet.wait()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        results = _Results(send, self._patience)
        try:
            chunks = _decoded(scope, _body(receive, results.begin, self._stopping))
        except HindsightError as error:
            await answer_error(send, error)
            return
        self.running += 1
        self._quiet.clear()
        try:
            async with self._lease(bank_of(scope)) as bank, aclosing(chunks):
                await _exchange(bank, chunks, results)
        except* (ClientGone, TimeoutError):
            pass  # there is nobody to tell, and what was told is on disk
        except* HindsightError as group:
            if results.begun:
                raise
            await answer_error(send, _first(group))
        finally:
            self.running -= 1
            if not self.running:
                self._quiet.set()


class Export:
    """GET /banks/{bank_id}/memories: all memories, oldest first, one line each, as they are at this moment."""

    def __init__(self, lease: Lease, settings: Settings) -> None:
        self._lease = lease
        self._patience = settings.send_timeout

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun = False
        try:
            async with self._lease(bank_of(scope)) as bank, aclosing(export(bank)) as chunks:
                first = await anext(chunks, b"")
                begun = True
                await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
                await self._send_on(first, chunks, receive, send)
        except HindsightError as error:
            if begun:
                raise
            await answer_error(send, error)
        except TimeoutError:
            return

    async def _send_on(self, chunk: bytes, chunks: AsyncGenerator[bytes, None], receive: Receive, send: Send) -> None:
        leaving = asyncio.create_task(_left(receive))
        try:
            while chunk and not leaving.done():
                # A client that does not read keeps the ledger from clearing up behind its writes.
                async with asyncio.timeout(self._patience):
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
                chunk = await anext(chunks, b"")
            await send({"type": "http.response.body", "body": b""})
        finally:
            leaving.cancel()


class ListBanks:
    """GET /banks: the banks there are, of those that the caller may use, with their counts."""

    def __init__(self, banks: Banks) -> None:
        self._banks = banks

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        caller = caller_of(scope)
        found = [
            {"bank_id": glance.bank_id, "memories": glance.memories, **({"damaged": True} if glance.damaged else {})}
            for glance in await self._banks.glances()
            if caller.reaches(BankId(glance.bank_id))
        ]
        await answer(send, 200, encode({"banks": found}))


class DeleteBank:
    """DELETE /banks/{bank_id}?confirm=true: removes a bank for good; sessions on it then see an empty one."""

    def __init__(self, banks: Banks) -> None:
        self._banks = banks

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        bank_id = bank_of(scope)
        try:
            if parse_qs(scope["query_string"].decode("latin-1")).get("confirm") != ["true"]:
                raise ConfirmationRequired(
                    "this removes the bank for good", next_action="Export it if need be, then add ?confirm=true."
                )
            if not await self._banks.delete(bank_id):
                raise NotFound("there is no such bank", next_action="GET /banks lists those that there are.")
        except HindsightError as error:
            await answer_error(send, error)
            return
        await answer(send, 200, encode({"deleted": bank_id.text}))


class _Results:
    """Result lines on their way to the client, sent beside the work by `run`."""

    def __init__(self, send: Send, patience: float) -> None:
        self._send = send
        self._patience = patience
        self.begun = self._ended = False
        self._waiting = bytearray()
        self._sent = 0
        self._news, self._room = asyncio.Event(), asyncio.Event()

    async def begin(self) -> None:
        """Start the answer, once: not before the body does, for a client that waits for leave to send it."""
        if not self.begun:
            self.begun = True
            await self._send({"type": "http.response.start", "status": 200, "headers": _HEADERS})

    async def put(self, results: Sequence[LineResult]) -> None:
        """Have results sent; waits while too many wait. Raises TimeoutError for a client that does not read."""
        self._waiting += b"".join(encode(result) + b"\n" for result in results)
        self._news.set()
        while len(self._waiting) > BACKLOG:
            self._room.clear()
            async with asyncio.timeout(self._patience):
                await self._room.wait()

    async def finish(self, running: asyncio.Task[None]) -> None:
        """Return when all is sent by `run`. Raises TimeoutError for a client that does not read."""
        self._ended = True
        self._news.set()
        sent = -1
        while not running.done():
            if sent == self._sent:
                raise TimeoutError
            sent = self._sent
            await asyncio.wait([running], timeout=self._patience)

    async def run(self) -> None:
        """Send what comes, to the end."""
        while not self._ended or self._waiting:
            if not self._waiting:
                self._news.clear()
                await self._news.wait()
            piece = bytes(self._waiting[:_PIECE])
            del self._waiting[:_PIECE]
            if piece:
                await self._send({"type": "http.response.body", "body": piece, "more_body": True})
            self._sent += 1
            self._room.set()
        await self._send({"type": "http.response.body", "body": b""})


async def _exchange(bank: Bank, chunks: AsyncGenerator[bytes, None], results: _Results) -> None:
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(results.run())
        await load(bank, windows_of(chunks), results.put)
        await results.finish(running)


def _decoded(scope: Scope, chunks: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """The body as its Content-Encoding has it. Raises UnknownEncoding."""
    given = [value.strip().lower() for name, value in scope["headers"] if name == b"content-encoding"]
    if given in ([], [b"identity"]):
        return chunks
    if given in ([b"gzip"], [b"x-gzip"]):
        return _unzipped(chunks)
    raise UnknownEncoding("this Content-Encoding is not known")


async def _body(
    receive: Receive, begin: Callable[[], Awaitable[None]], stopping: asyncio.Event
) -> AsyncGenerator[bytes, None]:
    """The body as it comes. Raises ClientGone, TimeoutError, and TooBusy when the server stops."""
    more, stop = True, asyncio.create_task(stopping.wait())
    try:
        while more:
            event = await _before(stop, receive)
            await begin()
            if event is None:
                raise TooBusy("the server is shutting down", retry_after=5)
            if event["type"] != "http.request":
                raise ClientGone
            more = event.get("more_body", False)
            yield event.get("body", b"")
    finally:
        stop.cancel()


async def _before(stop: asyncio.Task[bool], receive: Receive) -> Message | None:
    """The next event, or None when `stop` is done first. Raises TimeoutError."""
    receiving = asyncio.ensure_future(receive())
    try:
        await asyncio.wait({receiving, stop}, timeout=IDLE, return_when=asyncio.FIRST_COMPLETED)
        if receiving.done() and not stop.done():
            return receiving.result()
        if stop.done():
            return None
        raise TimeoutError
    finally:
        receiving.cancel()


async def _unzipped(chunks: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """Small pieces, however much a chunk holds. Raises InvalidArgument where it is no gzip."""
    inflater = zlib.decompressobj(_GZIP)
    async with aclosing(chunks):
        async for chunk in chunks:
            more = bool(chunk)
            while more:
                if inflater.eof:
                    inflater = zlib.decompressobj(_GZIP)  # a file may be of several parts
                try:
                    piece = await asyncio.to_thread(inflater.decompress, chunk, _PIECE)
                except zlib.error as error:
                    raise _BrokenBody("the body is not valid gzip") from error
                yield piece
                chunk = inflater.unused_data if inflater.eof else inflater.unconsumed_tail
                more = bool(chunk) or (len(piece) == _PIECE and not inflater.eof)
    if not inflater.eof:
        raise _BrokenBody("the gzip body ends before its end")


class _BrokenBody(InvalidArgument):
    next_action = "Send the rest again; the lines answered before are stored, and repeating them is safe."


def _first(group: BaseExceptionGroup[HindsightError]) -> HindsightError:
    error = group.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
