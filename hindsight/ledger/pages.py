"""The pages of a SQLite file, read without SQLite: where a page is damaged, all others still tell what they hold.

SQLite finds a page by those above it, so one that is damaged hides whatever hangs below. Here each page is looked at
for itself, in its newest version: the log beside the file holds what was committed last. The format is that of
https://www.sqlite.org/fileformat2.html, of a database in UTF-8. Nothing is written.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

MAGIC = b"SQLite format 3\0"
HEADER = 100  # bytes before the first page's own
_DEFAULT = 4096
_TABLE_LEAF, _INDEX_LEAF, _INDEX_INNER = 13, 10, 2
_LOG_HEADER, _FRAME_HEADER = struct.Struct(">8I"), struct.Struct(">6I")
_INTEGERS = {1: 1, 2: 2, 3: 3, 4: 4, 5: 6, 6: 8}  # serial type: bytes

Value = int | float | bytes | None


class Cut:
    """Stands for a value whose bytes are not all there."""


CUT = Cut()


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a table: texts and blobs are bytes, and what could not be read is CUT."""

    rowid: int
    values: tuple[Value | Cut, ...]


class Pages:
    """The pages of the SQLite file at `path`, numbered from 1. Enter it to open the files; raises OSError."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._opened = contextlib.ExitStack()
        self._log: dict[int, int] = {}  # page: place of its content in the log
        self._count = 0
        self.size = _DEFAULT

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as opened:
            self._file: BinaryIO = opened.enter_context(open(self._path, "rb"))
            self._log_file: BinaryIO = opened.enter_context(open(_log_of(self._path), "rb"))
            self.size = page_size(self._file.read(HEADER)) or _logged_size(self._log_file) or _DEFAULT
            self._count = os.fstat(self._file.fileno()).st_size // self.size
            self._read_log()
            self._opened = opened.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._opened.close()

    def rows(self) -> Iterator[Row]:
        """What the leaves of all tables hold, in the order of the pages. Which table it is their columns must tell."""
        for _, page, start in self._of_kind(_TABLE_LEAF):
            for at in _cells(page, start):
                with contextlib.suppress(_Unreadable):
                    size, at = _varint(page, at)
                    rowid, at = _varint(page, at)
                    yield Row(_signed(rowid), self._record(page, at, size, self.size - 35))

    def entries(self) -> Iterator[tuple[Value | Cut, ...]]:
        """What the leaves of all indexes, and of all tables without rowid, hold."""
        for _, page, start in self._of_kind(_INDEX_LEAF):
            yield from self._entries(page, start, inner=False)

    def index(self, root: int) -> Iterator[tuple[Value | Cut, ...]]:
        """The entries of the index below this page, as far as its pages can be read."""
        waiting, seen = [root], set[int]()
        while waiting:
            number = waiting.pop()
            page = self._page(number)
            if page is None or number in seen:
                continue
            seen.add(number)
            start = HEADER if number == 1 else 0
            if page[start] in (_INDEX_LEAF, _INDEX_INNER):
                inner = page[start] == _INDEX_INNER
                yield from self._entries(page, start, inner=inner)
                if inner:
                    places = [*_cells(page, start), start + 8]
                    waiting += [int.from_bytes(page[at : at + 4], "big") for at in places]

    def _entries(self, page: bytes, start: int, *, inner: bool) -> Iterator[tuple[Value | Cut, ...]]:
        most = (self.size - 12) * 64 // 255 - 23
        for at in _cells(page, start):
            with contextlib.suppress(_Unreadable):
                size, at = _varint(page, at + 4 if inner else at)
                yield self._record(page, at, size, most)

    def _of_kind(self, kind: int) -> Iterator[tuple[int, bytes, int]]:
        """Number, content and start of the header of each page of a kind."""
        for number in range(1, self._count + 1):
            page = self._page(number)
            start = HEADER if number == 1 else 0
            if page is not None and page[start] == kind:
                yield number, page, start

    def _page(self, number: int) -> bytes | None:
        if not 1 <= number <= self._count:
            return None
        file, place = self._file, (number - 1) * self.size
        if number in self._log:
            file, place = self._log_file, self._log[number]
        try:
            file.seek(place)
            page = file.read(self.size)
        except OSError:  # the disk can't read it
            return None
        return page if len(page) == self.size else None

    def _record(self, page: bytes, at: int, size: int, most: int) -> tuple[Value | Cut, ...]:
        """The columns of a record of `size` bytes, of which up to `most` are on the page. Raises _Unreadable."""
        least = (self.size - 12) * 32 // 255 - 23
        local = size
        if size > most:
            local = least + (size - least) % (self.size - 4)
            local = local if local <= most else least
        content = page[at : at + local]
        if len(content) < local or size > self._count * self.size:
            raise _Unreadable
        if size > local:
            content += self._overflow(page[at + local : at + local + 4], size - local)
        return _columns(content)

    def _overflow(self, first: bytes, size: int) -> bytes:
        """What the chain of pages that begins with `first` holds, up to where it breaks."""
        parts, number = list[bytes](), int.from_bytes(first, "big")
        while size > 0 and (page := self._page(number)) is not None:
            parts.append(page[4 : 4 + size])
            size -= len(parts[-1])
            number = int.from_bytes(page[:4], "big")
        return b"".join(parts)

    def _read_log(self) -> None:
        """Find what was committed and is in the log alone; what a kill cut short does not count, as with SQLite."""
        self._log_file.seek(0)
        raw = self._log_file.read(_LOG_HEADER.size)
        if len(raw) < _LOG_HEADER.size:
            return
        magic, _, size, _, *salts_and_sums = _LOG_HEADER.unpack(raw)
        salts, order = salts_and_sums[:2], "little" if magic == 0x377F0682 else "big"
        sums = _sums(raw[:24], (0, 0), order)
        if magic & ~1 != 0x377F0682 or size != self.size or list(sums) != salts_and_sums[2:]:
            return
        written: dict[int, int] = {}
        for place in itertools.count(_LOG_HEADER.size + _FRAME_HEADER.size, _FRAME_HEADER.size + size):
            head, page = self._log_file.read(_FRAME_HEADER.size), self._log_file.read(size)
            if len(page) < size:
                return
            number, pages, *rest = _FRAME_HEADER.unpack(head)
            sums = _sums(page, _sums(head[:8], sums, order), order)
            if rest != [*salts, *sums]:
                return
            written[number] = place
            if pages:  # a commit, and how many pages the database has from then on
                self._log.update(written)
                self._count = pages
                written = {}


class _Unreadable(Exception):
    """A cell or record that can't be one."""


