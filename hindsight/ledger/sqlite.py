"""A ledger in one SQLite file, in WAL mode, synchronous at every commit.

The full-text index is kept as blocks of postings (retrieval/words.py): a block that is missing is made again from the
texts, so forgetting a memory only drops its block.
"""

from __future__ import annotations

import contextlib
import json
import logging
import sqlite3
import threading
from collections.abc import Generator, Iterator, Sequence
from functools import lru_cache
from itertools import groupby, islice
from pathlib import Path
from typing import Any

import numpy as np

from hindsight.embedding import Vectors
from hindsight.errors import (
    AlreadySuperseded,
    HindsightError,
    InvalidArgument,
    LedgerUnavailable,
    MemoryNotFound,
    StorageFull,
)
from hindsight.ledger import (
    Changes,
    Conditions,
    Cut,
    EmbedderMark,
    Entry,
    Facet,
    Forgotten,
    Glance,
    Numbers,
    Span,
    Stats,
    Stored,
)
from hindsight.ledger.conditions import Judge, as_sql, marks
from hindsight.record import Memory, MemoryType, Traits

logger = logging.getLogger(__name__)

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
    superseded_by TEXT,
    label TEXT NOT NULL,
    asks INTEGER NOT NULL,
    only_asks INTEGER NOT NULL,
    tells_time INTEGER NOT NULL
);
CREATE TABLE passage (
    key INTEGER PRIMARY KEY AUTOINCREMENT,
    number INTEGER NOT NULL REFERENCES memory ON DELETE CASCADE,
    start INTEGER NOT NULL,
    stop INTEGER NOT NULL,
    worded INTEGER NOT NULL,
    indexed INTEGER NOT NULL DEFAULT 0,
    vector BLOB
);
CREATE INDEX passage_of ON passage (number);
CREATE INDEX passage_pending ON passage (key) WHERE NOT indexed;
CREATE TABLE gone (key INTEGER PRIMARY KEY);
CREATE TABLE tag (
    tag TEXT, number INTEGER REFERENCES memory ON DELETE CASCADE, PRIMARY KEY (tag, number)
) WITHOUT ROWID;
CREATE INDEX tag_of ON tag (number);
CREATE INDEX memory_context ON memory (context);
CREATE INDEX memory_session ON memory (session_id);
CREATE INDEX memory_time ON memory (time_start, time_end);
CREATE INDEX memory_supersedes ON memory (supersedes) WHERE supersedes IS NOT NULL;
CREATE INDEX memory_superseded_by ON memory (superseded_by) WHERE superseded_by IS NOT NULL;
CREATE TABLE words (
    first INTEGER PRIMARY KEY, last INTEGER NOT NULL, version INTEGER NOT NULL, postings BLOB NOT NULL
);
"""
_COLUMNS = (
    "id, text, type, context, retained_at, event_date, session_id, document_id, tags, metadata, supersedes,"
    " superseded_by"
)
_MARKS = "identity, time_start, time_end, label, asks, only_asks, tells_time"
# SQLite's default limit on variables is 32,766; far below it the statement cache still helps.
_SLICE = 500
_UPGRADE = "Tell the operator to upgrade the server again; nothing was changed."
# A full disk shows while writing the log, its checkpoint, or the shared memory beside it.
_FULL = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_SHMSIZE)


def open_sqlite(path: Path, bank_id: str) -> SqliteLedger:
    """Open or create the ledger of a bank. Raises StorageFull, and LedgerUnavailable when the file is no ledger."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as opened:
        ledger = SqliteLedger(path)
        opened.callback(ledger.close)
        ledger.lay_out(bank_id)
        opened.pop_all()
    return ledger


def glance(path: Path) -> Glance:
    """The bank of a ledger and how many memories it holds, read beside whoever writes. Raises LedgerUnavailable."""
    with _errors_of_ours(), contextlib.closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as database:
        row = database.execute("SELECT (SELECT value FROM bank WHERE name = 'id'), count(*) FROM memory").fetchone()
    return Glance(str(row[0]), row[1])


