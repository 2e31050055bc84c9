"""A disk that is full: said clearly, read on, and once there is space again everything acknowledged is there."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from random import Random

import pytest

from hindsight.record import JsonObject
from tests.crash.book import Book
from tests.crash.facts import parcels
from tests.crash.moments import Scene
from tests.crash.wire import Refused
from tests.mirrored import FIRST, mirror
from tests.serving import HINDSIGHT, Serving, client, get, refusal, serving
from tests.small_disk import SmallDisk, small_disk

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

SIZE = 64  # mebibytes, of which the index wants 32 to be free
MANY = 2_000  # more memories than fit into what a full disk has left in the ledger's own files


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path, SIZE) as made:
        yield made


def server(disk: SmallDisk) -> AbstractContextManager[Serving]:
    return serving(disk.data, command=disk.inside(*HINDSIGHT, "serve"), embedder=FIRST)


def scene_on(server: Serving, disk: SmallDisk, book: Book) -> Scene:
    return Scene(server, disk.seen, book, parcels(Random(f"{book.bank}{len(book.kept)}"), mirror), Random(1))


async def losses(server: Serving, book: Book) -> list[str]:
    return (await book.losses(server.url, Random(1), MANY))[1]


async def fill(disk: SmallDisk, scene: Scene) -> None:
    """Leave no space, and none in the ledger's own files either."""
    disk.fill()
    assert "STORAGE_FULL" in await scene.load(scene.some(MANY))


def banks(server: Serving) -> list[str]:
    """The banks that are listed and sound."""
    found: list[JsonObject] = json.loads(get(f"{server.url}/banks")[1])["banks"]
    return [bank["bank_id"] for bank in found if not bank.get("damaged")]


async def test_on_a_full_disk_writes_are_refused_reads_go_on_and_space_cures_it(disk: SmallDisk) -> None:
    book = Book("team")
    with server(disk) as running:
        scene = scene_on(running, disk, book)
        await scene.load(scene.some(40))
        await fill(disk, scene)
        [one, other] = scene.old(2)
        with pytest.raises(Refused, match="STORAGE_FULL"):
            await scene.retain(next(scene.facts), one)
        with pytest.raises(Refused, match="STORAGE_FULL"):
            await scene.forget(frozenset({other}), id=other)
        async with client(running.url, "team") as session:
            told = [
                await refusal(session, "retain", content="The answer is 42."),
                await refusal(session, "update_memory", id=one, tags=["x"]),
            ]
        full = await losses(running, book)
        disk.free()
        await scene.load(scene.some(40))
        await scene.retain(next(scene.facts), one)
        await scene.forget(frozenset({other}), id=other)
        freed = await losses(running, book)
        running.kill()
    with server(disk) as running:
        later = await losses(running, book)
        status = running.stop()

    assert [each["code"] for each in told] == ["STORAGE_FULL", "STORAGE_FULL"]
    assert "free disk space" in told[0]["next_action"]
    assert (full, freed, later, status) == ([], [], [], 0)


async def test_a_bank_that_the_full_disk_refused_does_not_exist(disk: SmallDisk) -> None:
    book = Book("team")
    with server(disk) as running:
        scene = scene_on(running, disk, book)
        await scene.load(scene.some(5))
        await fill(disk, scene)
        with pytest.raises(Refused, match="STORAGE_FULL"):
            await scene_on(running, disk, Book("new")).retain(next(scene.facts))
        full = banks(running)
        disk.free()
        freed = banks(running)
        await scene_on(running, disk, Book("new")).retain(next(scene.facts))
        retained = banks(running)

    assert (full, freed, retained) == (["team"], ["team"], ["new", "team"])


@pytest.mark.parametrize("before", [True, False], ids=["full before", "full since"])
@pytest.mark.parametrize("end", [Serving.kill, Serving.stop])
async def test_a_server_that_starts_on_a_full_disk_reads_and_tells_what_it_lacks(
    disk: SmallDisk, end: Callable[[Serving], object], before: bool
) -> None:
    book = Book("team")
    with server(disk) as running:
        scene = scene_on(running, disk, book)
        await scene.load(scene.some(40))
        if before:
            await fill(disk, scene)
        end(running)
    disk.fill()
    with server(disk) as running:
        scene.server = running
        listed = banks(running)
        full = await losses(running, book)
        refused = await scene.load(scene.some(MANY))
        disk.free()
        stored = await scene.load(scene.some(40))
        freed = await losses(running, book)

    assert listed == ["team"]
    assert "STORAGE_FULL" in refused
    assert (full, stored, freed) == ([], [], [])
