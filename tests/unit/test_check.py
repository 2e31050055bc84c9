"""hindsight check: what it says of a data folder, what --repair makes of it, and what both leave alone."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from hindsight.cli import main
from hindsight.folder import held_folder
from hindsight.ledger.salvage import REPAIRED
from hindsight.ledger.sqlite import open_sqlite
from hindsight.record import BankId
from hindsight.retrieval.terms import VERSION, terms
from hindsight.retrieval.words import BLOCK, Growing
from tests.mirrored import FIRST
from tests.small_bank import Small, make_small_bank

AGAIN = "To repair them: hindsight check --repair"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Small:
    return make_small_bank(tmp_path_factory.mktemp("whole"))


@pytest.fixture
def small(whole: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Small:
    """A copy of a whole bank for one test."""
    monkeypatch.setenv("HINDSIGHT_EMBEDDER", FIRST)
    return whole.copy(tmp_path)


@pytest.fixture
def told(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, list[str]]]:
    """Runs the command on a folder; its status and what it prints."""

    def run(data: Path, *options: str) -> tuple[int, list[str]]:
        status = main(["check", "--data-dir", str(data), *options])
        return status, capsys.readouterr().out.splitlines()

    return run


Told = Callable[..., tuple[int, list[str]]]


def made(folder: Path, bank: str) -> Path:
    """The ledger of a new bank in a data folder."""
    path = folder / "banks" / BankId(bank).folder / "ledger.db"
    open_sqlite(path, bank).close()
    return path


def content(folder: Path) -> dict[str, bytes]:
    """All files of a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def ask(ledger: Path, query: str) -> list[Any]:
    with closing(sqlite3.connect(ledger)) as database:
        return database.execute(query).fetchall()


# Sound banks


@pytest.mark.parametrize("options", [(), ("--repair",)])
def test_a_sound_bank_is_called_sound_and_stays_as_it_is(small: Small, told: Told, options: tuple[str, ...]) -> None:
    before = small.ledger.read_bytes()

    assert told(small.data, *options) == (0, ["team: sound"])
    assert small.ledger.read_bytes() == before
    assert sorted(os.listdir(small.folder)) == ["index", "ledger.db"]


def test_what_was_forgotten_leaves_the_files_of_a_sound_bank(small: Small, told: Told) -> None:
    text = small.texts[small.id_of("Fact 5 ")]
    ledger = open_sqlite(small.ledger, "team")
    ledger.forget([5])
    ledger.close()

    assert told(small.data) == (0, ["team: sound"])
    assert text.encode() not in small.ledger.read_bytes()
    assert os.listdir(small.folder) == ["ledger.db"]
    assert ask(small.ledger, "SELECT count(*) FROM memory") == [(29,)]


def test_a_bank_in_whose_folder_nothing_was_stored_yet_is_sound(tmp_path: Path, told: Told) -> None:
    (tmp_path / "banks" / "b-new").mkdir(parents=True)
    (tmp_path / "banks" / "b-started").mkdir()
    (tmp_path / "banks" / "b-started" / "ledger.db").touch()

    assert told(tmp_path) == told(tmp_path, "--repair") == (0, ["new: sound", "started: sound"])


def test_a_folder_without_banks_has_nothing_wrong(tmp_path: Path, told: Told) -> None:
    (tmp_path / "banks" / "gone-0123").mkdir(parents=True)  # what a deleted bank left

    assert told(tmp_path) == (0, [])


# What can't be looked at


def test_a_folder_that_somebody_holds_is_not_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with held_folder(tmp_path, "hindsight serve"):
        status = main(["check", "--data-dir", str(tmp_path)])

    assert status == 2
    assert "is held by hindsight serve" in capsys.readouterr().err


def test_a_folder_that_is_not_there_is_not_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status = main(["check", "--data-dir", str(tmp_path / "typo")])

    assert status == 2
    assert f"there is no data folder {tmp_path / 'typo'}" in capsys.readouterr().err
    assert os.listdir(tmp_path) == []


