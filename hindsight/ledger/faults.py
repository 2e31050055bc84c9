"""What is wrong in a ledger that SQLite can read, and how it is mended.

Fields, links, passages, vectors, words and tags are compared with each other. The connection hands texts out as bytes
(see `fields`).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from hindsight.ledger import Cut
from hindsight.ledger.derived import Fault, derived_faults, many
from hindsight.ledger.fields import FIELDS, FIRST_MOMENT, Fields, readable
from hindsight.ledger.links import Link, mended

MakeCuts = Callable[[str], Sequence[Cut]]

_NAMED = 5  # memories that are named in a fault


def faults(database: sqlite3.Connection, make_cuts: MakeCuts) -> list[Fault]:
    """All that is wrong; to be mended in this order. `make_cuts` cuts a text into passages, as a retain does.

    Raises sqlite3.Error where the file can't be read.
    """
    reading = _Reading(make_cuts)
    reading.read(database)
    return [*derived_faults(database), *reading.faults()]  # vectors first: passages that are cut anew keep theirs


@dataclass(slots=True)
class _Reading:
    """What one reading of all memories, with their passages and tags beside them, finds."""

    make_cuts: MakeCuts
    damaged: dict[int, Fields] = field(default_factory=dict)
    textless: list[int] = field(default_factory=list)
    uncut: dict[int, str] = field(default_factory=dict)
    untagged: dict[int, set[str]] = field(default_factory=dict)
    links: dict[str, Link] = field(default_factory=dict)
    strays: list[object] = field(default_factory=list)  # what passages or tags name that is no memory's number

    def read(self, database: sqlite3.Connection) -> None:
        passages = _Beside(database, "SELECT number, start, stop, worded FROM passage ORDER BY number, key")
        tags = _Beside(database, "SELECT number, tag FROM tag ORDER BY number")
        numbers, before = dict[str, int](), FIRST_MOMENT
        for number, *row in database.execute(f"SELECT number, {','.join(FIELDS)} FROM memory ORDER BY number"):
            fields = readable(row, before)
            if fields is None:
                self.textless.append(number)
                passages.of(number), tags.of(number)
                continue
            before = fields.values["retained_at"]
            self._note(number, fields, passages.of(number), tags.of(number))
            numbers[fields.values["id"]] = number
        self.strays = list({*passages.rest(), *tags.rest()})
        for named in {name for link in self.links.values() for name in (link.supersedes, link.superseded_by) if name}:
            if named in numbers:
                self.links.setdefault(named, Link(numbers[named]))
        self.links = mended(self.links)

    def faults(self) -> Iterator[Fault]:
        if self.textless:
            yield Fault(
                f"{many(len(self.textless), 'memory')} without a text",
                "removing what is left of them",
                lambda database: _remove(database, self.textless),
                loss=True,
            )
        if self.damaged:
            told = "; ".join(
                f"{fields.values['id']}: {', '.join(fields.damaged)}" for fields in list(self.damaged.values())[:_NAMED]
            )
            yield Fault(
                f"{many(len(self.damaged), 'memory')} with fields that can't be read ({told})",
                "keeping what can be read of them, and setting the rest to what is usual",
                lambda database: _set_fields(database, self.damaged),
                loss=True,
            )
        if self.links:
            named = ", ".join(list(self.links)[:_NAMED])
            yield Fault(
                f"{many(len(self.links), 'memory')} with a link to another one that does not hold ({named})",
                "clearing links that lead nowhere and completing those that one side alone tells",
                lambda database: _set_links(database, self.links),
            )
        if self.strays:
            yield Fault(
                f"passages or tags of {many(len(self.strays), 'memory')} not there any more",
                "removing them",
                lambda database: _remove(database, self.strays),
            )
        if self.uncut:
            yield Fault(
                f"{many(len(self.uncut), 'memory')} whose passages do not make up the text, so that it is not found",
                "cutting the texts anew; what has no vector then is embedded at the bank's next use",
                lambda database: _cut(database, {number: self.make_cuts(text) for number, text in self.uncut.items()}),
            )
        if self.untagged:
            yield Fault(
                f"{many(len(self.untagged), 'memory')} not found by their tags",
                "noting their tags anew",
                lambda database: _set_tags(database, self.untagged),
            )

    def _note(self, number: int, fields: Fields, passages: list[Any], tags: list[Any]) -> None:
        if fields.damaged:
            self.damaged[number] = fields
        text = fields.values["text"]
        if not _make_up(text, passages):
            self.uncut[number] = text
        if {tag.encode() for tag in fields.tags} != {tag for (tag,) in tags}:
            self.untagged[number] = fields.tags
        link = Link(number, fields.values["supersedes"], fields.values["superseded_by"])
        if link != Link(number):
            self.links[fields.values["id"]] = link


class _Beside:
    """Rows that begin with a memory's number, in its order, read along with the memories."""

    def __init__(self, database: sqlite3.Connection, query: str) -> None:
        self._groups = groupby(database.execute(query), key=lambda row: row[0])
        self._next: tuple[Any, list[Any]] | None = None
        self._strays: list[object] = []
        self._step()

    def of(self, number: int) -> list[Any]:
        """The rows of this memory, without its number; numbers have to ascend."""
        while self._next is not None and isinstance(self._next[0], int) and self._next[0] < number:
            self._strays.append(self._next[0])
            self._step()
        if self._next is None or self._next[0] != number:
            return []
        rows = self._next[1]
        self._step()
        return rows

    def rest(self) -> list[object]:
        """The numbers that nobody asked for."""
        while self._next is not None:
            self._strays.append(self._next[0])
            self._step()
        return self._strays

    def _step(self) -> None:
        found = next(self._groups, None)
        self._next = None if found is None else (found[0], [row[1:] for row in found[1]])