def page_size(header: bytes) -> int:
    """The size of a page as the first bytes of a file tell it; 0 when they are no SQLite file's."""
    size = int.from_bytes(header[16:18], "big")
    size = 65_536 if size == 1 else size
    good = header.startswith(MAGIC) and size >= 512 and size & (size - 1) == 0
    return size if good else 0


def _log_of(path: Path) -> Path:
    log = path.with_name(f"{path.name}-wal")
    return log if log.exists() else Path(os.devnull)


def _logged_size(log: BinaryIO) -> int:
    raw = log.read(_LOG_HEADER.size)
    return _LOG_HEADER.unpack(raw)[2] if len(raw) == _LOG_HEADER.size else 0


def _sums(content: bytes, sums: tuple[int, int], order: str) -> tuple[int, int]:
    """The log's running checksum."""
    first, second = sums
    words = struct.unpack(f"{'<' if order == 'little' else '>'}{len(content) // 4}I", content)
    for even, odd in zip(words[::2], words[1::2], strict=True):
        first = (first + even + second) & 0xFFFFFFFF
        second = (second + odd + first) & 0xFFFFFFFF
    return first, second


def _cells(page: bytes, start: int) -> list[int]:
    """Where the cells of a page begin. As with SQLite a place beyond the page's end counts from its start again."""
    count = int.from_bytes(page[start + 3 : start + 5], "big")
    first = start + (12 if page[start] == _INDEX_INNER else 8)
    count = min(count, (len(page) - first) // 2)
    places = struct.unpack_from(f">{count}H", page, first)
    return [place & (len(page) - 1) for place in places]


def _varint(content: bytes, at: int) -> tuple[int, int]:
    """A number of 1 to 9 bytes, and where it ends. Raises _Unreadable."""
    value = 0
    for place in range(at, min(at + 8, len(content))):
        value = value << 7 | content[place] & 0x7F
        if content[place] < 0x80:
            return value, place + 1
    if at + 8 >= len(content):
        raise _Unreadable
    return value << 8 | content[at + 8], at + 9


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def _columns(content: bytes) -> tuple[Value | Cut, ...]:
    """A record's values. Raises _Unreadable when its header can't be one."""
    end, at = _varint(content, 0)
    if end > len(content):
        raise _Unreadable
    kinds = []
    while at < end:
        kind, at = _varint(content, at)
        kinds.append(kind)
    values, place = list[Value | Cut](), end
    for kind in kinds:
        length = _length(kind)
        values.append(_value(kind, content[place : place + length]) if place + length <= len(content) else CUT)
        place += length
    if at != end:
        raise _Unreadable
    return tuple(values)


def _length(kind: int) -> int:
    if kind in (0, 8, 9):
        return 0
    if kind in (10, 11):
        raise _Unreadable
    return _INTEGERS.get(kind, 8) if kind < 12 else (kind - 12) // 2


def _value(kind: int, content: bytes) -> Value:
    if kind >= 12:
        return content
    if kind == 7:
        found: float = struct.unpack(">d", content)[0]
        return found
    if kind in _INTEGERS:
        return int.from_bytes(content, "big", signed=True)
    return {0: None, 8: 0, 9: 1}[kind]