def lose(ledger: Path) -> None:
    ledger.rename(ledger.with_name("elsewhere"))


def make_a_folder(ledger: Path) -> None:
    ledger.unlink()
    ledger.mkdir()


def make_a_loop(ledger: Path) -> None:
    ledger.unlink()
    ledger.symlink_to(ledger)


def make_the_bank_a_loop(ledger: Path) -> None:
    shutil.rmtree(ledger.parent)
    ledger.parent.symlink_to(ledger.parent)


def make_newer(ledger: Path) -> None:
    with closing(sqlite3.connect(ledger)) as database:
        database.execute("PRAGMA user_version = 99")


def empty_beside_an_index(ledger: Path) -> None:
    os.truncate(ledger, 0)
    (ledger.parent / "index").mkdir()


@pytest.mark.parametrize("options", [(), ("--repair",)])
@pytest.mark.parametrize(
    ("damage", "line"),
    [
        (lose, "there is no ledger.db; put it back from a backup, or remove the folder"),
        (make_a_folder, "ledger.db is not a file; put it back from a backup"),
        (make_a_loop, "ledger.db can't be read (Too many levels of symbolic links); put it back from a backup"),
        (make_the_bank_a_loop, "b-bad can't be read (Too many levels of symbolic links); put it back from a backup"),
        (make_newer, "a newer version of hindsight has written it (schema 99; this one has 2); upgrade hindsight"),
        (empty_beside_an_index, "ledger.db is empty, but there is an index; put ledger.db back from a backup"),
    ],
)
def test_what_no_repair_helps_is_told_in_a_line_and_left_as_it_is(
    tmp_path: Path, told: Told, damage: Callable[[Path], None], line: str, options: tuple[str, ...]
) -> None:
    made(tmp_path, "good")
    damage(made(tmp_path, "bad"))
    before = content(tmp_path / "banks")

    status, lines = told(tmp_path, *options)

    assert status == 1
    assert lines[:2] == [f"bad: {line}", "good: sound"]
    assert content(tmp_path / "banks") == before


def test_a_ledger_that_may_not_be_read_is_told(tmp_path: Path, told: Told) -> None:
    with nobody(tmp_path) as data:
        made(data, "bad").chmod(0)
        status, lines = told(data)

    assert status == 1
    assert lines[0] == "bad: ledger.db can't be read (Permission denied); give it to the server's user"


@contextmanager
def nobody(folder: Path) -> Iterator[Path]:
    """A folder of somebody who is not allowed everything, and to be that one meanwhile."""
    if os.geteuid() != 0:
        yield folder
        return
    data = Path("/tmp") / f"hindsight-{folder.name}-{os.getpid()}"
    data.mkdir()
    os.chown(data, 65_534, 65_534)
    os.seteuid(65_534)
    try:
        yield data
    finally:
        os.seteuid(0)
        shutil.rmtree(data)


# What is wrong in a ledger

