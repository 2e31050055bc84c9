"""A ledger in one SQLite file, in WAL mode, synchronous at every commit.

The full-text index is kept as blocks of postings (retrieval/words.py): a block that is missing is made again from the
texts, so forgetting a memory only drops its block.
"""

from __future__ import annotations

import contextlib
import errno
import json
import sqlite3
import threading
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hindsight.embedding import Vectors
from hindsight.errors import AlreadySuperseded, HindsightError, MemoryNotFound, StorageFull
from hindsight.ledger import Cut, EmbedderMark, Entry, Numbers, PassageRow, Stored
from hindsight.record import Memory, MemoryType

SCHEMA_VERSION = 1
_SCHEMA = """
CREATE TABLE bank (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE memory (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    identity BLOB NOT NULL UNIQUE,
    text TEXT NOT NULL,
    type TEXT NOT NULL,
    context TEXT NOT NULL,
    retained_at TEXT NOT NULL,
    event_date TEXT,
    time_start INTEGER NOT NULL,
    time_end INTEGER NOT NULL,
    session_id TEXT,
    document_id TEXT,
    tags TEXT NOT NULL,
    metadata TEXT NOT NULL,
    supersedes TEXT,
    superseded_by TEXT
);
CREATE TABLE passage (
    key INTEGER PRIMARY KEY AUTOINCREMENT,
    number INTEGER NOT NULL REFERENCES memory ON DELETE CASCADE,
    start INTEGER NOT NULL,
    stop INTEGER NOT NULL,
    indexed INTEGER NOT NULL DEFAULT 0,
    vector BLOB
);
CREATE INDEX passage_of ON passage (number);
CREATE INDEX passage_pending ON passage (key) WHERE NOT indexed;
CREATE TABLE words (block INTEGER PRIMARY KEY, version INTEGER NOT NULL, postings BLOB NOT NULL);
"""
_COLUMNS = (
    "id, text, type, context, retained_at, event_date, session_id, document_id, tags, metadata, supersedes,"
    " superseded_by"
)
# SQLite's default limit on variables is 32,766; far below it the statement cache still helps.
_SLICE = 500


