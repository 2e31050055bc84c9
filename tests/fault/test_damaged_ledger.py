"""A ledger that the disk has damaged: refused with what to do, saved as far as it can be read, and served again."""

from __future__ import annotations

import json
import logging
import os
import random
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from hindsight.checkup import look_over
from hindsight.cli import main
from hindsight.errors import LedgerDamaged
from hindsight.folder import BANKS
from hindsight.ledger import Changes
from hindsight.ledger.salvage import REPAIRED, salvaged
from hindsight.ledger.sqlite import open_sqlite
from hindsight.record import BankId
from tests.mirrored import FIRST, mirror
from tests.serving import Serving, answer, client, get, refusal, serving
from tests.small_bank import BANK, PAGE, Small, make_small_bank

pytestmark = pytest.mark.anyio

Damage = Callable[[Small, int], None]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Small:
    return make_small_bank(tmp_path_factory.mktemp("whole"))


@pytest.fixture
def small(whole: Small, tmp_path: Path) -> Small:
    """A copy of a whole bank for one test."""
    return whole.copy(tmp_path)


def zero(small: Small, page: int) -> None:
    small.damage(page)


def flip(small: Small, page: int) -> None:
    before = small.ledger.read_bytes()[page * PAGE : (page + 1) * PAGE]
    small.damage(page, bytes(byte ^ 0xFF for byte in before))


def fill_with_noise(small: Small, page: int) -> None:
    small.damage(page, random.Random(page).randbytes(PAGE))