FAULTS = {
    "fields": (
        ["UPDATE memory SET type = 'odd', metadata = '{' WHERE number = 3"],
        "1 memory with fields that can't be read (ID-3: type, metadata)",
    ),
    "a text that is none": (
        ["UPDATE memory SET text = CAST(x'46ff' || substr(text, 3) AS TEXT) WHERE number = 3"],
        "1 memory with fields that can't be read (ID-3: text)",
    ),
    "a memory of nothing": (
        ["UPDATE memory SET text = '' WHERE number = 3"],
        "1 memory without a text",
    ),
    "a link that leads nowhere": (
        ["UPDATE memory SET superseded_by = 'nobody' WHERE number = 3"],
        "1 memory with a link to another one that does not hold (ID-3)",
    ),
    "a link of one side": (
        ["UPDATE memory SET superseded_by = NULL WHERE number = 6"],
        "1 memory with a link to another one that does not hold (ID-6)",
    ),
    "links in a circle": (
        [
            "UPDATE memory SET supersedes = (SELECT id FROM memory WHERE number = 7) WHERE number = 6",
            "UPDATE memory SET superseded_by = (SELECT id FROM memory WHERE number = 6) WHERE number = 7",
        ],
        "2 memories with a link to another one that does not hold (ID-6, ID-7)",
    ),
    "no passages": (
        ["DELETE FROM passage WHERE number = 3"],
        "1 memory whose passages do not make up the text, so that it is not found",
    ),
    "a gap between passages": (
        ["DELETE FROM passage WHERE key = (SELECT max(key) - 2 FROM passage WHERE number = 10)"],
        "1 memory whose passages do not make up the text, so that it is not found",
    ),
    "a passage beyond the text": (
        ["UPDATE passage SET stop = stop + 1 WHERE number = 3"],
        "1 memory whose passages do not make up the text, so that it is not found",
    ),
    "a passage that is no number's": (
        ["UPDATE passage SET start = 'x' WHERE number = 3"],
        "1 memory whose passages do not make up the text, so that it is not found",
    ),
    "passages of no memory": (
        ["INSERT INTO passage (number, start, stop, worded) VALUES (99, 0, 1, 1), ('x', 0, 1, 1)"],
        "passages or tags of 2 memories not there any more",
    ),
    "tags": (
        ["DELETE FROM tag WHERE number = 3", "INSERT INTO tag VALUES ('other', 4)"],
        "2 memories not found by their tags",
    ),
    "vectors": (
        [
            "UPDATE passage SET vector = zeroblob(1024) WHERE number = 1",
            "UPDATE passage SET vector = substr(vector, 5) WHERE number = 2",
            "UPDATE passage SET vector = CAST(x'0000c07f' || substr(vector, 5) AS BLOB) WHERE number = 3",
        ],
        "3 passages with damaged vectors",
    ),
    "sentences": (
        ["INSERT OR REPLACE INTO sentences SELECT key, x'00' FROM passage WHERE number = 3"],
        "1 passage with damaged vectors",
    ),
    "vectors of nobody": (
        ["UPDATE bank SET value = '{' WHERE name = 'embedder'"],
        "no embedder is named for the vectors of",
    ),
    "passages that nobody embeds": (
        ["UPDATE passage SET vector = NULL WHERE number = 3"],
        "1 passage without a vector, but taken for embedded",
    ),
    "words": (
        [f"INSERT INTO words VALUES (0, {BLOCK - 1}, {VERSION}, x'00')"],
        "1 block of the word index not in agreement with the texts",
    ),
    "a tie that is none": (
        ["INSERT INTO bank VALUES ('tie', '[]')"],
        "it is not known which collection on a Chroma server is its own",
    ),
    "another bank's name": (
        ["UPDATE bank SET value = 'other' WHERE name = 'id'"],
        "the ledger is that of a bank 'other'",
    ),
    "no name": (
        ["DELETE FROM bank WHERE name = 'id'"],
        "the ledger does not tell which bank it is",
    ),
    "an index that lacks some": (
        [
            "INSERT INTO passage (number, start, stop, worded, indexed, vector)"
            " SELECT number, start, stop, 0, 1, vector FROM passage WHERE number = 3"
        ],
        "the index lacks 1 passage",
    ),
}
LOSSES = ("fields", "a text that is none", "a memory of nothing")


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named_and_changed_by_a_repair_alone_after_which_the_bank_is_sound(
    small: Small, told: Told, fault: str
) -> None:
    statements, what = FAULTS[fault]
    numbers = dict(ask(small.ledger, "SELECT number, id FROM memory"))
    small.do(*statements)
    before = small.ledger.read_bytes()
    for number in (3, 6, 7):
        what = what.replace(f"ID-{number}", str(numbers[number]))

    status, found = told(small.data)
    unchanged = small.ledger.read_bytes() == before
    repaired, lines = told(small.data, "--repair")
    others = {number for number in numbers if number != 3}

    assert (status, unchanged) == (1, True)
    assert any(line.startswith(f"team: {what}") for line in found), found
    assert found[-1] == f"Banks that are not sound: 1. {AGAIN}"
    assert repaired == (fault in LOSSES)
    assert any(line.startswith("team:   repaired by") for line in lines)
    assert told(small.data) == (0, ["team: sound"])
    assert others <= {number for (number,) in ask(small.ledger, "SELECT number FROM memory")}