def open_sqlite(path: Path, bank_id: str) -> SqliteLedger:
    """Open or create the ledger of a bank. Raises StorageFull, or sqlite3.DatabaseError when the file is none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    ledger = SqliteLedger(path)
    ledger.name_bank(bank_id)
    return ledger


class SqliteLedger:
    """Fulfils Ledger. One connection writes, another one reads."""

    def __init__(self, path: Path) -> None:
        self._writing = threading.Lock()
        self._writer = _connect(path)
        with self._commit() as database:
            if database.execute("PRAGMA user_version").fetchone()[0] == 0:
                for statement in _SCHEMA.split(";"):
                    database.execute(statement)
                database.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        self._reader = _connect(path)
        self._reader.execute("PRAGMA query_only = ON")

    def name_bank(self, bank_id: str) -> None:
        """Write down which bank this is: the folder's name alone does not always tell."""
        with self._commit() as database:
            database.execute("INSERT OR IGNORE INTO bank VALUES ('id', ?)", (bank_id,))

    def embedder(self) -> EmbedderMark | None:
        row = self._reader.execute("SELECT value FROM bank WHERE name = 'embedder'").fetchone()
        return EmbedderMark(**json.loads(row[0])) if row else None

    def retain(self, entries: Sequence[Entry], embedder: EmbedderMark) -> list[Stored | HindsightError]:
        with self._commit() as database:
            mark = json.dumps({"name": embedder.name, "dimension": embedder.dimension})
            database.execute("INSERT OR IGNORE INTO bank VALUES ('embedder', ?)", (mark,))
            return [_retain(database, entry) for entry in entries]

    def known(self, identities: Collection[bytes]) -> dict[bytes, Memory]:
        query = f"SELECT identity, {_COLUMNS} FROM memory WHERE identity IN"
        return {row[0]: _memory(row[1:]) for row in self._each(query, list(identities))}

    def memories(self, numbers: Sequence[int]) -> dict[int, Memory]:
        query = f"SELECT number, {_COLUMNS} FROM memory WHERE number IN"
        return {row[0]: _memory(row[1:]) for row in self._each(query, numbers)}

    def cuts(self, keys: Sequence[int]) -> dict[int, Cut]:
        rows = self._each("SELECT key, start, stop FROM passage WHERE key IN", keys)
        return {key: Cut(start, stop) for key, start, stop in rows}

    def vectors(self, keys: Sequence[int]) -> tuple[Numbers, Vectors]:
        query = "SELECT key, vector FROM passage WHERE vector IS NOT NULL AND key IN"
        return self._matrix(self._each(query, sorted(keys)))

    def passages(self, above: int) -> list[PassageRow]:
        rows = self._reader.execute(
            "SELECT key, number, superseded_by IS NOT NULL FROM passage JOIN memory USING (number)"
            " WHERE key > ? ORDER BY key",
            (above,),
        )
        return [PassageRow(key, number, bool(superseded)) for key, number, superseded in rows]

    def passage_texts(self, first: int, last: int) -> Iterator[tuple[int, str]]:
        rows = self._reader.execute(
            "SELECT key, text, start, stop FROM passage JOIN memory USING (number)"
            " WHERE key BETWEEN ? AND ? ORDER BY key",
            (first, last),
        )
        return ((key, text[start:stop]) for key, text, start, stop in rows)

    def unembedded(self, most: int) -> list[tuple[int, str]]:
        rows = self._reader.execute(
            "SELECT key, text, start, stop FROM passage JOIN memory USING (number)"
            " WHERE vector IS NULL AND NOT indexed ORDER BY key LIMIT ?",
            (most,),
        )
        return [(key, text[start:stop]) for key, text, start, stop in rows]

    def embed(self, keys: Sequence[int], vectors: Vectors) -> None:
        with self._commit() as database:
            pairs = [(row.tobytes(), key) for key, row in zip(keys, vectors, strict=True)]
            database.executemany("UPDATE passage SET vector = ? WHERE key = ?", pairs)

    def unindexed(self, most: int) -> tuple[Numbers, Vectors]:
        rows = self._reader.execute(
            "SELECT key, vector FROM passage WHERE vector IS NOT NULL AND NOT indexed ORDER BY key LIMIT ?", (most,)
        )
        return self._matrix(rows)

    def indexed(self, keys: Sequence[int]) -> None:
        with self._commit() as database:
            database.executemany("UPDATE passage SET indexed = 1 WHERE key = ?", [(key,) for key in keys])

    def unindex(self) -> None:
        with self._commit() as database:
            database.execute("UPDATE passage SET indexed = 0")

    def word_blocks(self, version: int) -> dict[int, bytes]:
        return dict(self._reader.execute("SELECT block, postings FROM words WHERE version = ?", (version,)))

    def keep_word_block(self, number: int, version: int, block: bytes) -> None:
        with self._commit() as database:
            database.execute("INSERT OR REPLACE INTO words VALUES (?, ?, ?)", (number, version, block))

    def close(self) -> None:
        self._reader.close()
        with self._writing:
            self._writer.close()

    @contextlib.contextmanager
    def _commit(self) -> Iterator[sqlite3.Connection]:
        """One transaction: all of it on disk at the end, or nothing."""
        with self._writing, _full_disk_named():
            self._writer.execute("BEGIN IMMEDIATE")
            try:
                yield self._writer
                self._writer.execute("COMMIT")
            finally:
                if self._writer.in_transaction:
                    self._writer.execute("ROLLBACK")

    def _each(self, query: str, values: Sequence[int | bytes | str]) -> Iterator[tuple[Any, ...]]:
        for start in range(0, len(values), _SLICE):
            part = values[start : start + _SLICE]
            yield from self._reader.execute(f"{query} ({','.join('?' * len(part))})", part)

    def _matrix(self, rows: Iterator[tuple[Any, ...]]) -> tuple[Numbers, Vectors]:
        found = list(rows)
        keys = np.array([row[0] for row in found], np.int64)
        matrix = np.frombuffer(b"".join(row[1] for row in found), np.float32)
        return keys, matrix.reshape(len(found), -1 if found else 0)