class SqliteLedger:
    """Fulfils Ledger. One connection writes, others read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._writing = threading.Lock()
        self._readers: list[sqlite3.Connection] = []
        with _errors_of_ours():
            self._writer = _connect(path)
        self._inode = path.stat().st_ino

    def lay_out(self, bank_id: str) -> None:
        """Make the tables of a new file, and write down which bank it is: the folder's name does not always tell."""
        with self._commit() as database:
            version = database.execute("PRAGMA user_version").fetchone()[0]
            if version > SCHEMA_VERSION:
                raise LedgerUnavailable("a newer version of the server has written this bank", next_action=_UPGRADE)
            if version == 0:
                for statement in _SCHEMA.split(";"):
                    database.execute(statement)
                database.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
                database.execute("INSERT INTO bank VALUES ('id', ?)", (bank_id,))

    def embedder(self) -> EmbedderMark | None:
        rows = self._rows("SELECT value FROM bank WHERE name = 'embedder'")
        return EmbedderMark(**json.loads(rows[0][0])) if rows else None

    def retain(self, entries: Sequence[Entry], embedder: EmbedderMark) -> list[Stored | HindsightError]:
        with self._commit() as database:
            if any(entry.vectors is not None for entry in entries):
                _mark(database, embedder)
            return [_retain(database, entry) for entry in entries]

    def known(self, identities: Sequence[bytes]) -> dict[bytes, Memory]:
        rows = self._each(f"SELECT identity, {_COLUMNS} FROM memory WHERE identity IN", identities)
        return {row[0]: _memory(row[1:]) for row in rows}

    def find(self, id: str) -> tuple[int, Memory] | None:
        rows = self._rows(f"SELECT number, {_COLUMNS} FROM memory WHERE id = ?", (id,))
        return (rows[0][0], _memory(rows[0][1:])) if rows else None

    def select(self, conditions: Conditions) -> Numbers:
        clauses, values = as_sql(conditions)
        if conditions.predicate is None:
            rows = self._rows(f"SELECT number FROM memory WHERE {clauses} ORDER BY number", values)
        else:
            fits = Judge(conditions.predicate)
            found = self._rows(f"SELECT number, metadata FROM memory WHERE {clauses} ORDER BY number", values)
            rows = [row for row in found if fits(row[1])]
        return np.array([row[0] for row in rows], np.int64)

    def page(self, conditions: Conditions, *, newest: bool, beyond: int | None, most: int) -> list[tuple[int, Memory]]:
        clauses, values = as_sql(conditions)
        if beyond is not None:
            clauses, values = f"{clauses} AND number {'<' if newest else '>'} ?", [*values, beyond]
        query = f"SELECT number, {_COLUMNS} FROM memory WHERE {clauses} ORDER BY number {'DESC' if newest else 'ASC'}"
        fits = conditions.predicate or (lambda metadata: True)
        # Closed before the connection is given back: a statement that is not at its end keeps an old view open.
        with self._reading() as database, contextlib.closing(database.execute(query, values)) as rows:
            found = ((row[0], _memory(row[1:])) for row in rows)
            return list(islice((pair for pair in found if fits(pair[1].metadata)), most))

    def export(self) -> Generator[tuple[Memory, bytes], None, None]:
        # One statement that is not read to its end holds its view of the database, whatever is committed beside it.
        with self._reading() as database, contextlib.closing(database.cursor()) as cursor:
            for row in cursor.execute(f"SELECT identity, {_COLUMNS} FROM memory ORDER BY number"):
                yield _memory(row[1:]), row[0]

    def update(self, number: int, changes: Changes) -> Memory | None:
        with self._commit() as database:
            for column, value in _columns(changes).items():
                database.execute(f"UPDATE memory SET {column} = ? WHERE number = ?", (value, number))
            row = database.execute(f"SELECT {_COLUMNS} FROM memory WHERE number = ?", (number,)).fetchone()
            if row is not None and changes.tags is not None:
                database.execute("DELETE FROM tag WHERE number = ?", (number,))
                _insert_tags(database, number, changes.tags)
            return _memory(row) if row is not None else None

    def forget(self, numbers: Sequence[int]) -> Forgotten:
        keys: list[int] = []
        revived: list[int] = []
        count = 0
        with self._commit() as database:
            for number in numbers:
                keys += _forget_passages(database, number)
                revived += _unlink(database, number)
                count += database.execute("DELETE FROM memory WHERE number = ?", (number,)).rowcount
            if count:  # for upkeep.py: pages and index files may still hold remains
                database.execute("INSERT OR IGNORE INTO bank VALUES ('forgotten', '')")
        gone = set(numbers)
        return Forgotten(count, tuple(keys), tuple(number for number in revived if number not in gone))

    def fill(self) -> tuple[int, int]:
        query = "SELECT (SELECT count(*) FROM memory), page_count * page_size FROM pragma_page_count, pragma_page_size"
        memories, size = self._rows(query)[0]
        return memories, size

    def stats(self) -> Stats:
        with self._reading() as database:
            ask = database.execute
            total, superseded, first, last = ask(
                "SELECT count(*), count(superseded_by), min(event_date), max(event_date) FROM memory"
            ).fetchone()
            size = ask("SELECT page_count * page_size FROM pragma_page_count, pragma_page_size").fetchone()[0]
            types, contexts, tags = (
                dict(ask(f"SELECT {column}, count(*) FROM {table} GROUP BY 1 ORDER BY 2 DESC, 1"))
                for column, table in (("type", "memory"), ("context", "memory"), ("tag", "tag"))
            )
        return Stats(total, superseded, types, contexts, tags, first, last, size)

    def memories(self, numbers: Sequence[int]) -> dict[int, Memory]:
        rows = self._each(f"SELECT number, {_COLUMNS} FROM memory WHERE number IN", numbers)
        return {row[0]: _memory(row[1:]) for row in rows}

    def cuts(self, keys: Sequence[int]) -> dict[int, Cut]:
        rows = self._each("SELECT key, start, stop, worded FROM passage WHERE key IN", keys)
        return {key: Cut(start, stop, bool(worded)) for key, start, stop, worded in rows}

    def vectors(self, keys: Sequence[int]) -> tuple[Numbers, Vectors]:
        query = "SELECT key, vector FROM passage WHERE vector IS NOT NULL AND key IN"
        return _matrix(self._each(query, sorted(keys)))

    def vectors_from(self, key: int) -> tuple[Numbers, Vectors]:
        query = "SELECT key, vector FROM passage WHERE vector IS NOT NULL AND key >= ? ORDER BY key"
        return _matrix(self._rows(query, (key,)))

    def passages(self) -> tuple[Numbers, Numbers]:
        rows = self._rows("SELECT key, number FROM passage ORDER BY key")
        keys, numbers = np.array(rows, np.int64).reshape(len(rows), 2).T
        return keys, numbers

    def outlines(self) -> Iterator[tuple[int, Traits, str | None, str, bool]]:
        rows = self._rows(
            "SELECT number, label, asks, only_asks, tells_time, session_id,"
            " substr(coalesce(event_date, retained_at), 1, 10), superseded_by IS NOT NULL FROM memory ORDER BY number"
        )
        for number, label, asks, only_asks, tells_time, session, day, superseded in rows:
            yield number, _traits(label, asks, only_asks, tells_time), session, day, bool(superseded)

    def facets(self) -> Iterator[tuple[int, Facet]]:
        rows = self._rows(
            "SELECT number, type, context, session_id, tags, metadata, time_start, time_end FROM memory ORDER BY number"
        )
        for number, type_, context, session, tags, metadata, start, end in rows:
            tagged = tuple(json.loads(tags)) if tags != "[]" else ()
            yield number, Facet(MemoryType(type_), context, session, tagged, json.loads(metadata), Span(start, end))

    def passage_texts(self, first: int, last: int) -> list[tuple[int, str]]:
        return self._pieces("worded AND key BETWEEN ? AND ? ORDER BY key", (first, last))

    def unembedded(self, most: int, beyond: int = 0) -> list[tuple[int, str]]:
        return self._pieces("vector IS NULL AND NOT indexed AND key > ? ORDER BY key LIMIT ?", (beyond, most))

    def late(self) -> Numbers:
        rows = self._rows("SELECT key FROM passage WHERE vector IS NULL AND NOT indexed ORDER BY key")
        return np.array([row[0] for row in rows], np.int64)

    def embed(self, keys: Sequence[int], vectors: Vectors, embedder: EmbedderMark) -> None:
        with self._commit() as database:
            _mark(database, embedder)
            pairs = [(row.tobytes(), key) for key, row in zip(keys, vectors, strict=True)]
            database.executemany("UPDATE passage SET vector = ? WHERE key = ?", pairs)

    def give_to(self, embedder: EmbedderMark) -> None:
        with self._commit() as database:
            row = database.execute("SELECT value ->> 'dimension' FROM bank WHERE name = 'embedder'").fetchone()
            if row and row[0] == embedder.dimension:
                database.execute("INSERT OR IGNORE INTO gone SELECT key FROM passage WHERE vector IS NOT NULL")
            database.execute("UPDATE passage SET vector = NULL, indexed = 0")
            database.execute("DELETE FROM bank WHERE name = 'embedder'")
            _mark(database, embedder)

    def unindexed(self, most: int) -> tuple[Numbers, Vectors]:
        query = "SELECT key, vector FROM passage WHERE vector IS NOT NULL AND NOT indexed ORDER BY key LIMIT ?"
        return _matrix(self._rows(query, (most,)))

    def indexed(self, keys: Sequence[int]) -> None:
        with self._commit() as database:
            database.executemany("UPDATE passage SET indexed = 1 WHERE key = ?", [(key,) for key in keys])

    def gone(self, most: int) -> Numbers:
        return np.array([row[0] for row in self._rows("SELECT key FROM gone LIMIT ?", (most,))], np.int64)

    def dropped(self, keys: Sequence[int]) -> None:
        with self._commit() as database:
            database.executemany("DELETE FROM gone WHERE key = ?", [(key,) for key in keys])

    def unindex(self) -> None:
        with self._commit() as database:
            # What is gone stays noted: a step on its way to the index may hold a passage that was forgotten since.
            database.execute("UPDATE passage SET indexed = 0")

    def word_blocks(self, version: int) -> dict[int, bytes]:
        return dict(self._rows("SELECT first, postings FROM words WHERE version = ?", (version,)))

    def keep_word_block(self, first: int, last: int, version: int, block: bytes) -> None:
        with self._commit() as database:
            database.execute("INSERT OR REPLACE INTO words VALUES (?, ?, ?, ?)", (first, last, version, block))

    def close(self) -> None:
        for reader in self._readers:
            reader.close()
        with self._writing:
            self._writer.close()

    @contextlib.contextmanager
    def _commit(self) -> Iterator[sqlite3.Connection]:
        """One transaction: all of it on disk at the end, or nothing."""
        with self._writing, _errors_of_ours():
            self._writer.execute("BEGIN IMMEDIATE")
            try:
                yield self._writer
                self._check_place()
                self._writer.execute("COMMIT")
            finally:
                if self._writer.in_transaction:
                    self._writer.execute("ROLLBACK")

    def _check_place(self) -> None:
        """Nothing may be acknowledged that goes to a file which was removed or replaced while it was open."""
        try:
            there = self._path.stat().st_ino
        except FileNotFoundError:
            there = -1
        if there != self._inode:
            raise LedgerUnavailable(
                "the bank's files were removed or replaced while the server ran; nothing was stored"
            )

    @contextlib.contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        """A connection of one's own: one that is shared would show every reader the oldest one's view."""
        with _errors_of_ours():
            try:
                reader = self._readers.pop()
            except IndexError:
                reader = _connect(self._path)
            try:
                yield reader
            finally:
                self._readers.append(reader)

    def _rows(self, query: str, values: Sequence[object] = ()) -> list[Any]:
        with self._reading() as database:
            return database.execute(query, values).fetchall()

    def _pieces(self, condition: str, values: Sequence[object]) -> list[tuple[int, str]]:
        """Keys and texts of passages. Each memory's text is read once: a long one has a thousand passages."""
        found: list[tuple[int, str]] = []
        with self._reading() as database:
            cuts = database.execute(
                f"SELECT key, number, start, stop FROM passage WHERE {condition}", values
            ).fetchall()
            for number, its in groupby(cuts, key=lambda row: row[1]):
                row = database.execute("SELECT text FROM memory WHERE number = ?", (number,)).fetchone()
                found += [(key, row[0][start:stop]) for key, _, start, stop in its if row]
        return found

    def _each(self, query: str, values: Sequence[int | bytes]) -> list[Any]:
        parts = (values[start : start + _SLICE] for start in range(0, len(values), _SLICE))
        with self._reading() as database:
            return [row for part in parts for row in database.execute(f"{query} ({marks(part)})", part)]


