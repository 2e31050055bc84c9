"""Many memories at once: lines of NDJSON into a bank, each answered in its turn, and out of one again.

A line is read as `retain` reads its arguments; what an export adds (`id`, `retained_at`, `identity`, `text` for
`content`) is kept. `superseded_by` is not read: the successor's own `supersedes` makes both ends of the link, so a load
that breaks off between the two leaves no memory superseded by one that is not there.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import NotRequired, TypedDict

from hindsight.arguments import Date, Text, argument, read_arguments
from hindsight.bank import Bank, Exported, Found, Prepared
from hindsight.drafts import Draft, Origin
from hindsight.errors import ContentTooLarge, ErrorBody, HindsightError, InvalidArgument
from hindsight.messages import encode
from hindsight.record import JsonObject, RetainAnswer
from hindsight.tools.retain import Retain, draft_of

LONGEST = 2 * 1024 * 1024  # bytes of one line
WINDOW = 64  # lines that are looked up, embedded and committed together
_WINDOW_BYTES = 512 * 1024
_CHUNK = 256 * 1024
_BOM = b"\xef\xbb\xbf"
_DIGEST = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Line:
    """A line by its place, from 1; what it holds, or why it can't be read."""

    number: int
    data: bytes | HindsightError


class LineResult(TypedDict):
    """What became of a line: `id` and `status` of its memory, or the error."""

    line: int
    id: NotRequired[str]
    status: NotRequired[str]
    warnings: NotRequired[list[str]]
    error: NotRequired[ErrorBody]


class _Digest:
    """A digest in hex."""

    def schema(self) -> JsonObject:
        return {"type": "string", "pattern": f"^{_DIGEST.pattern}$"}

    def read(self, value: object) -> bytes:
        if not isinstance(value, str) or not _DIGEST.fullmatch(value):
            raise ValueError("64 hexadecimal digits, as the export has it")
        return bytes.fromhex(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kept:
    """What an exported line has beside retain's arguments."""

    id: str | None = argument(Text(most=128), "Id of the memory", default=None)
    retained_at: str | None = argument(Date(), "When it was retained", default=None)
    identity: bytes | None = argument(_Digest(), "What makes another one the same", default=None)


_KEPT = frozenset(field.name for field in fields(_Kept))
_Read = tuple[Draft, list[str]]
_UNREAD = frozenset({*_KEPT, "superseded_by"})


class Splitter:
    """Cuts a stream into lines at line feeds; blank ones count but are left out. Holds one line at most."""

    def __init__(self) -> None:
        self._number = 0
        self._open = bytearray()
        self._too_long = False

    def feed(self, chunk: bytes) -> list[Line]:
        """The lines that end in this chunk."""
        first, *rest = chunk.split(b"\n")
        self._extend(first)
        if not rest:
            return []
        lines = [self._end()]
        *whole, last = rest
        for part in whole:
            self._number += 1
            if part and not part.isspace():
                lines.append(Line(self._number, part if len(part) <= LONGEST else _too_long()))
        self._extend(last)
        return [line for line in lines if line is not None]

    def finish(self) -> list[Line]:
        """The line that no line feed ended, if there is one."""
        line = self._end()
        return [] if line is None else [line]

    def cut(self, error: HindsightError) -> Line:
        """The line that will never be whole, with the reason."""
        return Line(self._number + 1, error)

    def _extend(self, part: bytes) -> None:
        if not self._too_long:
            self._open += part
            if len(self._open) > LONGEST:
                self._too_long = True
                self._open.clear()

    def _end(self) -> Line | None:
        self._number += 1
        data, too_long = bytes(self._open), self._too_long
        self._open.clear()
        self._too_long = False
        if self._number == 1:
            data = data.removeprefix(_BOM)
        if too_long:
            return Line(self._number, _too_long())
        return Line(self._number, data) if data and not data.isspace() else None


async def windows_of(chunks: AsyncIterator[bytes]) -> AsyncGenerator[list[Line], None]:
    """The lines of a stream as they arrive, some at a time. An error of ours that ends the stream becomes a line."""
    splitter = Splitter()
    try:
        async for chunk in chunks:
            for window in _windows(splitter.feed(chunk)):
                yield window
        ending = splitter.finish()
    except HindsightError as error:
        ending = [splitter.cut(error)]
    if ending:
        yield ending


async def load(
    bank: Bank, windows: AsyncIterator[Sequence[Line]], tell: Callable[[list[LineResult]], Awaitable[None]]
) -> None:
    """Retain all lines, in their order, and tell the results in that order.

    At most four windows are in work: while one is committed, two are embedded and one more is read or waits. Raises
    what `windows` and `tell` raise, as an ExceptionGroup; what has been told is on disk.
    """
    ahead: asyncio.Queue[asyncio.Task[tuple[_Window, Prepared]] | None] = asyncio.Queue(2)

    async def begin() -> None:
        async for lines in windows:
            # One after another: side by side they would all be ready late, and leave nothing to embed meanwhile.
            window = await _understood(bank, lines)
            await ahead.put(tasks.create_task(_prepared(bank, window)))
        await ahead.put(None)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(begin())
        while (task := await ahead.get()) is not None:
            await tell(await _ended(bank, *await task))


async def export(bank: Bank) -> AsyncGenerator[bytes, None]:
    """All memories as lines, oldest first, as they were when the first was asked for; some lines at a time."""
    records = bank.export()
    step: asyncio.Future[bytes] | None = None
    try:
        while chunk := await asyncio.shield(step := asyncio.ensure_future(asyncio.to_thread(_chunk, records))):
            yield chunk
    finally:
        if step is not None:
            await asyncio.wait([step])  # a generator that runs can't be closed
        await asyncio.to_thread(records.close)


def read_line(data: bytes) -> tuple[Draft, list[str]]:
    """What a line wants to have retained, with warnings. Raises InvalidArgument or ContentTooLarge."""
    given = _decoded(data)
    kept, _ = read_arguments(_Kept, {name: value for name, value in given.items() if name in _KEPT})
    named = {name: value for name, value in given.items() if name not in _UNREAD}
    if "content" not in named and "text" in named:
        named["content"] = named.pop("text")
    arguments, warnings = read_arguments(Retain, named)
    dated = kept.retained_at is not None and "event_date" in given
    origin = Origin(id=kept.id, retained_at=kept.retained_at, identity=kept.identity, dated=dated)
    return draft_of(arguments, origin), warnings


@dataclass(frozen=True, slots=True)
class _Window:
    """Lines under way: what each was read as, and what the drafts among them turned out to be."""

    lines: Sequence[Line]
    read: Sequence[_Read | HindsightError]
    found: Sequence[Found]


def _decoded(data: bytes) -> JsonObject:
    try:
        found = _DECODER.decode(data.decode())
    except UnicodeDecodeError as error:
        raise InvalidArgument("the line is not valid UTF-8", next_action=_RESEND) from error
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"the line is not valid JSON: {_place(error)}", next_action=_RESEND) from error
    if not isinstance(found, dict):
        raise InvalidArgument("the line is not a JSON object", next_action=_RESEND)
    return found