def _connect(path: Path) -> sqlite3.Connection:
    # Reads from several threads share a connection: SQLite serialises them itself.
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=10, cached_statements=64)
    for pragma in ("journal_mode = WAL", "synchronous = FULL", "foreign_keys = ON", "secure_delete = ON"):
        connection.execute(f"PRAGMA {pragma}")
    return connection


@contextlib.contextmanager
def _full_disk_named() -> Iterator[None]:
    try:
        yield
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode not in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE):
            raise
        raise StorageFull("the disk is full; nothing was stored") from error
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        raise StorageFull("the disk is full; nothing was stored") from error


def _retain(database: sqlite3.Connection, entry: Entry) -> Stored | HindsightError:
    memory = entry.memory
    row = database.execute(f"SELECT {_COLUMNS} FROM memory WHERE identity = ?", (entry.identity,)).fetchone()
    if row:
        return Stored(_memory(row), known=True)
    superseded = None if memory.supersedes is None else _supersede(database, memory.supersedes, memory.id)
    if isinstance(superseded, HindsightError):
        return superseded
    number = _insert(database, entry)
    vectors = [None] * len(entry.cuts) if entry.vectors is None else [row.tobytes() for row in entry.vectors]
    keys = tuple(
        _last_row(
            database.execute(
                "INSERT INTO passage (number, start, stop, vector) VALUES (?, ?, ?, ?)",
                (number, cut.start, cut.end, vector),
            )
        )
        for cut, vector in zip(entry.cuts, vectors, strict=True)
    )
    return Stored(memory, known=False, number=number, keys=keys, superseded=superseded)


def _supersede(database: sqlite3.Connection, old: str, new: str) -> int | HindsightError:
    row = database.execute("SELECT superseded_by, number FROM memory WHERE id = ?", (old,)).fetchone()
    if row is None:
        return MemoryNotFound(f"supersedes names {old}, and this bank has no such memory; nothing was stored")
    if row[0] is not None:
        return AlreadySuperseded(f"{old} is superseded by {row[0]} already; nothing was stored", superseded_by=row[0])
    database.execute("UPDATE memory SET superseded_by = ? WHERE id = ?", (new, old))
    return int(row[1])


def _insert(database: sqlite3.Connection, entry: Entry) -> int:
    memory = entry.memory
    values = (
        *(memory.id, memory.text, memory.type.value, memory.context, memory.retained_at, memory.event_date),
        *(memory.session_id, memory.document_id, _json(list(memory.tags)), _json(memory.metadata)),
        *(memory.supersedes, memory.superseded_by, entry.identity, entry.time.start, entry.time.end),
    )
    marks = ",".join("?" * len(values))
    query = f"INSERT INTO memory ({_COLUMNS}, identity, time_start, time_end) VALUES ({marks})"
    return _last_row(database.execute(query, values))


def _last_row(cursor: sqlite3.Cursor) -> int:
    assert cursor.lastrowid is not None  # an INSERT has just run
    return cursor.lastrowid


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _memory(row: Sequence[object]) -> Memory:
    id_, text, type_, context, retained_at, event_date, session, document, tags, metadata, supersedes, successor = row
    return Memory(
        id=str(id_),
        text=str(text),
        type=MemoryType(str(type_)),
        context=str(context),
        retained_at=str(retained_at),
        event_date=_optional(event_date),
        session_id=_optional(session),
        document_id=_optional(document),
        tags=tuple(json.loads(str(tags))),
        metadata=json.loads(str(metadata)),
        supersedes=_optional(supersedes),
        superseded_by=_optional(successor),
    )


def _optional(value: object) -> str | None:
    return None if value is None else str(value)
