"""Saves what a damaged ledger still holds into a new one, which then takes its place; the damaged one is kept beside.

A kill may part the steps in which the new one is installed: from the moment its name ends in REPAIRED it is the ledger,
and whoever opens the bank next has to `finish` before. No moment has a ledger beside another one's log.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sqlite3
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hindsight.ledger.derived import uid_of
from hindsight.ledger.fields import FIELDS, FIRST_MOMENT, readable
from hindsight.ledger.pages import Pages, Row
from hindsight.ledger.schema import committed, lay_out

REPAIRED, DAMAGED = ".repaired", ".damaged-"
_DRAFT = ".draft"
_LOGS = ("", "-wal", "-shm")
_IDS = b"sqlite_autoindex_memory_1"  # the index over the ids


@dataclass(slots=True)
class Saved:
    """What became of a damaged ledger: how many memories were saved, and which of them with `damaged` fields, by id.

    Of those that are lost, `numbers` and `ids` are known, not always both.
    """

    memories: int = 0
    damaged: dict[str, tuple[str, ...]] = field(default_factory=dict)
    numbers: set[int] = field(default_factory=set)
    ids: set[str] = field(default_factory=set)

    @property
    def lost(self) -> int:
        """How many memories are known to be lost."""
        return max(len(self.numbers), len(self.ids))


@contextlib.contextmanager
def salvaged(path: Path, bank_id: str | None) -> Iterator[tuple[Path, Saved]]:
    """A draft beside the ledger at `path` with what that still holds, and what became of it; gone in the end, unless
    it is installed.

    Vectors and passages are in it as they were found, nothing is in the index, and no words are. `bank_id` is given
    when the ledger is not needed to tell it. The ledger stays as it is. Raises OSError, sqlite3.Error.
    """
    draft = path.with_name(path.name + _DRAFT)
    draft.unlink(missing_ok=True)
    try:
        yield draft, _fill(draft, path, bank_id)
    finally:
        draft.unlink(missing_ok=True)


def _fill(draft: Path, path: Path, bank_id: str | None) -> Saved:
    with Pages(path) as pages, contextlib.closing(sqlite3.connect(draft, isolation_level=None)) as database:
        # What a kill cuts short is made again; `install` brings it to the disk.
        for pragma in ("journal_mode = MEMORY", "synchronous = OFF"):
            database.execute(f"PRAGMA {pragma}")
        lay_out(database, bank_id or "")
        with committed(database):
            saved = _Salvage(pages, database).run()
            if not bank_id:  # lay_out wrote an empty one
                database.execute("DELETE FROM bank WHERE name = 'id' AND value = ''")
    return saved


def install(draft: Path, path: Path) -> None:
    """Put the draft in the place of the damaged ledger at `path`, which nobody has open. Raises OSError."""
    old, new = path.stat(), draft.stat()
    draft.chmod(stat.S_IMODE(old.st_mode))
    if (old.st_uid, old.st_gid) != (new.st_uid, new.st_gid):  # who repairs may not be who serves
        os.chown(draft, old.st_uid, old.st_gid)
    _sync(draft)
    draft.rename(path.with_name(path.name + REPAIRED))
    _sync(path.parent)
    finish(path)


def finish(path: Path) -> None:
    """Go on where an installation was cut short, if one was. Raises OSError."""
    if not is_unfinished(path):
        return
    repaired, kept = path.with_name(path.name + REPAIRED), kept_as(path)
    for log in _LOGS:
        old, new = Path(f"{path}{log}"), Path(f"{kept}{log}")
        if old.exists() and not new.exists():
            _link(old, new)
    _sync(path.parent)
    for log in _LOGS[1:]:
        Path(f"{path}{log}").unlink(missing_ok=True)
    _sync(path.parent)
    repaired.replace(path)
    _sync(path.parent)


def is_unfinished(path: Path) -> bool:
    """Whether an installation was cut short."""
    return path.with_name(path.name + REPAIRED).exists()


def kept_as(path: Path) -> Path:
    """The name under which the damaged ledger at `path` is kept: the one that it has already, or a new one."""
    kept = sorted(path.parent.glob(f"{path.name}{DAMAGED}*[0-9]"), key=_number)
    if kept and path.exists() and kept[-1].samefile(path):
        return kept[-1]
    return path.with_name(f"{path.name}{DAMAGED}{_number(kept[-1]) + 1 if kept else 1}")


def _number(kept: Path) -> int:
    digits = kept.name.rpartition("-")[2]
    return int(digits) if digits.isdecimal() else 0


def _link(old: Path, new: Path) -> None:
    try:
        new.hardlink_to(old)
    except OSError:  # a file system without them
        shutil.copy2(old, new)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class _Salvage:
    """The work of one salvage."""

    def __init__(self, pages: Pages, database: sqlite3.Connection) -> None:
        self._pages = pages
        self._database = database
        self._saved = Saved()
        self._before = FIRST_MOMENT
        self._root: int | None = None
        self._sequences = {b"memory": 0, b"passage": 0}

    def run(self) -> Saved:
        tables = {1 + len(FIELDS): self._memory, 7: self._passage, 5: self._schema, 2: self._pair}
        for row in self._pages.rows():
            if take := tables.get(len(row.values)):
                take(row)
        self._keep_names()
        self._keep_sequences()
        self._find_lost()
        return self._saved

    def _memory(self, row: Row) -> None:
        fields = readable(row.values[1:], self._before)
        if fields is None:
            self._saved.numbers.add(row.rowid)
            if isinstance(row.values[1], bytes):
                self._saved.ids.add(row.values[1].decode(errors="replace"))
            return
        self._before = fields.values["retained_at"]
        if fields.damaged:
            self._saved.damaged[fields.values["id"]] = fields.damaged
        columns, marks = ", ".join(FIELDS), ", ".join(f":{name}" for name in FIELDS)
        query = f"INSERT OR IGNORE INTO memory (number, {columns}) VALUES (:number, {marks})"
        self._database.execute(query, {**fields.values, "number": row.rowid})

    def _passage(self, row: Row) -> None:
        cut = row.values[1:5]
        vector = row.values[6] if isinstance(row.values[6], bytes) else None
        if all(isinstance(value, int) for value in cut):
            self._database.execute(
                "INSERT OR IGNORE INTO passage VALUES (?, ?, ?, ?, ?, 0, ?)", (row.rowid, *cut, vector)
            )

    def _schema(self, row: Row) -> None:
        if row.values[1] == _IDS and isinstance(row.values[3], int):
            self._root = row.values[3]

    def _pair(self, row: Row) -> None:
        first, second = row.values
        if first is None and isinstance(second, bytes):
            self._database.execute("INSERT OR IGNORE INTO sentences VALUES (?, ?)", (row.rowid, second))
        elif isinstance(first, bytes) and first in self._sequences and isinstance(second, int):
            self._sequences[first] = second

    def _keep_names(self) -> None:
        """Keep the embedder's mark, and the bank's id where nobody else knows it.

        Of what ties it to a collection on a server only the name: the collection is to be made anew.
        """
        query = "INSERT INTO bank VALUES (?, ?) ON CONFLICT DO UPDATE SET value = ?2 WHERE value = ''"
        for entry in self._pages.entries():
            if len(entry) != 2 or not isinstance(entry[1], bytes):
                continue
            if entry[0] in (b"id", b"embedder"):
                name = "id" if entry[0] == b"id" else "embedder"
                self._database.execute(query, (name, entry[1].decode(errors="replace")))
            elif entry[0] == b"tie" and (uid := uid_of(entry[1])):
                self._database.execute(query, ("tie", json.dumps([uid])))

    def _keep_sequences(self) -> None:
        """No number or key is ever used twice, also when the last ones are lost."""
        for name, last in self._sequences.items():
            table = name.decode()
            found = self._ask(f"SELECT seq FROM sqlite_sequence WHERE name = '{table}'")
            self._database.execute("DELETE FROM sqlite_sequence WHERE name = ?", (table,))
            self._database.execute(
                "INSERT INTO sqlite_sequence VALUES (?, ?)", (table, max(last, found[0][0] if found else 0))
            )

    def _find_lost(self) -> None:
        """What passages, the index over the ids and links tell of memories that are not there."""
        saved, ids, numbers = self._saved, set[str](), set[int]()
        for id, number in self._ask("SELECT id, number FROM memory"):
            ids.add(id)
            numbers.add(number)
        saved.memories = len(ids)
        saved.numbers.update(number for (number,) in self._ask("SELECT DISTINCT number FROM passage"))
        for entry in self._pages.index(self._root) if self._root else ():
            if len(entry) == 2 and isinstance(entry[0], bytes) and isinstance(entry[1], int):
                saved.numbers.add(entry[1])
                saved.ids.add(entry[0].decode(errors="replace"))
        for column in ("supersedes", "superseded_by"):
            named = self._ask(f"SELECT {column} FROM memory WHERE {column} IS NOT NULL")
            saved.ids.update(id for (id,) in named)
        saved.ids -= ids
        saved.numbers -= numbers

    def _ask(self, query: str) -> list[Any]:
        return self._database.execute(query).fetchall()
