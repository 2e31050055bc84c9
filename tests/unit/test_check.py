"""hindsight check: what it says of a data folder, and what it leaves alone."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from hindsight.cli import main
from hindsight.folder import held_folder
from hindsight.ledger.sqlite import open_sqlite


def made(folder: Path, bank: str) -> Path:
    """The ledger of a new bank in a data folder."""
    path = folder / "banks" / f"b-{bank}" / "ledger.db"
    open_sqlite(path, bank).close()
    return path


def test_a_sound_bank_is_called_sound(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made(tmp_path, "team")

    status = main(["check", "--data-dir", str(tmp_path)])

    assert (status, capsys.readouterr().out) == (0, "team: sound\n")


def test_a_damaged_bank_is_named_and_left_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made(tmp_path, "good")
    damaged = made(tmp_path, "torn")
    damaged.write_bytes(b"no database at all" * 1000)

    status = main(["check", "--data-dir", str(tmp_path)])

    assert status == 1
    assert capsys.readouterr().out.splitlines() == [
        "good: sound",
        "b-torn: the file can't be read: file is not a database",
    ]
    assert damaged.read_bytes() == b"no database at all" * 1000


def test_a_memory_that_nothing_can_find_is_a_fault(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with closing(sqlite3.connect(made(tmp_path, "team"))) as database:
        columns = [row[1] for row in database.execute("PRAGMA table_info(memory)")]
        database.execute(f"INSERT INTO memory VALUES ({','.join('1' for _ in columns)})")
        database.commit()

    status = main(["check", "--data-dir", str(tmp_path)])

    assert status == 1
    assert "b-team: 1 memories can't be searched" in capsys.readouterr().out


def test_a_folder_that_somebody_holds_is_not_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with held_folder(tmp_path, "hindsight serve"):
        status = main(["check", "--data-dir", str(tmp_path)])

    assert status == 1
    assert "is held by hindsight serve" in capsys.readouterr().err