def _matrix(rows: Sequence[tuple[int, bytes]]) -> tuple[Numbers, Vectors]:
    keys = np.array([key for key, _ in rows], np.int64)
    vectors = np.frombuffer(b"".join(vector for _, vector in rows), np.float32)
    return keys, vectors.reshape(len(rows), -1 if rows else 0)


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=10, cached_statements=64)
    for pragma in ("journal_mode = WAL", "synchronous = FULL", "foreign_keys = ON", "secure_delete = ON"):
        connection.execute(f"PRAGMA {pragma}")
    return connection


@contextlib.contextmanager
def _errors_of_ours() -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        # Some errors of the module itself, such as a closed connection, have no code.
        if getattr(error, "sqlite_errorcode", None) in _FULL:
            raise StorageFull("the disk is full; nothing was stored") from error
        logger.error("a ledger does not work: %s", error)
        raise LedgerUnavailable("the bank's ledger does not work at the moment") from error


def _mark(database: sqlite3.Connection, embedder: EmbedderMark) -> None:
    """Write down whose vectors these are, before the first one."""
    mark = json.dumps({"name": embedder.name, "dimension": embedder.dimension})
    database.execute("INSERT OR IGNORE INTO bank VALUES ('embedder', ?)", (mark,))


def _retain(database: sqlite3.Connection, entry: Entry) -> Stored | HindsightError:
    memory = entry.memory
    row = database.execute(f"SELECT {_COLUMNS} FROM memory WHERE identity = ?", (entry.identity,)).fetchone()
    if row:
        return Stored(_memory(row), known=True)
    if database.execute("SELECT 1 FROM memory WHERE id = ?", (memory.id,)).fetchone():
        return InvalidArgument(f"id {memory.id} is another memory's; nothing was stored", argument="id")
    superseded = None if memory.supersedes is None else _supersede(database, memory.supersedes, memory.id)
    if isinstance(superseded, HindsightError):
        return superseded
    number = _insert(database, entry)
    _insert_tags(database, number, memory.tags)
    vectors = [row.tobytes() for row in entry.vectors] if entry.vectors is not None else []
    keys = tuple(
        _last_row(
            database.execute(
                "INSERT INTO passage (number, start, stop, worded, vector) VALUES (?, ?, ?, ?, ?)",
                (number, cut.start, cut.end, cut.worded, vector),
            )
        )
        for cut, vector in zip(entry.cuts, [*vectors, *[None] * (len(entry.cuts) - len(vectors))], strict=True)
    )
    return Stored(memory, known=False, number=number, keys=keys, superseded=superseded)