@pytest.mark.parametrize("statement", ["PRAGMA user_version = 0", "PRAGMA user_version = 1", "DROP TABLE sentences"])
def test_a_ledger_without_the_tables_of_its_schema_is_written_anew_with_all_memories(
    small: Small, told: Told, statement: str
) -> None:
    before = ask(small.ledger, "SELECT id, text FROM memory ORDER BY number")
    small.do(statement)
    found, lines = told(small.data)
    told(small.data, "--repair")

    assert found == 1
    assert "it does not have the tables of schema" in lines[0]
    assert told(small.data) == (0, ["team: sound"])
    assert ask(small.ledger, "SELECT id, text FROM memory ORDER BY number") == before


def test_several_faults_of_one_memory_are_mended_together(small: Small, told: Told) -> None:
    small.do(
        "UPDATE passage SET vector = zeroblob(7) WHERE number = 3",
        "UPDATE passage SET stop = stop - 1 WHERE number = 3",
        "INSERT OR REPLACE INTO sentences SELECT key, x'00' FROM passage WHERE number = 3",
    )
    repaired, lines = told(small.data, "--repair")

    assert repaired == 0
    assert sum(line.startswith("team:   repaired by") for line in lines) == 2
    assert told(small.data) == (0, ["team: sound"])


def test_a_damaged_span_of_the_last_day_there_is_gets_an_end(small: Small, told: Told) -> None:
    small.do("UPDATE memory SET event_date = '9999-12-31', time_start = 'x', time_end = 'x' WHERE number = 3")
    repaired, lines = told(small.data, "--repair")

    assert any("time_start, time_end" in line for line in lines)
    assert told(small.data) == (0, ["team: sound"])
    assert repaired == 1


def test_damaged_fields_get_what_is_known_otherwise(small: Small, told: Told) -> None:
    small.do(
        "UPDATE memory SET text = CAST(substr(text, 1, 5) || x'ff' || substr(text, 7) AS TEXT), tags = '?',"
        " retained_at = 'never', event_date = 'whenever', label = x'ff', time_end = 'x' WHERE number = 3"
    )
    [(before,)] = ask(small.ledger, "SELECT retained_at FROM memory WHERE number = 2")

    told(small.data, "--repair")

    [row] = ask(small.ledger, "SELECT text, tags, retained_at, event_date, label FROM memory WHERE number = 3")
    assert row == ("Fact \ufffd tells of the harbour in town 3.", "[]", before, None, "")


def test_links_that_one_side_tells_are_completed_and_others_cleared(small: Small, told: Told) -> None:
    small.do(
        "UPDATE memory SET supersedes = NULL WHERE number = 7",
        "UPDATE memory SET superseded_by = 'nobody' WHERE number = 13",
        "UPDATE memory SET supersedes = 'nobody' WHERE number = 20",
    )

    told(small.data, "--repair")

    links = ask(
        small.ledger,
        "SELECT old.number, new.number FROM memory AS old JOIN memory AS new ON new.supersedes = old.id"
        " AND old.superseded_by = new.id ORDER BY 1",
    )
    told_of = "SELECT count(supersedes), count(superseded_by) FROM memory"
    assert links == [(6, 7), (13, 14), (20, 21), (27, 28)]
    assert ask(small.ledger, told_of) == [(4, 4)]


