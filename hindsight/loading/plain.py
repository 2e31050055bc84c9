"""Plain text: a memory per paragraph, paragraphs being parted by blank lines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import IO

from hindsight.loading import Found, Item, lines_of

_MOST = 256 * 1024  # bytes; a paragraph that is longer goes on in the next memory


def read_plain(file: IO[bytes], name: str) -> Iterator[Found]:
    """One memory a paragraph, with the file's name as document."""
    for number, text in paragraphs(lines_of(file)):
        yield Item(f"{name}:{number}", {"content": text, "document_id": name})


def paragraphs(lines: Iterable[tuple[int, bytes]]) -> Iterator[tuple[int, str]]:
    """The paragraphs with the numbers of their first lines."""
    first, kept, size = 0, list[bytes](), 0
    for number, line in lines:
        if kept and (not line.strip() or size + len(line) > _MOST):
            yield first, _text(kept)
            kept, size = [], 0
        if line.strip():
            first = first if kept else number
            kept.append(line)
            size += len(line)
    if kept:
        yield first, _text(kept)


def _text(lines: list[bytes]) -> str:
    # What is no UTF-8 becomes lone surrogates, which the check of the arguments names.
    return b"\n".join(lines).decode(errors="surrogateescape").strip()
