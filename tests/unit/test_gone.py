"""Deleted banks: out of the way at once, and remembered until nothing is left of them elsewhere."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from hindsight.errors import IndexUnavailable
from hindsight.gone import Gone, clearing, is_gone
from tests.serving import until

pytestmark = pytest.mark.anyio


@dataclass(eq=False)
class Elsewhere:
    """What banks have outside; there is nobody there while it is `down`."""

    down: bool = False
    tried: int = 0
    dropped: list[str] = field(default_factory=list)

    def name(self, folder: Path) -> str:
        return (folder / "name").read_text()

    async def drop(self, name: str) -> None:
        self.tried += 1
        if self.down:
            raise IndexUnavailable("there is nobody")
        self.dropped.append(name)


def bank(folder: Path, name: str = "abc") -> Path:
    made = folder / "b-team"
    (made / "index").mkdir(parents=True)
    (made / "name").write_text(name)
    return made


def left(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*"))


async def test_a_bank_that_is_nothing_but_its_folder_is_gone_with_it(tmp_path: Path) -> None:
    await Gone(tmp_path).take(bank(tmp_path))

    assert left(tmp_path) == []


async def test_what_a_bank_has_outside_goes_too(tmp_path: Path) -> None:
    outside = Elsewhere()
    async with clearing(tmp_path, outside) as gone:
        await gone.take(bank(tmp_path))
        await until(lambda: not left(tmp_path))

    assert outside.dropped == ["abc"]


async def test_a_bank_that_has_nothing_outside_is_asked_for_nowhere(tmp_path: Path) -> None:
    outside = Elsewhere()
    async with clearing(tmp_path, outside) as gone:
        await gone.take(bank(tmp_path, name=""))

    assert (left(tmp_path), outside.tried) == ([], 0)


async def test_an_empty_folder_stays_until_what_is_outside_can_be_removed(tmp_path: Path) -> None:
    outside = Elsewhere(down=True)
    async with clearing(tmp_path, outside) as gone:
        await gone.take(bank(tmp_path))
        await until(lambda: outside.tried > 0)
        kept = left(tmp_path)
        outside.down = False
        await until(lambda: not left(tmp_path))

    assert [is_gone(path) for path in kept] == [True]
    assert outside.dropped == ["abc"]


async def test_a_restart_goes_on_with_it(tmp_path: Path) -> None:
    away = Elsewhere(down=True)
    async with clearing(tmp_path, away) as gone:
        await gone.take(bank(tmp_path))
    [folder] = left(tmp_path)
    (folder / "ledger.db").touch()  # as after a kill in the middle of it
    outside = Elsewhere()
    async with clearing(tmp_path, outside):
        await until(lambda: not left(tmp_path))

    assert outside.dropped == ["abc"]
