"""Recognises an embedded Chroma folder that must not be loaded, without loading it.

Chroma rewrites a segment's files in place: a kill meanwhile leaves files that crash the process, or quietly answer
wrongly, when they are loaded. So each time that files were rewritten they are sealed: `seal.json` gets their sizes and
checksums. Files that are not as the seal says were never seen whole. Nobody but this module may write the seal.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sqlite3
import struct
import zlib
from pathlib import Path

DATABASE = "chroma.sqlite3"
SEAL = "seal.json"

Seal = dict[str, tuple[int, int]]  # file, from the index folder on: size in bytes, CRC-32
Stamp = dict[str, tuple[int, int]]  # the same file: size in bytes, time of its last change in ns

_HEADER = struct.Struct("<i6QiI3QdQ")  # hnswlib's header.bin, from its version to ef_construction
_MAGIC = b"SQLite format 3\0"
_BLOCK = 1 << 20


def stamp(folder: Path) -> Stamp:
    """What tells, without reading them, that the segments' files changed. Raises OSError."""
    found = {}
    for segment in _segments(folder):
        with os.scandir(segment) as entries:
            for entry in entries:
                status = entry.stat()
                found[f"{segment.name}/{entry.name}"] = (status.st_size, status.st_mtime_ns)
    return found


def seal(folder: Path) -> bool:
    """Declare the segments' files whole, as they are now; call it only while nothing writes them.

    False, and the seal stays as it was, when they are not: a full disk cuts files short without an error.
    """
    if any(_cut_short(segment) for segment in _segments(folder)):
        return False
    sealed = {name: (size, _checksum(folder / name)) for name, (size, _) in stamp(folder).items()}
    draft = folder / f"{SEAL}.new"
    draft.write_text(json.dumps(sealed))
    draft.replace(folder / SEAL)
    return True


def torn_segments(folder: Path) -> list[Path]:
    """The segments, and the database, under `folder` that Chroma must not open; [] also when there is no folder.

    Raises OSError, and sqlite3.OperationalError when the database is good but cannot be opened now.
    """
    if not folder.exists():
        return []
    sealed, found = _read_seal(folder), stamp(folder)
    bad = {name.split("/")[0] for name in sealed.keys() ^ found.keys()}
    bad |= {name.split("/")[0] for name, expected in sealed.items() if not _is_whole(folder / name, expected)}
    torn = [folder / name for name in sorted(bad)]
    database = folder / DATABASE
    if (found or database.exists()) and not _is_database(database, may_be_new=not found):
        torn.append(database)
    return torn


def quarantine(folder: Path) -> Path | None:
    """Move the index folder aside, in place of the one moved aside before; None when there is none.

    Nothing is copied or read: a torn link_lists.bin can look terabytes long. Raises OSError.
    """
    older = sorted(folder.parent.glob(f"{folder.name}.torn-*"), key=_number)
    target = folder.with_name(f"{folder.name}.torn-{_number(older[-1]) + 1 if older else 1}")
    if not folder.exists():
        return None
    folder.rename(target)
    for path in older:
        shutil.rmtree(path, ignore_errors=True)
    return target


def _number(aside: Path) -> int:
    digits = aside.name.rpartition("-")[2]
    return int(digits) if digits.isdecimal() else 0


def _segments(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir())


def _read_seal(folder: Path) -> Seal:
    try:
        sealed = json.loads((folder / SEAL).read_bytes())
        return {str(name): (int(size), int(crc)) for name, (size, crc) in sealed.items()}
    except (FileNotFoundError, ValueError, TypeError, AttributeError, RecursionError):
        return {}


def _is_whole(file: Path, expected: tuple[int, int]) -> bool:
    # The size goes first: a torn file can be too long to read.
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        return file.stat().st_size == expected[0] and _checksum(file) == expected[1]
    return False


def _checksum(file: Path) -> int:
    # Both calls release the GIL; the file can have hundreds of megabytes.
    crc = 0
    with file.open("rb") as stream:
        while block := stream.read(_BLOCK):
            crc = zlib.crc32(block, crc)
    return crc


def _cut_short(segment: Path) -> bool:
    """Whether files are shorter than the header says, or the pickle lacks its end. An unknown layout is not."""
    header = segment / "header.bin"
    if not header.exists():
        return False
    raw = header.read_bytes()
    if len(raw) != _HEADER.size:
        return True
    _, _, _, elements, stride, _, _, levels, _, links, *_ = _HEADER.unpack(raw)
    return (
        _size(segment / "data_level0.bin") < elements * stride
        or _size(segment / "length.bin") < elements * 4
        or not _are_links(segment / "link_lists.bin", elements, longest=max(levels, 0) * (links + 1) * 4)
        or not _is_pickle(segment, elements)
    )


def _are_links(file: Path, elements: int, longest: int) -> bool:
    """Whether `file` has just as many lists as `elements`: each its length in bytes, at most `longest`, and content."""
    if not 0 <= _size(file) <= elements * (4 + longest):
        return False
    raw, end = file.read_bytes(), 0
    for _ in range(elements):
        end += 4 + int.from_bytes(raw[end : end + 4], "little")
    return end == len(raw)


def _size(file: Path) -> int:
    return file.stat().st_size if file.exists() else -1


def _is_pickle(segment: Path, elements: int) -> bool:
    file = segment / "index_metadata.pickle"
    if elements == 0 and not file.exists():
        return True
    if _size(file) < 2:
        return False
    with file.open("rb") as stream:
        stream.seek(-1, os.SEEK_END)
        return stream.read(1) == b"."


def _is_database(file: Path, *, may_be_new: bool) -> bool:
    if _size(file) <= 0:
        return may_be_new
    if _size(file.with_name(f"{file.name}-wal")) > 0:
        # Still being closed, or killed: pages of the file may be in its log only. Chroma puts them together; to let
        # Python's own SQLite do so would mix two in one process, which do not see each other's locks.
        with file.open("rb") as stream:
            return stream.read(len(_MAGIC)) == _MAGIC
    try:
        # Immutable, so that nothing is locked or written.
        with contextlib.closing(sqlite3.connect(f"{file.absolute().as_uri()}?immutable=1", uri=True)) as database:
            database.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except sqlite3.OperationalError:
        raise
    except sqlite3.DatabaseError:
        return False
    return True
