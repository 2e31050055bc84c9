"""A data folder that is removed, moved or replaced under a running server: it is said, and nothing is acknowledged."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from tests.crash.book import Book
from tests.crash.facts import parcels
from tests.crash.moments import Scene
from tests.mirrored import FIRST, mirror
from tests.serving import Serving, browser, client, get, refusal, serving

pytestmark = pytest.mark.anyio


def away(data: Path) -> None:
    """Another name, so that nothing is at the old one."""
    data.rename(data.with_name("away"))


def replaced(data: Path) -> None:
    """A copy in its place, as a backup is put back."""
    away(data)
    shutil.copytree(data.with_name("away"), data)


def scene_on(server: Serving, data: Path, book: Book) -> Scene:
    return Scene(server, data, book, parcels(Random(book.bank), mirror), Random(1))


@pytest.mark.parametrize(
    "happens", [shutil.rmtree, *(pytest.param(each, marks=pytest.mark.slow) for each in (away, replaced))]
)
async def test_nothing_is_acknowledged_or_told_to_be_empty_once_the_folder_is_another_one(
    tmp_path: Path, happens: Callable[[Path], object]
) -> None:
    data = tmp_path / "data"
    books = [Book("open"), Book("closed")]
    with serving(data, embedder=FIRST) as running:
        for book in books:
            await (scene := scene_on(running, data, book)).load(scene.some(20))
        running.stop()
    with serving(data, embedder=FIRST) as running:
        await scene_on(running, data, books[0]).recall()
        happens(data)
        files = sorted(data.rglob("*"))
        told = []
        for bank in ("open", "closed", "new"):
            async with client(running.url, bank) as session:
                told.append(await refusal(session, "retain", content="The answer is 42."))
        async with client(running.url, "closed") as session:
            told.append(await refusal(session, "recall", query="answer"))
            told.append(await refusal(session, "list_memories"))
        exported = get(f"{running.url}/banks/closed/memories")
        listed = get(f"{running.url}/banks")
        async with browser(running.url) as http:
            deleted = await http.delete("/banks/closed?confirm=true")
        alive = get(f"{running.url}/healthz")[0]
        left = sorted(data.rglob("*"))
        status = running.stop()

    assert [each["code"] for each in told] == ["INTERNAL"] * 5
    assert all("removed or replaced" in each["message"] for each in told)
    assert all("restart" in each["next_action"] for each in told)
    assert (exported[0], listed[0], deleted.status_code) == (500, 500, 500)
    assert "removed or replaced" in deleted.json()["error"]["message"]
    assert alive == 200
    assert [path.name for path in left if path not in files and not path.name.startswith("ledger.db-")] == []
    assert status == 0


async def test_a_folder_that_was_away_for_a_while_is_as_it_was(tmp_path: Path) -> None:
    data, book = tmp_path / "data", Book("team")
    with serving(data, embedder=FIRST) as running:
        scene = scene_on(running, data, book)
        await scene.load(scene.some(20))
        away(data)
        async with client(running.url, "team") as session:
            told = await refusal(session, "retain", content="The answer is 42.")
        data.with_name("away").rename(data)
        await scene.load(scene.some(20))
        _, losses = await book.losses(running.url, Random(1), 100)
        running.kill()
    with serving(data, embedder=FIRST) as running:
        _, later = await book.losses(running.url, Random(1), 100)

    assert told["code"] == "INTERNAL"
    assert (losses, later) == ([], [])
