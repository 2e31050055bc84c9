"""The tables of a ledger in SQLite, their version, and the way from every version before to this one.

A step is never changed once it was released: ledgers of all versions are out there. A file's version is SQLite's
user_version, written in the transaction that makes it so.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterator, Sequence

from hindsight.errors import LedgerUnavailable

Step = Callable[[sqlite3.Connection], None]

_SENTENCES = """
CREATE TABLE sentences (key INTEGER PRIMARY KEY REFERENCES passage ON DELETE CASCADE, vectors BLOB NOT NULL)
"""


def _keep_sentences(database: sqlite3.Connection) -> None:
    """Memories from before have none, and are found by the vectors of their whole texts."""
    database.execute(_SENTENCES)


# What leads from version 1 to 2, from 2 to 3, and so on. A step works in a transaction that it does not end.
STEPS: tuple[Step, ...] = (_keep_sentences,)
VERSION = 1 + len(STEPS)
SINCE_SENTENCES = 2  # the first version that has them
_TABLES = f"""
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
{_SENTENCES};
"""
_UPGRADE = "Tell the operator to upgrade the server again; nothing was changed."


def version_of(database: sqlite3.Connection) -> int:
    """The version of a ledger; 0 for a file that holds nothing yet."""
    return int(database.execute("PRAGMA user_version").fetchone()[0])


def lay_out(database: sqlite3.Connection, bank_id: str, steps: Sequence[Step] = STEPS) -> None:
    """Make the tables of a new file, and write down which bank it is; bring an older one to this version.

    A step is one transaction: killed in between, the file is whole and of the version before. Raises
    LedgerUnavailable when the file is of a newer version, and leaves it as it is.
    """
    with committed(database):
        version = version_of(database)
        if version > 1 + len(steps):
            raise LedgerUnavailable("a newer version of the server has written this bank", next_action=_UPGRADE)
        if version == 0:
            for statement in _TABLES.split(";"):
                database.execute(statement)
            version = _has_version(database, 1 + len(steps))
        # The folder's name does not always tell.
        database.execute("INSERT OR IGNORE INTO bank VALUES ('id', ?)", (bank_id,))
    for step in steps[version - 1 :]:
        with committed(database):
            step(database)
            version = _has_version(database, version + 1)


@contextlib.contextmanager
def committed(database: sqlite3.Connection) -> Iterator[None]:
    """One transaction: all of it on disk at the end, or nothing."""
    database.execute("BEGIN IMMEDIATE")
    try:
        yield
        database.execute("COMMIT")
    finally:
        if database.in_transaction:
            database.execute("ROLLBACK")


def _has_version(database: sqlite3.Connection, version: int) -> int:
    database.execute(f"PRAGMA user_version = {version}")
    return version