def _place(error: ValueError | RecursionError) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg} at character {error.pos + 1}"
    return "nested too deep" if isinstance(error, RecursionError) else str(error)


async def _understood(bank: Bank, lines: Sequence[Line]) -> _Window:
    read = await asyncio.to_thread(_read_all, lines)
    drafts = [each[0] for each in read if not isinstance(each, HindsightError)]
    try:
        return _Window(lines, read, await bank.understand(drafts))
    except HindsightError as error:  # the bank's folder is gone, say: it fails these lines, others may fare better
        return _Window(lines, [each if isinstance(each, HindsightError) else error for each in read], [])


async def _prepared(bank: Bank, window: _Window) -> tuple[_Window, Prepared]:
    return window, await bank.prepare(window.found)


def _read_all(lines: Sequence[Line]) -> list[_Read | HindsightError]:
    return [_read(line.data) for line in lines]


def _read(data: bytes | HindsightError) -> _Read | HindsightError:
    if isinstance(data, HindsightError):
        return data
    try:
        return read_line(data)
    except HindsightError as error:
        return error


async def _ended(bank: Bank, window: _Window, prepared: Prepared) -> list[LineResult]:
    answers = iter(await bank.commit(prepared))
    results = []
    for line, each in zip(window.lines, window.read, strict=True):
        if isinstance(each, HindsightError):
            results.append(_failed(line, each))
        else:
            results.append(_result(line, next(answers), each[1]))
    return results


def _result(line: Line, answer: RetainAnswer | HindsightError, warnings: list[str]) -> LineResult:
    if isinstance(answer, HindsightError):
        return _failed(line, answer)
    result = LineResult(line=line.number, id=answer["id"], status=answer["status"])
    if warned := [*answer.get("warnings", ()), *warnings]:
        result["warnings"] = warned
    return result


def _failed(line: Line, error: HindsightError) -> LineResult:
    return LineResult(line=line.number, error=error.as_json()["error"])


def _windows(lines: Sequence[Line]) -> Iterator[list[Line]]:
    window: list[Line] = []
    size = 0
    for line in lines:
        window.append(line)
        size += len(line.data) if isinstance(line.data, bytes) else 0
        if len(window) == WINDOW or size >= _WINDOW_BYTES:
            yield window
            window, size = [], 0
    if window:
        yield window


def _too_long() -> ContentTooLarge:
    return ContentTooLarge(f"the line has more than {LONGEST:,} bytes, which is the most allowed")


def _chunk(records: Generator[Exported, None, None]) -> bytes:
    lines, size = [], 0
    for record in records:
        lines += [encode(record), b"\n"]
        size += len(lines[-2])
        if size >= _CHUNK:
            break
    return b"".join(lines)


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is not JSON")


_RESEND = "Correct the line and send it again; the other lines are not affected."
_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)
