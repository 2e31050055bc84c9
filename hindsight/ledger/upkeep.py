"""Upkeep of a ledger file that nobody has open: is it sound, and does it still hold what was forgotten?"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

_FAULTS = {
    "{} memories can't be searched": "SELECT count(*) FROM memory WHERE number NOT IN (SELECT number FROM passage)",
    "{} passages belong to no memory": "SELECT count(*) FROM passage WHERE number NOT IN (SELECT number FROM memory)",
    "{} memories name a successor that is not theirs": (
        "SELECT count(*) FROM memory AS old LEFT JOIN memory AS new ON new.id = old.superseded_by"
        " WHERE old.superseded_by IS NOT NULL AND new.supersedes IS NOT old.id"
    ),
}
_MOST = 10  # faults of the file itself that are told


def faults(path: Path) -> list[str]:
    """What is wrong with the ledger, in words; nothing when it is sound."""
    try:
        with _opened(path) as database:
            found = [row[0] for row in database.execute(f"PRAGMA integrity_check({_MOST})") if row[0] != "ok"]
            counts = {text: database.execute(query).fetchone()[0] for text, query in _FAULTS.items()}
    except sqlite3.Error as error:
        return [f"the file can't be read: {error}"]
    return found + [text.format(count) for text, count in counts.items() if count]


def has_forgotten(path: Path) -> bool:
    """Whether anything was forgotten since the ledger was last made compact."""
    with _opened(path) as database:
        return database.execute("SELECT 1 FROM bank WHERE name = 'forgotten'").fetchone() is not None


def unindex(path: Path) -> None:
    """Note that the index holds nothing any more, not even what is gone."""
    with _opened(path) as database:
        database.execute("UPDATE passage SET indexed = 0 WHERE indexed")
        database.execute("DELETE FROM gone")


def compact(path: Path) -> None:
    """Write the file anew without the remains of what was removed from it, and empty its log."""
    with _opened(path) as database:
        database.execute("DELETE FROM bank WHERE name = 'forgotten'")
        database.execute("VACUUM")
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[sqlite3.Connection]:
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute("PRAGMA secure_delete = ON")
        yield database
