"""A data folder with a small bank, made by the package itself, closed and whole; and what is done to it."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import anyio

from hindsight.bank import Bank
from hindsight.drafts import Draft
from hindsight.folder import BANKS
from hindsight.record import BankId
from hindsight.settings import Settings, read_settings
from hindsight.wiring import check_banks, make_embedder, open_banks
from tests.mirrored import FIRST
from tests.serving import until

BANK = BankId("team")
PAGE = 4096  # bytes


@dataclass(frozen=True, slots=True)
class Small:
    """A data folder with the bank BANK, and its memories' texts by id."""

    data: Path
    texts: dict[str, str]

    @property
    def folder(self) -> Path:
        return self.data / BANKS / BANK.folder

    @property
    def ledger(self) -> Path:
        return self.folder / "ledger.db"

    @property
    def settings(self) -> Settings:
        return read_settings(data_dir=self.data, embedder=FIRST)

    def copy(self, data: Path) -> Small:
        """The same in another folder."""
        shutil.copytree(self.data, data, dirs_exist_ok=True)
        return Small(data, self.texts)

    def id_of(self, start: str) -> str:
        """The id of the memory whose text starts so."""
        [found] = [id for id, text in self.texts.items() if text.startswith(start)]
        return found

    def do(self, *statements: str) -> None:
        """Run SQL on the ledger."""
        with closing(sqlite3.connect(self.ledger)) as database, database:
            for statement in statements:
                database.execute(statement)

    def page_of(self, text: str) -> int:
        """The page of the ledger, counted from 0, on which a text begins."""
        return self.ledger.read_bytes().index(text.encode()) // PAGE

    def damage(self, page: int, content: bytes = bytes(PAGE)) -> None:
        """Put something else in the place of a page of the ledger, counted from 0."""
        with self.ledger.open("r+b") as file:
            file.seek(page * PAGE)
            file.write(content)

    def check(self, *, repair: bool) -> tuple[list[str], bool]:
        """What a checkup finds, and whether all is sound then."""
        [checkup] = check_banks(self.data, self.settings, repair=repair)
        return [finding.what for finding in checkup.findings], checkup.good

    def repaired(self) -> list[str]:
        """What a repair notes."""
        [checkup] = check_banks(self.data, self.settings, repair=True)
        assert all(finding.repaired for finding in checkup.findings), checkup.findings
        return [note for finding in checkup.findings for note in finding.notes]

    def read(self) -> dict[str, str]:
        """The texts that a plain open of the ledger can read, by id, row by row."""
        with _read_only(self.ledger) as database:
            rows = [_row(database, number) for number in range(1, len(self.texts) + 1)]
        return dict(row for row in rows if row)


def make_small_bank(data: Path) -> Small:
    """Make one of thirty memories: long ones, some that supersede others, some with tags and metadata."""
    made = Small(data, {})
    anyio.run(_fill, made)
    return made


async def _fill(made: Small) -> None:
    opening = open_banks(made.settings, made.data, make_embedder(made.settings))
    async with opening as banks, banks.lease(BANK) as bank:
        for number in range(1, 31):
            await _retain(bank, made, number)
        await until(lambda: bank.lag.unindexed == 0)


async def _retain(bank: Bank, made: Small, number: int) -> None:
    content = f"Fact {number} tells of the harbour in town {number}."
    if number % 10 == 0:
        content += "".join(f" Boat {number}-{boat} sails to island {boat}." for boat in range(300))
    before = f"Fact {number - 1} "
    draft = Draft(
        content=content,
        context=f"topic {number % 3}",
        tags=("harbour", f"t{number % 4}"),
        metadata={"number": number, "rest": "x" * number},
        supersedes=made.id_of(before) if number % 7 == 0 else None,
    )
    made.texts[(await bank.retain(draft))["id"]] = content


@contextmanager
def _read_only(path: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(f"{path.as_uri()}?immutable=1", uri=True)) as database:
        yield database


def _row(database: sqlite3.Connection, number: int) -> tuple[str, str] | None:
    try:
        found: tuple[str, str] | None = database.execute(
            "SELECT id, text FROM memory WHERE number = ?", (number,)
        ).fetchone()
    except sqlite3.Error:
        return None
    return found