def cut(small: Small, page: int) -> None:
    os.truncate(small.ledger, page * PAGE + PAGE // 3)


@pytest.mark.parametrize(
    "damage",
    [zero, *(pytest.param(damage, marks=pytest.mark.slow) for damage in (flip, fill_with_noise, cut))],
)
def test_whatever_page_is_damaged_it_is_told_and_all_that_can_be_read_is_saved(
    whole: Small, tmp_path: Path, damage: Damage
) -> None:
    pages = whole.ledger.stat().st_size // PAGE
    lost = [damaged_and_repaired(whole, tmp_path / str(page), damage, page) for page in range(pages)]

    assert pages > 80
    assert lost.count(0) >= (0 if damage is cut else pages * 9 // 10)


def damaged_and_repaired(whole: Small, data: Path, damage: Damage, page: int) -> int:
    """How many memories are lost, all of them told."""
    small = whole.copy(data)
    damage(small, page)
    damaged = small.ledger.read_bytes()
    readable = {id: text for id, text in small.read().items() if whole.texts.get(id) == text}

    found, _ = small.check(repair=False)
    untouched = small.ledger.read_bytes() == damaged
    notes = small.repaired()
    saved = small.read()
    told = {note.partition(": ")[2].partition(",")[0] for note in notes if note.startswith(("lost: ", "saved in part"))}
    lost = {id for id, text in whole.texts.items() if saved.get(id) != text}

    assert found, page
    assert found[0].startswith("ledger.db"), page
    assert untouched, page
    assert readable.items() <= saved.items(), page
    assert lost <= told or not saved, page
    assert small.check(repair=False) == ([], True), page
    assert small.ledger.with_name("ledger.db.damaged-1").read_bytes() == damaged, page
    shutil.rmtree(data)
    return len(lost)


def test_a_long_text_of_which_a_part_is_lost_is_told_with_its_id(small: Small) -> None:
    id = small.id_of("Fact 20 ")
    small.damage(small.page_of("Boat 20-150 "))

    notes = small.repaired()

    assert notes[0] == "memories saved: 29"
    assert notes[-2:] == ["memories known to be lost: 1", f"lost: {id}"]
    assert id not in small.read()


def test_everything_of_what_is_saved_stays_but_its_links_to_what_is_lost(small: Small) -> None:
    before = everything(small)
    small.damage(small.page_of("Fact 12 "))

    small.repaired()

    after = everything(small)
    saved = {number for number, *_ in after}
    lost = {number for number, *_ in before} - saved
    assert 0 < len(lost) < 20
    assert after == [row for row in before if row[0] in saved]
    assert superseded(small) == {number for number in (6, 13, 20, 27) if not lost & {number, number + 1}}


def everything(small: Small) -> list[tuple[object, ...]]:
    """All that a ledger has of each memory, but for links and what the index has."""
    query = (
        "SELECT number, id, identity, text, type, context, retained_at, event_date, time_start, time_end, session_id,"
        " document_id, tags, metadata, label, asks, only_asks, tells_time, key, start, stop, worded, vector,"
        " vectors, tag FROM memory JOIN passage USING (number) JOIN tag USING (number) LEFT JOIN sentences USING (key)"
        " ORDER BY number, key, tag"
    )
    with closing(sqlite3.connect(small.ledger)) as database:
        return database.execute(query).fetchall()


def superseded(small: Small) -> set[int]:
    """The numbers of the memories that are."""
    with closing(sqlite3.connect(small.ledger)) as database:
        return {number for (number,) in database.execute("SELECT number FROM memory WHERE superseded_by IS NOT NULL")}


def test_what_is_in_the_log_alone_is_saved_too(small: Small, tmp_path: Path) -> None:
    ledger = open_sqlite(small.ledger, BANK.text)
    try:
        ledger.update(1, Changes(context="known from the log alone"))
        killed = small.copy(tmp_path / "killed")
    finally:
        ledger.close()
    killed.damage(killed.page_of("Fact 12 "))

    notes = killed.repaired()

    with closing(sqlite3.connect(killed.ledger)) as database:
        [(context,)] = database.execute("SELECT context FROM memory WHERE number = 1")
    assert "memories saved" in notes[0]
    assert context == "known from the log alone"
    assert (killed.folder / "ledger.db.damaged-1-wal").stat().st_size > 0
    assert not (killed.folder / "ledger.db-wal").exists()


def test_what_was_forgotten_does_not_come_back(small: Small) -> None:
    forgotten = [small.id_of(f"Fact {number} ") for number in (2, 10, 11, 12, 13, 25)]
    ledger = open_sqlite(small.ledger, BANK.text)
    ledger.forget([2, 10, 11, 12, 13, 25])
    ledger.close()
    for page in range(3):  # what tells where the others belong, and which are free
        small.damage(page)

    small.repaired()

    assert len(small.read()) > 0
    assert small.read().keys().isdisjoint(forgotten)


def test_no_number_is_given_twice_after_the_last_ones_were_lost(small: Small) -> None:
    small.damage(small.page_of("Fact 29 "))
    small.repaired()
    with closing(sqlite3.connect(small.ledger)) as database:
        sequences = dict(database.execute("SELECT name, seq FROM sqlite_sequence"))

    assert sequences["memory"] == 30
    assert sequences["passage"] > 30


@pytest.mark.parametrize("steps", range(5))
def test_a_repair_that_is_killed_is_finished_by_whoever_comes_next(small: Small, steps: int) -> None:
    """The files as they are after each step of an installation."""
    Path(f"{small.ledger}-wal").write_bytes(b"the log of the damaged one")
    with salvaged(small.ledger, BANK.text) as (draft, _):
        shutil.copy(draft, small.ledger.with_name(f"ledger.db{REPAIRED}"))
    shutil.rmtree(small.folder / "index")
    small.damage(0)
    if steps > 0:
        os.link(small.ledger, f"{small.ledger}.damaged-1")
    if steps > 1:
        os.link(f"{small.ledger}-wal", f"{small.ledger}.damaged-1-wal")
    if steps > 2:
        os.unlink(f"{small.ledger}-wal")
    if steps > 3:
        os.replace(f"{small.ledger}{REPAIRED}", small.ledger)

    ledger = open_sqlite(small.ledger, BANK.text)
    saved = {memory.id: memory.text for memory, _ in ledger.export()}
    ledger.close()

    assert saved == small.texts
    assert sorted(os.listdir(small.folder)) == ["ledger.db", "ledger.db.damaged-1", "ledger.db.damaged-1-wal"]
    assert Path(f"{small.ledger}.damaged-1").read_bytes()[:PAGE] == bytes(PAGE)


# A ledger that is open


def test_once_damage_was_met_it_is_logged_once_and_nothing_is_written_any_more(
    small: Small, caplog: pytest.LogCaptureFixture
) -> None:
    small.damage(small.page_of("Fact 12 "))
    ledger = open_sqlite(small.ledger, BANK.text)
    try:
        for _ in range(3):
            with pytest.raises(LedgerDamaged) as met:
                list(ledger.export())
        with pytest.raises(LedgerDamaged):
            ledger.update(30, Changes(context="another"))
        there = ledger.find(small.id_of("Fact 30 "))
    finally:
        ledger.close()

    assert "hindsight check --repair" in json.dumps(met.value.as_json())
    assert there is not None
    assert there[1].context == "topic 0"
    assert [record.getMessage() for record in caplog.records] == [
        "the ledger of bank b-team is damaged (database disk image is malformed): "
        "stop the server and run hindsight check --repair"
    ]


# Serving


def banks(running: Serving) -> list[object]:
    found: list[object] = json.loads(get(f"{running.url}/banks")[1])["banks"]
    return found


async def test_a_server_refuses_a_damaged_bank_with_what_to_do_and_serves_the_others(small: Small) -> None:
    small.damage(small.page_of("Fact 12 "))
    with serving(small.data, embedder=FIRST) as running:
        async with client(running.url, "other") as session:
            await answer(session, "retain", content="Bees live on the roof.")
        async with client(running.url, BANK.text) as session:
            refused = [
                await refusal(session, "recall", query="harbour"),
                await refusal(session, "retain", content="one more"),
            ]
        async with client(running.url, "other") as session:
            found = await answer(session, "recall", query="bees")
        status, _ = get(f"{running.url}/banks/team/memories")
        listed = banks(running)
        running.stop()

    assert [(error["code"], error["message"]) for error in refused] == [
        ("INTERNAL", "this bank's ledger is damaged")
    ] * 2
    assert "hindsight check --repair" in refused[0]["next_action"]
    assert str(small.data) not in json.dumps(refused)
    assert status == 500
    assert len(found["results"]) == 1
    assert {"bank_id": "other", "memories": 1} in listed
    assert any("bank b-team is damaged" in line and "hindsight check --repair" in line for line in running.log.lines)


async def test_what_was_saved_is_served_by_id_words_and_meaning(small: Small) -> None:
    small.damage(small.page_of("Fact 12 "))
    small.repaired()
    saved = small.read()
    with serving(small.data, embedder=FIRST) as running:
        async with client(running.url, BANK.text) as session:
            for id, text in saved.items():
                assert (await answer(session, "get_memory", id=id))["text"] == text
            by_words = await answer(session, "recall", query="town 29")
            by_meaning = await answer(session, "recall", query=mirror("harbour in town 29"))
            await answer(session, "retain", content="One more fact tells of a harbour.")
        listed = banks(running)

    assert 20 <= len(saved) < 30
    assert by_words["results"][0]["id"] == small.id_of("Fact 29 ")
    assert by_meaning["results"][0]["id"] == small.id_of("Fact 29 ")
    assert "warnings" not in by_meaning
    assert listed == [{"bank_id": "team", "memories": len(saved) + 1}]


async def test_a_bank_that_can_not_even_be_counted_is_listed_as_damaged_and_told_at_the_start(small: Small) -> None:
    os.truncate(small.ledger, 3 * PAGE)
    with serving(small.data, embedder=FIRST) as running:
        told = running.log.wait_for("bank b-team does not work")
        listed = banks(running)

    assert "ledger.db was cut short" in told
    assert "stop the server and run hindsight check" in told
    assert listed == [{"bank_id": "team", "memories": 0, "damaged": True}]


def twin(small: Small, name: str) -> None:
    """Another bank with the same memories."""
    ledger = small.data / BANKS / BankId(name).folder / "ledger.db"
    ledger.parent.mkdir()
    shutil.copy(small.ledger, ledger)
    with closing(sqlite3.connect(ledger)) as database, database:
        database.execute("UPDATE bank SET value = ? WHERE name = 'id'", (name,))


def test_a_bank_that_can_not_even_be_counted_is_shown_as_damaged(
    small: Small, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HINDSIGHT_EMBEDDER", FIRST)
    twin(small, "zoo")
    os.truncate(small.ledger, 3 * PAGE)

    status = main(["banks", "--data-dir", str(small.data)])

    assert status == 0
    lines = [line.split()[:2] for line in capsys.readouterr().out.splitlines()]
    assert lines == [["BANK", "MEMORIES"], ["zoo", "30"], ["team", "damaged"]]


def test_an_export_of_all_banks_takes_those_that_work_and_fails_for_the_damaged_one(
    small: Small, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HINDSIGHT_EMBEDDER", FIRST)
    twin(small, "zoo")
    small.damage(0)

    status = main(["export", "--all", str(small.data / "out"), "--data-dir", str(small.data)])

    assert status == 1
    assert "this bank's ledger is damaged" in capsys.readouterr().err
    assert (small.data / "out" / "b-zoo.ndjson").exists()


# The look at the start


def test_the_look_at_the_start_tells_a_line_for_each_bank_that_is_wrong(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / BANKS
    ledgers = [folder / BankId(f"bank-{number}").folder / "ledger.db" for number in range(6)]
    for number, ledger in enumerate(ledgers):
        open_sqlite(ledger, f"bank-{number}").close()
    ledgers[1].write_bytes(b"no ledger at all" * 500)
    ledgers[2].unlink()
    (folder / "b-bank-2" / "other").touch()
    os.truncate(ledgers[3], PAGE)
    with ledgers[4].open("r+b") as file:
        file.seek(PAGE)
        file.write(bytes(PAGE))
    (folder / "b-new").mkdir()

    with caplog.at_level(logging.INFO):
        look_over(folder)

    assert [record.getMessage().partition(":")[0] for record in caplog.records] == [
        f"bank b-bank-{number} does not work" for number in (1, 2, 3, 4)
    ]
