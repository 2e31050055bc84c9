"""A ledger in one SQLite file, in WAL mode, synchronous at every commit.

The full-text index is kept as blocks of postings (retrieval/words.py): a block that is missing is made again from the
texts, so forgetting a memory only drops its block.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
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
    LedgerDamaged,
    LedgerUnavailable,
    MemoryNotFound,
    StorageFull,
    StorageGone,
    StorageReadOnly,
    Unavailable,
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
    Tie,
)
from hindsight.ledger.conditions import Judge, as_sql, marks
from hindsight.ledger.salvage import finish, is_unfinished
from hindsight.ledger.schema import VERSION, committed, lay_out, version_of
from hindsight.record import Memory, MemoryType, Traits

logger = logging.getLogger(__name__)

_COLUMNS = (
    "id, text, type, context, retained_at, event_date, session_id, document_id, tags, metadata, supersedes,"
    " superseded_by"
)
_MARKS = "identity, time_start, time_end, label, asks, only_asks, tells_time"
# SQLite's default limit on variables is 32,766; far below it the statement cache still helps.
_SLICE = 500
_DAMAGED = "this bank's ledger is damaged"
_BROKEN = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_NO_TEXT = "Could not decode to UTF-8"  # starts the message of an error that has no code
# A full disk shows while writing the log, its checkpoint, or the shared memory beside it.
_FULL = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_SHMSIZE)
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)


def open_sqlite(path: Path, bank_id: str) -> SqliteLedger:
    """Open or create the ledger of a bank; one that can't be written is frozen.

    Raises StorageFull or StorageReadOnly when it can't be read then, LedgerUnavailable when the file is no ledger.
    """
    try:
        return _opened(SqliteLedger(path), bank_id)
    except (StorageFull, StorageReadOnly) as error:
        if not path.exists() or is_unfinished(path):
            raise
        return _opened(SqliteLedger(path, frozen=error), bank_id)


def glance(path: Path) -> Glance:
    """The bank of a ledger and how much it holds, read beside whoever writes. Raises LedgerUnavailable."""
    try:
        return _glance(path, f"{path.as_uri()}?mode=ro")
    except (StorageFull, StorageReadOnly):
        return _glance(path, _frozen(path))


def _opened(ledger: SqliteLedger, bank_id: str) -> SqliteLedger:
    with contextlib.ExitStack() as opened:
        opened.callback(ledger.close)
        ledger.lay_out(bank_id)
        opened.pop_all()
    return ledger


def _glance(path: Path, uri: str) -> Glance:
    with _adapting(path), contextlib.closing(sqlite3.connect(uri, uri=True)) as database:
        if not database.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            return Glance("", 0, 0, begun=False)
        row = database.execute(
            "SELECT (SELECT value FROM bank WHERE name = 'id'), (SELECT count(*) FROM memory), page_count * page_size,"
            " (SELECT count(*) FROM sqlite_sequence WHERE name = 'memory') FROM pragma_page_count, pragma_page_size"
        ).fetchone()
        if row[0] is None:
            raise LedgerDamaged(_DAMAGED)
    return Glance(str(row[0]), row[1], row[2], begun=bool(row[3]))


def tie_of(path: Path) -> Tie | None:
    """What ties a ledger to its collection on a server, read like a glance. Raises LedgerUnavailable."""
    with _adapting(path), contextlib.closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as database:
        row = database.execute("SELECT value FROM bank WHERE name = 'tie'").fetchone()
    return _tie(row[0]) if row else None


class SqliteLedger:
    """Fulfils Ledger. One connection writes, others read.

    Once damage was met nothing is written any more: it could spread. `frozen` is why nothing can be written now.
    """

    def __init__(self, path: Path, frozen: Unavailable | None = None) -> None:
        self._path = path
        self._frozen = frozen
        self._writing = threading.Lock()
        self._readers: list[sqlite3.Connection] = []
        self._damaged = False
        with self._telling():
            if frozen is None:
                path.parent.mkdir(parents=True, exist_ok=True)
                finish(path)
            self._writer = self._connected()
            self._inode = path.stat().st_ino

    @property
    def frozen(self) -> bool:
        return self._frozen is not None

    def lay_out(self, bank_id: str) -> None:
        """Make the tables of a new file; bring an older one to the version of today."""
        with self._writing, self._telling():
            if self._frozen is None:
                lay_out(self._writer, bank_id)
            elif version_of(self._writer) != VERSION:
                raise self._frozen

    def embedder(self) -> EmbedderMark | None:
        rows = self._rows("SELECT value FROM bank WHERE name = 'embedder'")
        with _understanding():
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
        with _understanding():
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

    def sentences(self, keys: Sequence[int]) -> dict[int, bytes]:
        return dict(self._each("SELECT key, vectors FROM sentences WHERE key IN", keys))

    def embed(
        self,
        keys: Sequence[int],
        vectors: Vectors,
        embedder: EmbedderMark,
        sentences: Sequence[tuple[int, bytes]] = (),
    ) -> None:
        with self._commit() as database:
            _mark(database, embedder)
            pairs = [(row.tobytes(), key) for key, row in zip(keys, vectors, strict=True)]
            database.executemany("UPDATE passage SET vector = ? WHERE key = ?", pairs)
            query = "INSERT OR REPLACE INTO sentences SELECT key, ? FROM passage WHERE key = ?"
            database.executemany(query, [(kept, key) for key, kept in sentences])

    def give_to(self, embedder: EmbedderMark) -> None:
        with self._commit() as database:
            database.execute("UPDATE passage SET vector = NULL, indexed = 0")
            database.execute("DELETE FROM sentences")
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

    def carried(self) -> int:
        # Both counts come from an index of SQLite's: the table itself has all the vectors between its rows.
        counts = "SELECT (SELECT count(*) FROM passage) - (SELECT count(*) FROM passage WHERE NOT indexed)"
        return int(self._rows(counts)[0][0])

    def correct(self, held: Numbers) -> tuple[Numbers, Numbers]:
        with self._commit() as database:
            there, pending, late = (
                np.array([key for (key,) in database.execute(f"SELECT key FROM passage {which}")], np.int64)
                for which in ("", "WHERE NOT indexed", "WHERE NOT indexed AND vector IS NULL")
            )
            lost = np.setdiff1d(np.setdiff1d(there, pending), held)
            strange = np.setdiff1d(held, np.setdiff1d(there, late))
            database.executemany("UPDATE passage SET indexed = 0 WHERE key = ?", [(key,) for key in lost.tolist()])
            database.executemany("INSERT OR IGNORE INTO gone VALUES (?)", [(key,) for key in strange.tolist()])
        return lost, strange

    def tie(self) -> Tie | None:
        rows = self._rows("SELECT value FROM bank WHERE name = 'tie'")
        return _tie(rows[0][0]) if rows else None

    def retie(self, tie: Tie) -> None:
        with self._commit() as database:
            database.execute("INSERT OR REPLACE INTO bank VALUES ('tie', ?)", (_json([tie.uid, *tie.eras]),))

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
        if self._damaged:
            raise LedgerDamaged(_DAMAGED)
        if self._frozen is not None:
            raise type(self._frozen)(self._frozen.message)
        with self._writing, self._telling(), committed(self._writer):
            yield self._writer
            self._check_place()

    def _check_place(self) -> None:
        """Nothing may be acknowledged that goes to a file which was removed or replaced while it was open."""
        try:
            there = self._path.stat().st_ino
        except FileNotFoundError:
            there = -1
        if there != self._inode:
            raise StorageGone("the bank's files were removed or replaced while the server ran; nothing was stored")

    @contextlib.contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        """A connection of one's own: one that is shared would show every reader the oldest one's view."""
        with self._telling():
            try:
                reader = self._readers.pop()
            except IndexError:
                reader = self._connected()
            try:
                yield reader
            finally:
                self._readers.append(reader)

    def _connected(self) -> sqlite3.Connection:
        return _connect(str(self._path)) if self._frozen is None else _connect_to_read(_frozen(self._path))

    @contextlib.contextmanager
    def _telling(self) -> Iterator[None]:
        """Adapt errors, and log them, damage only once."""
        try:
            with _adapting(self._path):
                yield
        except LedgerDamaged as error:
            if not self._damaged:
                told = "is damaged (%s): stop the server and run hindsight check --repair"
                logger.error(f"the ledger of bank %s {told}", self._path.parent.name, _told(error.__cause__))
            self._damaged = True
            raise
        except LedgerUnavailable as error:
            logger.error("the ledger of bank %s does not work: %s", self._path.parent.name, error.__cause__ or error)
            raise

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


def _tie(value: str) -> Tie:
    with _understanding():
        uid, *eras = json.loads(value)
        return Tie(uid, tuple(eras))


def _matrix(rows: Sequence[tuple[int, bytes]]) -> tuple[Numbers, Vectors]:
    keys = np.array([key for key, _ in rows], np.int64)
    with _understanding():
        vectors = np.frombuffer(b"".join(vector for _, vector in rows), np.float32)
        return keys, vectors.reshape(len(rows), -1 if rows else 0)


def _frozen(path: Path) -> str:
    """The URI by which SQLite reads a ledger of whose files it can write none.

    It wants to write to read a log. Where there is none it reads the file as it is, which nobody may write meanwhile.
    """
    log = Path(f"{path}-wal")
    return f"{path.as_uri()}?{'mode=ro' if log.exists() and log.stat().st_size else 'immutable=1'}"


def _connect_to_read(uri: str) -> sqlite3.Connection:
    return sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False, cached_statements=64)


def _connect(path: str) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=10, cached_statements=64)
    for pragma in ("journal_mode = WAL", "synchronous = FULL", "foreign_keys = ON", "secure_delete = ON"):
        connection.execute(f"PRAGMA {pragma}")
    return connection


@contextlib.contextmanager
def _adapting(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        # Some errors of the module itself, such as a closed connection, have no code.
        code = getattr(error, "sqlite_errorcode", None) or 0
        if code & 0xFF in _BROKEN or str(error).startswith(_NO_TEXT):
            raise LedgerDamaged(_DAMAGED) from error
        raise _unavailable(path, full=code in _FULL) from error
    except OSError as error:
        raise _unavailable(path, full=error.errno in _NO_SPACE) from error


def _unavailable(path: Path, *, full: bool) -> Unavailable:
    place = next(folder for folder in path.parents if folder.exists())
    if not os.access(place, os.W_OK) or (path.exists() and not os.access(path, os.W_OK)):
        return StorageReadOnly("the data folder is read-only; nothing was stored")
    if full:
        return StorageFull("the disk is full; nothing was stored")
    return LedgerUnavailable("the bank's ledger does not work at the moment")


@contextlib.contextmanager
def _understanding() -> Iterator[None]:
    """What a ledger of ours can't hold is damage that SQLite did not see."""
    try:
        yield
    except (ValueError, TypeError) as error:
        logger.error("a ledger holds what can't be read: stop the server and run hindsight check --repair")
        raise LedgerDamaged(_DAMAGED) from error


def _told(error: BaseException | None) -> str:
    """An error without what it quotes of a memory."""
    return "a text is none" if str(error).startswith(_NO_TEXT) else str(error)


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
    if entry.sentences:
        database.execute("INSERT INTO sentences VALUES (?, ?)", (keys[0], entry.sentences))
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
    with _understanding():
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
