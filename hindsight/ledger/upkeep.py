"""Upkeep of a ledger file that nobody has open: can it be used, is it whole, does it still hold what was forgotten?"""

from __future__ import annotations

import contextlib
import sqlite3
import stat
from collections.abc import Iterator
from pathlib import Path

from hindsight.ledger.fields import FIELDS
from hindsight.ledger.pages import HEADER, page_size
from hindsight.ledger.schema import SINCE_SENTENCES, VERSION, committed, version_of

_DAMAGE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_ERROR)
_MOST = 5  # faults of the file itself that are told
_VERSION_AT, _PAGES_AT = 60, 28  # where a file's header has its version and its number of pages
_TABLES = {
    "bank": "name, value",
    "memory": f"number, {', '.join(FIELDS)}",
    "passage": "key, number, start, stop, worded, indexed, vector",
    "gone": "key",
    "tag": "tag, number",
    "words": "first, last, version, postings",
}
_SENTENCES = {"sentences": "key, vectors"}
_NO_VERSION = 1_000  # a number from here on is damage


class Unusable(Exception):
    """A ledger that no repair helps; the text says why, and what helps."""


def unreadable(path: Path, error: OSError) -> Unusable:
    """What to raise where a file or folder can't be read."""
    help = "give it to the server's user" if isinstance(error, PermissionError) else "put it back from a backup"
    return Unusable(f"{path.name} can't be read ({error.strerror}); {help}")


def header_faults(path: Path) -> list[str]:
    """What the first bytes and the size of the file tell to be wrong with it, at the cost of one read.

    Nothing is wrong with an empty file: it is a new one. Raises Unusable.
    """
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise Unusable(f"{path.name} is not a file; put it back from a backup")
        with open(path, "rb") as file:
            header = file.read(HEADER)
    except FileNotFoundError as error:
        raise Unusable(f"there is no {path.name}; put it back from a backup, or remove the folder") from error
    except OSError as error:
        raise unreadable(path, error) from error
    if not header:  # of a file that it takes for a new one SQLite throws the log away
        return [f"{path.name} is empty, but there is a log"] if _has_log(path) else []
    size, version = page_size(header), _number_at(header, _VERSION_AT)
    if len(header) < HEADER or not size or version >= _NO_VERSION:
        return [f"{path.name} is not a ledger, or its start is damaged"]
    if version > VERSION:
        told = f"a newer version of hindsight has written it (schema {version}; this one has {VERSION})"
        raise Unusable(f"{told}; upgrade hindsight")
    whole = _number_at(header, _PAGES_AT) * size
    # With a log beside it the file may be behind what its header says.
    if status.st_size < whole and not _has_log(path):
        return [f"{path.name} was cut short: {status.st_size:,} of {whole:,} bytes are there"]
    return []


def name_faults(path: Path) -> list[str]:
    """Whether a ledger that was closed well can be opened and tells its bank, at the cost of a few pages."""
    if _has_log(path):
        return []
    try:
        with reading(path) as database:
            if version_of(database):
                database.execute("SELECT value FROM bank WHERE name = 'id'").fetchone()
    except sqlite3.Error as error:
        return [_damage(path, [str(error)])] if _is_damage(error) else [f"{path.name} can't be opened ({error})"]
    return []


def file_faults(path: Path) -> list[str]:
    """What SQLite finds wrong with the file itself in all of its pages. Raises Unusable."""
    try:
        with reading(path) as database:
            version, tables = version_of(database), _tables(database)
            expected = _TABLES | (_SENTENCES if version >= SINCE_SENTENCES else {}) if version else {}
            if expected.keys() != tables & (_TABLES | _SENTENCES).keys():
                return [_damage(path, [f"it does not have the tables of schema {version}"])]
            for table, columns in expected.items():  # a damaged definition of a table is not SQLite's concern
                database.execute(f"SELECT {columns} FROM {table} LIMIT 0")
            found = [row[0].decode() for row in database.execute(f"PRAGMA integrity_check({_MOST})")]
    except sqlite3.Error as error:
        if not _is_damage(error):
            raise Unusable(
                f"{path.name} can't be opened ({error}); give it and its folder to the server's user"
            ) from error
        found = [str(error)]
    return [_damage(path, found)] if found != ["ok"] else []


def is_empty(path: Path) -> bool:
    """Whether nothing was ever written to the ledger: its first transaction was cut short. Raises sqlite3.Error."""
    with reading(path) as database:
        return not _tables(database)


def has_forgotten(path: Path) -> bool:
    """Whether anything was forgotten since the ledger was last made compact."""
    with reading(path) as database:
        return database.execute("SELECT 1 FROM bank WHERE name = 'forgotten'").fetchone() is not None


def unindex(path: Path) -> None:
    """Note that the index holds nothing any more, not even what is gone."""
    with writing(path) as database, committed(database):
        database.execute("UPDATE passage SET indexed = 0 WHERE indexed")
        database.execute("DELETE FROM gone")


def compact(path: Path) -> None:
    """Write the file anew without the remains of what was removed from it, and empty its log."""
    with writing(path) as database:
        database.execute("DELETE FROM bank WHERE name = 'forgotten'")
        database.execute("VACUUM")
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")


@contextlib.contextmanager
def reading(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection that changes nothing and leaves no files behind, and hands texts out as bytes."""
    mode = "mode=ro" if _has_log(path) else "immutable=1"
    with contextlib.closing(sqlite3.connect(f"{path.absolute().as_uri()}?{mode}", uri=True)) as database:
        database.text_factory = bytes
        yield database


@contextlib.contextmanager
def writing(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection that writes, and overwrites what it removes; it hands texts out as bytes."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute("PRAGMA secure_delete = ON")
        database.text_factory = bytes
        yield database


def _tables(database: sqlite3.Connection) -> set[str]:
    return {row[0].decode() for row in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}


def _is_damage(error: sqlite3.Error) -> bool:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in _DAMAGE


def _damage(path: Path, found: list[str]) -> str:
    told = [" ".join(text.replace("*** in database main ***", "").split()) for text in found]
    return f"{path.name} is damaged ({'; '.join(told)})"


def _has_log(path: Path) -> bool:
    log = path.with_name(f"{path.name}-wal")
    return log.exists() and log.stat().st_size > 0


def _number_at(header: bytes, place: int) -> int:
    return int.from_bytes(header[place : place + 4], "big")
