"""A data folder that can't be written: told at the start, with what to do; read on, under a running server."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from random import Random

import pytest

from tests.crash.book import Book
from tests.crash.facts import parcels
from tests.crash.moments import Scene
from tests.mirrored import FIRST, mirror
from tests.serving import BOUND, HINDSIGHT, Serving, client, environment_with, get, refusal, serving
from tests.small_disk import SmallDisk, small_disk

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path, 64) as made:
        yield made


def server(disk: SmallDisk) -> AbstractContextManager[Serving]:
    return serving(disk.data, command=disk.inside(*HINDSIGHT, "serve"), embedder=FIRST)


def scene_on(server: Serving, disk: SmallDisk, book: Book) -> Scene:
    return Scene(server, disk.seen, book, parcels(Random(book.bank), mirror), Random(1))


async def losses(server: Serving, book: Book) -> list[str]:
    return (await book.losses(server.url, Random(1), 100))[1]


@pytest.mark.parametrize("command", ["serve", "check"])
def test_a_start_on_a_read_only_folder_names_it_and_says_what_it_must_be(disk: SmallDisk, command: str) -> None:
    disk.run("mount", "-o", "remount,ro", str(disk.data.parent))
    ran = subprocess.run(
        disk.inside(*HINDSIGHT, command),
        env=environment_with({"port": 0, "data_dir": disk.data, "embedder": FIRST}),
        capture_output=True,
        text=True,
        timeout=BOUND,
        check=False,
    )

    assert (ran.returncode, ran.stdout) == (2, "")
    assert f"HINDSIGHT_DATA_DIR='{disk.data}'" in ran.stderr
    assert "can be made, read and written" in ran.stderr
    assert "Read-only file system" in ran.stderr


async def test_under_a_running_server_a_folder_turned_read_only_is_read_on_and_cured(disk: SmallDisk) -> None:
    books = [Book("open"), Book("closed")]
    with server(disk) as running:
        for book in books:
            await (scene := scene_on(running, disk, book)).load(scene.some(20))
        running.stop()
    with server(disk) as running:
        opened = await losses(running, books[0])
        disk.run("mount", "--bind", str(disk.data), str(disk.data))
        disk.run("mount", "-o", "remount,bind,ro", str(disk.data))
        async with client(running.url, "closed") as closed, client(running.url, "new") as new:
            told = [
                await refusal(closed, "retain", content="The answer is 42."),
                await refusal(new, "retain", content="The answer is 42."),
            ]
        read_only = [await losses(running, book) for book in books]
        ready = get(f"{running.url}/readyz")[0]
        disk.run("mount", "-o", "remount,bind,rw", str(disk.data))
        for book in books:
            await (scene := scene_on(running, disk, book)).load(scene.some(20))
        cured = [await losses(running, book) for book in books]
        running.kill()
    with server(disk) as running:
        later = [await losses(running, book) for book in books]

    assert [each["code"] for each in told] == ["INTERNAL", "INTERNAL"]
    assert all("read-only" in each["message"] for each in told)
    assert all("reading goes on" in each["next_action"] for each in told)
    assert ready == 503
    assert (opened, read_only, cured, later) == ([], [[], []], [[], []], [[], []])