def _supersede(database: sqlite3.Connection, old: str, new: str) -> int | HindsightError:
    row = database.execute("SELECT superseded_by, number FROM memory WHERE id = ?", (old,)).fetchone()
    if row is None:
        return MemoryNotFound(f"supersedes names {old[:128]}, and this bank has no such memory; nothing was stored")
    if row[0] is not None:
        return AlreadySuperseded(f"{old} is superseded by {row[0]} already; nothing was stored", superseded_by=row[0])
    database.execute("UPDATE memory SET superseded_by = ? WHERE id = ?", (new, old))
    return int(row[1])


def _columns(changes: Changes) -> dict[str, object]:
    """The columns that the changes set."""
    given = {
        "context": changes.context,
        "type": changes.type and changes.type.value,
        "event_date": changes.event_date,
        "time_start": changes.time and changes.time.start,
        "time_end": changes.time and changes.time.end,
        "tags": None if changes.tags is None else _json(list(changes.tags)),
        "metadata": None if changes.metadata is None else _json(changes.metadata),
    }
    return {column: value for column, value in given.items() if value is not None}


def _forget_passages(database: sqlite3.Connection, number: int) -> list[int]:
    keys = [key for (key,) in database.execute("SELECT key FROM passage WHERE number = ?", (number,))]
    if keys:
        # Also those that the index does not have: they may be on their way.
        database.execute("INSERT OR IGNORE INTO gone SELECT key FROM passage WHERE number = ?", (number,))
        database.execute("DELETE FROM words WHERE last >= ? AND first <= ?", (min(keys), max(keys)))
        database.execute("DELETE FROM passage WHERE number = ?", (number,))
    return keys


