"""The way from every version of the ledger to today's, tried on a data folder that the first version wrote."""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest

from hindsight.bank import Bank, Query
from hindsight.cli import main
from hindsight.errors import LedgerUnavailable
from hindsight.ledger.schema import STEPS, VERSION, lay_out, version_of
from hindsight.ledger.sqlite import open_sqlite
from hindsight.record import BankId
from hindsight.settings import read_settings
from hindsight.wiring import make_embedder, open_banks
from tests.serving import until

pytestmark = pytest.mark.anyio

SAMPLE = Path(__file__).with_name("sample_v1")
BANK = BankId("Team Ü")
LONG = "717538a9-f43d-4daa-85cb-a63b42ed8895"
SMALL = ("bank", "memory", "passage", "tag")


@pytest.fixture
def sample(tmp_path: Path) -> Path:
    """The data folder that version 1 wrote, with the ledger as SQLite has it instead of as text."""
    shutil.copytree(SAMPLE, tmp_path, dirs_exist_ok=True)
    for text in tmp_path.rglob("*.sql"):
        with closing(sqlite3.connect(text.with_suffix(".db"))) as database:
            database.executescript(text.read_text("utf-8"))
        text.unlink()
    return tmp_path


def ledger_in(data: Path) -> Path:
    return data / "banks" / BANK.folder / "ledger.db"


def rows(ledger: Path) -> dict[str, list[tuple[object, ...]]]:
    """What the tables hold that were there from the first version on."""
    with closing(sqlite3.connect(ledger)) as database:
        return {table: database.execute(f"SELECT * FROM {table} ORDER BY 1, 2").fetchall() for table in SMALL}


def tables(ledger: Path) -> dict[str, str]:
    """The definitions of all tables and indexes."""
    with closing(sqlite3.connect(ledger)) as database:
        found = database.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall()
    return {name: " ".join(sql.split()) for name, sql in found}


def version(ledger: Path) -> int:
    with closing(sqlite3.connect(ledger)) as database:
        return version_of(database)


@asynccontextmanager
async def bank_of(data: Path, model_folder: Path) -> AsyncIterator[Bank]:
    settings = read_settings(data_dir=data, model_dir=model_folder)
    async with open_banks(settings, data, make_embedder(settings)) as banks, banks.lease(BANK) as bank:
        yield bank


async def best(bank: Bank, query: str) -> str:
    return (await bank.recall(Query(text=query)))["results"][0]["text"]


async def test_a_folder_of_the_first_version_has_everything_by_id_words_and_meaning(
    sample: Path, model_folder: Path
) -> None:
    before = rows(ledger_in(sample))
    async with bank_of(sample, model_folder) as bank:
        exported = list(bank.export())
        by_words = await best(bank, "HX-4711")
        by_meaning = await best(bank, "which insects live on top of the house?")
        in_a_long_text = await best(bank, "where is the chest with the treasure hidden?")
        long = await bank.get(LONG)
        await until(lambda: bank.lag.unindexed == 0)
    after = rows(ledger_in(sample))

    assert version(ledger_in(sample)) == VERSION
    assert [each["id"] for each in exported] == [row[1] for row in before["memory"]]
    assert exported[0]["metadata"] == {"department": "sales", "n": [1, None, 1.5]}
    assert exported[3]["supersedes"] == exported[2]["id"]
    assert by_words == "I think the ticket HX-4711 was a DNS problem."
    assert by_meaning == "Alice keeps bees on the roof."
    assert in_a_long_text.endswith("under the old lighthouse.")
    assert long.text.endswith("under the old lighthouse.")
    assert after == before


def test_a_folder_of_the_first_version_is_sound_and_gets_the_tables_of_a_new_one(
    sample: Path, tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    with closing(sqlite3.connect(ledger_in(sample))) as database, database:
        database.execute("UPDATE passage SET indexed = 0")  # an index is no part of the sample
    status = main(["check", "--data-dir", str(sample)])
    open_sqlite(ledger_in(sample), BANK.text).close()
    new = tmp_path_factory.mktemp("new") / "ledger.db"
    open_sqlite(new, BANK.text).close()

    assert (status, capsys.readouterr().out) == (0, "Team Ü: sound\n")
    assert tables(ledger_in(sample)) == tables(new)


def test_each_step_is_taken_once_in_its_order(tmp_path: Path) -> None:
    taken: list[str] = []
    with closing(sqlite3.connect(tmp_path / "ledger.db", isolation_level=None)) as database:
        lay_out(database, "team", STEPS)
        steps = (*STEPS, lambda _: taken.append("first"), lambda _: taken.append("second"))
        lay_out(database, "team", steps)
        lay_out(database, "team", steps)

        assert taken == ["first", "second"]
        assert version_of(database) == VERSION + 2


def test_a_step_that_fails_leaves_the_version_before_it_whole(tmp_path: Path) -> None:
    def half_way(database: sqlite3.Connection) -> None:
        database.execute("CREATE TABLE half (name)")
        database.execute("there is no such statement")

    with closing(sqlite3.connect(tmp_path / "ledger.db", isolation_level=None)) as database:
        lay_out(database, "team")
        with pytest.raises(sqlite3.OperationalError):
            lay_out(database, "team", (*STEPS, lambda _: None, half_way))

        assert version_of(database) == VERSION + 1
        assert "half" not in tables(tmp_path / "ledger.db")


KILLED = """
import os, signal, sqlite3, sys
from hindsight.ledger.schema import STEPS, lay_out
def killed(database):
    database.execute("DROP TABLE sentences")
    database.execute("UPDATE memory SET text = 'lost'")
    os.kill(os.getpid(), signal.SIGKILL)
lay_out(sqlite3.connect(sys.argv[1], isolation_level=None), "", (*STEPS, killed))
"""


def test_a_kill_in_the_middle_of_a_step_leaves_the_version_before_it_whole(sample: Path) -> None:
    ledger = ledger_in(sample)
    open_sqlite(ledger, BANK.text).close()
    before = rows(ledger)

    killed = subprocess.run([sys.executable, "-c", KILLED, str(ledger)], timeout=60, check=False)

    assert killed.returncode == -9
    assert version(ledger) == VERSION
    assert rows(ledger) == before
    assert "sentences" in tables(ledger)


def test_a_newer_ledger_is_refused_with_what_to_do_and_left_as_it_is(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.db"
    open_sqlite(ledger, "team").close()
    with closing(sqlite3.connect(ledger)) as database:
        database.execute(f"PRAGMA user_version = {VERSION + 1}")
    before = ledger.read_bytes()

    with pytest.raises(LedgerUnavailable, match="a newer version of the server") as refused:
        open_sqlite(ledger, "team")
    assert "upgrade" in json.dumps(refused.value.as_json())
    assert ledger.read_bytes() == before
