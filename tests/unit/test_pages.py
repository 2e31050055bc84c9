"""What is read from the pages of a SQLite file without SQLite is what SQLite reads from it."""

from __future__ import annotations

import random
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from hindsight.ledger.pages import CUT, Pages, Row

Read = tuple[list[Row], list[Any], list[Any]]

SIZES = [0, 1, 50, 400, 4_000, 9_000, 70_000]


@pytest.fixture(params=[512, 4096, 65_536])
def page_size(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@contextmanager
def database_at(path: Path, page_size: int) -> Iterator[sqlite3.Connection]:
    """A database with tables of texts, numbers and blobs of all sizes, in WAL mode."""
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        for pragma in (f"page_size = {page_size}", "journal_mode = WAL", "secure_delete = ON"):
            database.execute(f"PRAGMA {pragma}")
        database.execute("CREATE TABLE thing (number INTEGER PRIMARY KEY, name TEXT UNIQUE, size, content)")
        database.execute("CREATE TABLE pair (name PRIMARY KEY, value) WITHOUT ROWID")
        fill(database, range(-5, 60))
        yield database


def fill(database: sqlite3.Connection, numbers: range) -> None:
    chance = random.Random(numbers.start)
    with database:
        database.execute("BEGIN")
        for number in numbers:
            size = chance.choice(SIZES)
            value = chance.choice([None, 0, 1, -1, 2**40, -(2**62), 1.5, float("inf"), "ü" * (number % 7)])
            row = (number * 1_000_003, f"name {number} {'x' * (size // 10)}", value, chance.randbytes(size))
            database.execute("INSERT INTO thing VALUES (?, ?, ?, ?)", row)
            database.execute("INSERT INTO pair VALUES (?, ?)", (f"pair {number}", "y" * (size // 20)))


def told(database: sqlite3.Connection) -> Read:
    """What SQLite reads: the rows of the table, the entries of its index, and those of the table without rowid."""
    database.text_factory = bytes
    rows = [
        Row(number, (None, *values))
        for number, *values in database.execute("SELECT number, name, size, content FROM thing ORDER BY number")
    ]
    names = database.execute("SELECT name, number FROM thing ORDER BY name").fetchall()
    return rows, names, database.execute("SELECT name, value FROM pair ORDER BY name").fetchall()


def read(path: Path) -> Read:
    """The same from the pages."""
    with Pages(path) as pages:
        rows = sorted((row for row in pages.rows() if len(row.values) == 4), key=lambda row: row.rowid)
        roots = {row.values[1]: row.values[3] for row in pages.rows() if len(row.values) == 5}
        names, pairs = (
            sorted(pages.index(root), key=lambda entry: bytes(str(entry[0]), "ascii"))
            for root in (roots[b"sqlite_autoindex_thing_1"], roots[b"pair"])
            if isinstance(root, int)
        )
    return rows, names, pairs


def copy(path: Path, target: Path) -> Path:
    """The file with its log as a kill leaves them now."""
    for end in ("", "-wal"):
        shutil.copy(f"{path}{end}", f"{target}{end}")
    return target


def test_rows_and_entries_of_all_sizes_are_those_that_sqlite_reads(tmp_path: Path, page_size: int) -> None:
    with database_at(tmp_path / "it.db", page_size) as database:
        database.execute("DELETE FROM thing WHERE number % 3 = 0")
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        expected = told(database)

    assert read(tmp_path / "it.db") == expected


def test_what_is_in_the_log_alone_counts_and_what_was_not_committed_does_not(tmp_path: Path, page_size: int) -> None:
    with database_at(tmp_path / "it.db", page_size) as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        fill(database, range(300, 330))
        database.execute("DELETE FROM thing WHERE number % 2 = 0")
        expected = told(database)
        database.execute("PRAGMA cache_size = 1")  # so that it writes before it commits
        database.execute("BEGIN")
        database.execute("UPDATE thing SET name = number || 'another'")
        copied = copy(tmp_path / "it.db", tmp_path / "copy.db")
        database.execute("ROLLBACK")

    assert read(copied) == expected


def test_a_log_that_is_damaged_counts_up_to_there(tmp_path: Path) -> None:
    with database_at(tmp_path / "it.db", 4096) as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        expected = told(database)
        database.execute("UPDATE thing SET name = number || 'another'")
        copied = copy(tmp_path / "it.db", tmp_path / "copy.db")
    log = bytearray(Path(f"{copied}-wal").read_bytes())
    log[200] ^= 1
    Path(f"{copied}-wal").write_bytes(log)

    assert read(copied) == expected


def test_after_the_file_has_shrunk_in_the_log_its_old_end_does_not_count(tmp_path: Path) -> None:
    with database_at(tmp_path / "it.db", 4096) as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        database.execute("DELETE FROM thing WHERE number > 5")
        database.execute("VACUUM")
        expected = told(database)
        copied = copy(tmp_path / "it.db", tmp_path / "copy.db")

    assert read(copied) == expected


def test_a_row_whose_rest_is_lost_still_tells_what_is_before(tmp_path: Path) -> None:
    with database_at(tmp_path / "it.db", 4096) as database:
        database.execute("DELETE FROM thing")
        database.execute("INSERT INTO thing VALUES (7, 'seven', 1, ?)", (bytes([1]) * 10_000,))
        database.execute("VACUUM")
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    content = (tmp_path / "it.db").read_bytes()
    (tmp_path / "it.db").write_bytes(content[: content.index(bytes([1]) * 4_000) // 4096 * 4096])

    with Pages(tmp_path / "it.db") as pages:
        rows = [row for row in pages.rows() if len(row.values) == 4]

    assert rows == [Row(7, (None, b"seven", 1, CUT))]


@pytest.mark.parametrize("seed", range(20))
def test_noise_is_read_without_an_error(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    with database_at(tmp_path / "it.db", 512) as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    content = bytearray((tmp_path / "it.db").read_bytes())
    for _ in range(len(content) // 50):
        content[chance.randrange(100, len(content))] = chance.randrange(256)
    (tmp_path / "it.db").write_bytes(content)

    with Pages(tmp_path / "it.db") as pages:
        read = [*pages.rows(), *pages.entries(), *(entry for root in range(9) for entry in pages.index(root))]

    assert len(read) > 0
