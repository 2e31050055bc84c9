"""Which reader a file is for; folders, compressed files and standard input."""

from __future__ import annotations

import gzip
import io
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, cast

from hindsight.loading import Broken, Found
from hindsight.loading.documents import read_json
from hindsight.loading.markdown import read_markdown
from hindsight.loading.ndjson import read_ndjson
from hindsight.loading.plain import read_plain
from hindsight.loading.tables import read_table

STDIN = "-"
_SUFFIXES = {
    ".ndjson": "ndjson", ".jsonl": "ndjson", ".json": "json", ".csv": "csv", ".tsv": "tsv", ".tab": "tsv",
    ".md": "markdown", ".markdown": "markdown", ".txt": "text", ".text": "text",
}  # fmt: skip
FORMATS = tuple(dict.fromkeys(_SUFFIXES.values()))


@dataclass(frozen=True, slots=True, kw_only=True)
class How:
    """How to read: in which format (None: by the file's name), which column for which field, Markdown by what."""

    format: str | None = None
    columns: Mapping[str, str] = field(default_factory=dict)
    by: str = "heading"


def size_of(name: str) -> int | None:
    """How many bytes reading will take; None when nobody knows."""
    if name == STDIN:
        return None
    return sum(path.stat().st_size for path, _ in _files(Path(name)) if path.is_file())


def read(name: str, how: How, count: Callable[[int], None] = lambda size: None) -> Iterator[Found]:
    """What is in a file, in the files of a folder or, for '-', on standard input; `count` hears of bytes read."""
    if name == STDIN:
        yield from _read(cast(IO[bytes], _Counted(sys.stdin.buffer, count).buffered()), "stdin", how, how.format)
        return
    path = Path(name)
    for each, shown in _files(path):
        kind = how.format or _format(each)
        if kind is None and path.is_dir():
            continue  # a picture between the notes is no error
        if kind is None:
            yield Broken(shown, f"the format is not known by its name; say --format ({', '.join(FORMATS)})")
            continue
        try:
            with each.open("rb", buffering=0) as raw:
                counted = _Counted(raw, count).buffered()
                file = gzip.GzipFile(fileobj=counted) if each.suffix == ".gz" else counted
                yield from _read(cast(IO[bytes], file), shown, how, kind)
        except (OSError, EOFError) as error:
            yield Broken(shown, f"can't be read: {error}")


def _read(file: IO[bytes], name: str, how: How, kind: str | None) -> Iterator[Found]:
    kind = kind or _sniffed(cast(io.BufferedReader, file))
    if kind == "ndjson":
        yield from read_ndjson(file, name)
    elif kind == "json":
        yield from read_json(file, name)
    elif kind in ("csv", "tsv"):
        yield from read_table(file, name, separator="," if kind == "csv" else "\t", columns=how.columns)
    elif kind == "markdown":
        yield from read_markdown(file, name, by=how.by)
    else:
        yield from read_plain(file, name)


def _sniffed(file: io.BufferedReader) -> str:
    start = file.peek(64).removeprefix(b"\xef\xbb\xbf").lstrip()[:1]
    return {b"{": "ndjson", b"[": "json"}.get(start, "text")


def _files(path: Path) -> Iterator[tuple[Path, str]]:
    """The files with the names to show; those of a folder in the order of their names, hidden ones left out."""
    if not path.is_dir():
        yield path, path.name
        return
    for each in sorted(path.rglob("*")):
        inside = each.relative_to(path)
        if each.is_file() and not any(part.startswith(".") for part in inside.parts):
            yield each, inside.as_posix()


def _format(path: Path) -> str | None:
    plain = path.with_suffix("") if path.suffix == ".gz" else path
    return _SUFFIXES.get(plain.suffix.lower())


class _Counted(io.RawIOBase):
    """A file that tells how much of it was read."""

    def __init__(self, inner: IO[bytes], count: Callable[[int], None]) -> None:
        self._inner = inner
        self._count = count

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = getattr(self._inner, "read1", self._inner.read)(len(buffer))
        buffer[: len(data)] = data
        self._count(len(data))
        return len(data)

    def buffered(self) -> io.BufferedReader:
        return io.BufferedReader(self)