def _make_up(text: str, passages: Sequence[tuple[Any, Any, Any]]) -> bool:
    """Whether passages lie in the text, and the worded ones make it up without a gap."""
    if not all(isinstance(bound, int) for cut in passages for bound in cut):
        return False
    if not all(0 <= start < stop <= len(text) for start, stop, _ in passages):
        return False
    end = 0
    for start, stop in sorted((start, stop) for start, stop, worded in passages if worded):
        if start != end:
            return False
        end = stop
    return end == len(text)


def _remove(database: sqlite3.Connection, numbers: Sequence[object]) -> None:
    for number in numbers:
        if isinstance(number, int):
            _uncut(database, number)
            database.execute("DELETE FROM tag WHERE number = ?", (number,))
            database.execute("DELETE FROM memory WHERE number = ?", (number,))
    for table in ("passage", "tag"):
        database.execute(f"DELETE FROM {table} WHERE typeof(number) != 'integer'")


def _set_fields(database: sqlite3.Connection, found: dict[int, Fields]) -> None:
    columns = ", ".join(f"{name} = :{name}" for name in FIELDS)
    for number, fields in found.items():
        database.execute(f"UPDATE memory SET {columns} WHERE number = :number", {**fields.values, "number": number})


def _set_links(database: sqlite3.Connection, links: dict[str, Link]) -> None:
    database.executemany(
        "UPDATE memory SET supersedes = ?, superseded_by = ? WHERE number = ?",
        [(link.supersedes, link.superseded_by, link.number) for link in links.values()],
    )


def _cut(database: sqlite3.Connection, cuts: dict[int, Sequence[Cut]]) -> None:
    for number, its in cuts.items():
        kept = _uncut(database, number)
        database.executemany(
            "INSERT INTO passage (number, start, stop, worded, vector) VALUES (?, ?, ?, ?, ?)",
            [(number, cut.start, cut.end, cut.worded, kept.get((cut.start, cut.end))) for cut in its],
        )


def _uncut(database: sqlite3.Connection, number: int) -> dict[tuple[int, int], bytes]:
    """Remove a memory's passages; returns the vectors of their pieces of its text."""
    rows = database.execute("SELECT key, start, stop, vector FROM passage WHERE number = ?", (number,)).fetchall()
    keys = [row[0] for row in rows]
    database.executemany("INSERT OR IGNORE INTO gone VALUES (?)", [(key,) for key in keys])
    if keys:
        database.execute("DELETE FROM words WHERE last >= ? AND first <= ?", (min(keys), max(keys)))
    database.execute("DELETE FROM sentences WHERE key IN (SELECT key FROM passage WHERE number = ?)", (number,))
    database.execute("DELETE FROM passage WHERE number = ?", (number,))
    return {(start, stop): vector for _, start, stop, vector in rows if vector is not None}


def _set_tags(database: sqlite3.Connection, tags: dict[int, set[str]]) -> None:
    for number, its in tags.items():
        database.execute("DELETE FROM tag WHERE number = ?", (number,))
        database.executemany("INSERT INTO tag VALUES (?, ?)", [(tag, number) for tag in its])