def _unlink(database: sqlite3.Connection, number: int) -> list[int]:
    """Clear the links to a memory; returns the memories that it had superseded."""
    row = database.execute("SELECT id FROM memory WHERE number = ?", (number,)).fetchone()
    if row is None:
        return []
    revived = [found for (found,) in database.execute("SELECT number FROM memory WHERE superseded_by = ?", row)]
    database.execute("UPDATE memory SET superseded_by = NULL WHERE superseded_by = ?", row)
    database.execute("UPDATE memory SET supersedes = NULL WHERE supersedes = ?", row)
    return revived


def _insert_tags(database: sqlite3.Connection, number: int, tags: Sequence[str]) -> None:
    database.executemany("INSERT OR IGNORE INTO tag VALUES (?, ?)", [(tag, number) for tag in tags])


def _insert(database: sqlite3.Connection, entry: Entry) -> int:
    memory, traits = entry.memory, entry.traits
    values = (
        *(memory.id, memory.text, memory.type.value, memory.context, memory.retained_at, memory.event_date),
        *(memory.session_id, memory.document_id, _json(list(memory.tags)), _json(memory.metadata)),
        *(memory.supersedes, memory.superseded_by, entry.identity, entry.time.start, entry.time.end),
        *(traits.label, traits.asks, traits.only_asks, traits.tells_time),
    )
    query = f"INSERT INTO memory ({_COLUMNS}, {_MARKS}) VALUES ({marks(values)})"
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


@lru_cache(maxsize=4096)
def _traits(label: str, asks: int, only_asks: int, tells_time: int) -> Traits:
    return Traits(label, bool(asks), bool(only_asks), bool(tells_time))


def _optional(value: object) -> str | None:
    return None if value is None else str(value)