def test_a_memory_that_is_cut_anew_keeps_its_good_vectors(small: Small, told: Told) -> None:
    vectors = "SELECT start, stop, vector FROM passage WHERE number = 10 ORDER BY worded, start"
    before = ask(small.ledger, vectors)
    small.do("DELETE FROM passage WHERE key = (SELECT max(key) - 2 FROM passage WHERE number = 10)")

    told(small.data, "--repair")

    after = ask(small.ledger, vectors)
    lost = [row for row in after if row not in before]
    assert [row[:2] for row in after] == [row[:2] for row in before]
    assert [vector for _, _, vector in lost] == [None]


def test_words_that_agree_with_the_texts_are_sound(small: Small, told: Told) -> None:
    block = Growing()
    for key, text, start, stop in ask(
        small.ledger,
        "SELECT key, text, start, stop FROM passage JOIN memory USING (number) WHERE worded ORDER BY key",
    ):
        block.add(key, terms(text[start:stop]))
    with closing(sqlite3.connect(small.ledger)) as database, database:
        row = (0, BLOCK - 1, VERSION, block.freeze().as_bytes())
        database.execute("INSERT INTO words VALUES (?, ?, ?, ?)", row)

    assert told(small.data) == (0, ["team: sound"])


def test_a_folder_that_was_renamed_becomes_the_bank_of_its_name(small: Small, told: Told) -> None:
    small.folder.rename(small.folder.with_name(BankId("Équipe").folder))

    status, lines = told(small.data, "--repair")

    assert status == 0
    assert lines[0] == "Équipe: the ledger is that of a bank 'team'"
    assert told(small.data) == (0, ["Équipe: sound"])


# The index


def tear(folder: Path) -> None:
    next(folder.glob("*/header.bin")).write_bytes(b"")


def break_the_database(folder: Path) -> None:
    with closing(sqlite3.connect(folder / "chroma.sqlite3")) as database, database:
        database.execute("DELETE FROM collections")


@pytest.mark.parametrize(
    ("damage", "line"),
    [(tear, "the index is torn"), (shutil.rmtree, "the index is missing"), (break_the_database, "the index can't be")],
)
def test_an_index_that_can_not_be_used_is_put_aside_and_made_again(
    small: Small, told: Told, damage: Callable[[Path], None], line: str
) -> None:
    damage(small.folder / "index")

    status, lines = told(small.data)
    repaired, _ = told(small.data, "--repair")

    assert (status, repaired) == (1, 0)
    assert lines[0].startswith(f"team: {line}")
    assert not (small.folder / "index").exists()
    assert told(small.data) == (0, ["team: sound"])
    assert ask(small.ledger, "SELECT count(*) FROM passage WHERE indexed") == [(0,)]


def test_what_an_index_holds_too_much_is_noted_to_be_removed(small: Small, told: Told) -> None:
    small.do("DELETE FROM passage WHERE number = 3", "DELETE FROM tag WHERE number = 3")
    small.do("DELETE FROM memory WHERE number = 3")

    status, lines = told(small.data, "--repair")

    assert status == 0
    assert lines[0] == "team: the index holds 1 passage too many"
    assert told(small.data) == (0, ["team: sound"])
    assert ask(small.ledger, "SELECT key FROM gone") == [(3,)]


# A repair that was cut short


def test_a_repair_that_was_cut_short_is_told_and_finished(small: Small, told: Told) -> None:
    repaired = small.ledger.with_name(f"ledger.db{REPAIRED}")
    shutil.copy(small.ledger, repaired)
    small.damage(0)

    status, lines = told(small.data)
    finished, after = told(small.data, "--repair")

    assert status == 1
    assert lines[:2] == ["team: a repair was cut short", "team:   can be repaired by finishing it"]
    assert (finished, after[0]) == (0, "team: a repair was cut short")
    assert told(small.data) == (0, ["team: sound"])
    assert small.read() == small.texts
    assert not repaired.exists()
    assert small.ledger.with_name("ledger.db.damaged-1").read_bytes()[:4096] == bytes(4096)
