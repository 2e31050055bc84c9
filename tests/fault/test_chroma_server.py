"""A Chroma server that is down, hangs, forgets or is shared: nothing is lost, recall goes on, the index catches up."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import shutil
import socket
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AbstractContextManager, asynccontextmanager
from pathlib import Path

import anyio
import httpx
import pytest

from hindsight.bank import Bank, Query
from hindsight.banks import Banks
from hindsight.cli import main
from hindsight.drafts import Draft
from hindsight.folder import held_folder
from hindsight.index import server
from hindsight.record import BankId
from hindsight.settings import read_settings
from hindsight.wiring import make_embedder, open_banks
from tests.chroma import Chroma, chroma_server
from tests.mirrored import FIRST, mirror
from tests.serving import BOUND, Serving, answer, client, serving

pytestmark = pytest.mark.anyio

TEAM = BankId("team")
SOME = 120
SAMPLE = range(0, SOME, 10)


@pytest.fixture
def chroma(tmp_path: Path) -> Iterator[Chroma]:
    with chroma_server(tmp_path / "chroma") as running:
        yield running


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def _small_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a bank of many thousands: most is found by the index alone."""
    monkeypatch.setattr("hindsight.store.HELD", 20)
    monkeypatch.setattr("hindsight.store.FEW", 10)


def fact(number: int) -> str:
    return f"alpha{number} bravo{number} charlie{number}"


def facts(count: int, first: int = 0) -> list[str]:
    return [fact(number) for number in range(first, first + count)]


@asynccontextmanager
async def opened(data: Path, url: str) -> AsyncIterator[Banks]:
    settings = read_settings(data_dir=data, embedder=FIRST, chroma_url=url)
    with held_folder(data, "a test") as folder:
        async with open_banks(settings, folder, make_embedder(settings)) as banks:
            yield banks


async def retain(bank: Bank, contents: Sequence[str]) -> list[str]:
    answers = await asyncio.gather(*(bank.retain(Draft(content=content)) for content in contents))
    return [each["id"] for each in answers]


async def meant(bank: Bank, number: int) -> tuple[list[str], list[str]]:
    """Texts and warnings for a query that has no word in common with the fact that it means."""
    found = await bank.recall(Query(text=mirror(fact(number)), max_results=1))
    return [result["text"] for result in found["results"]], found.get("warnings", [])


def names_in(data: Path) -> set[str]:
    return {path.name for path in data.rglob("*")}


async def until_held(chroma: Chroma, **held: list[int]) -> None:
    """Return once the server's collections hold so many records, by bank: it tells nobody when they do."""
    end = time.monotonic() + BOUND
    while (found := await asyncio.to_thread(chroma.counts)) != held:
        assert time.monotonic() < end, f"{found}, not {held}"
        await anyio.sleep(0.1)


@pytest.mark.usefixtures("_small_memory")
async def test_the_index_is_on_the_server_and_nowhere_else(chroma: Chroma, data: Path) -> None:
    async with opened(data, chroma.url) as banks, banks.lease(TEAM) as bank:
        await retain(bank, facts(SOME))
        await until_held(chroma, team=[SOME])
        found = [await meant(bank, number) for number in SAMPLE]

    assert found == [([fact(number)], []) for number in SAMPLE]
    assert "index" not in names_in(data)


@pytest.mark.usefixtures("_small_memory")
async def test_without_the_server_all_is_stored_and_found_by_meaning_and_it_catches_up(
    chroma: Chroma, data: Path
) -> None:
    chroma.kill()
    async with opened(data, chroma.url) as banks, banks.lease(TEAM) as bank:
        await retain(bank, facts(SOME))
        found = [await meant(bank, number) for number in SAMPLE]
        chroma.start()
        await until_held(chroma, team=[SOME])

    assert found == [([fact(number)], []) for number in SAMPLE]


@pytest.mark.usefixtures("_small_memory")
async def test_a_server_that_hangs_holds_up_a_recall_or_two_and_no_others(chroma: Chroma, data: Path) -> None:
    async with opened(data, chroma.url) as banks, banks.lease(TEAM) as bank:
        await retain(bank, facts(SOME))
        await until_held(chroma, team=[SOME])
        await meant(bank, 0)
        chroma.hang()
        waits, found = [], []
        for number in range(SOME):
            start = time.monotonic()
            found.append(await meant(bank, number))
            waits.append(time.monotonic() - start)
        retained = time.monotonic()
        await retain(bank, facts(10, first=SOME))
        retained = time.monotonic() - retained
        chroma.go_on()
        await until_held(chroma, team=[SOME + 10])

    assert found == [([fact(number)], []) for number in range(SOME)]
    assert max(waits) < 2 * server.SEARCH
    assert sorted(waits)[-3] < server.SEARCH / 2
    assert retained < 2


@pytest.mark.usefixtures("_small_memory")
async def test_a_server_that_never_answers_from_the_start_holds_up_nobody(data: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        async with opened(data, f"http://127.0.0.1:{silent.getsockname()[1]}") as banks, banks.lease(TEAM) as bank:
            start = time.monotonic()
            await retain(bank, facts(SOME))
            found = await asyncio.gather(*(meant(bank, number) for number in range(SOME)))
            passed = time.monotonic() - start

    assert found == [([fact(number)], []) for number in range(SOME)]
    assert passed < 5


@pytest.mark.slow
@pytest.mark.usefixtures("_small_memory")
async def test_a_server_that_comes_back_empty_is_filled_again(chroma: Chroma, data: Path) -> None:
    async with opened(data, chroma.url) as banks, banks.lease(TEAM) as bank:
        await retain(bank, facts(SOME))
        await until_held(chroma, team=[SOME])
        chroma.kill()
        shutil.rmtree(chroma.folder)
        chroma.start()
        found = [await meant(bank, number) for number in SAMPLE]
        await until_held(chroma, team=[SOME])

    assert found == [([fact(number)], []) for number in SAMPLE]


@pytest.mark.slow
@pytest.mark.usefixtures("_small_memory")
@pytest.mark.parametrize("reopened", [True, False], ids=["reopened", "in use"])
async def test_what_the_server_lost_comes_back_and_what_it_has_too_much_goes(
    chroma: Chroma, data: Path, monkeypatch: pytest.MonkeyPatch, reopened: bool
) -> None:
    async with opened(data, chroma.url) as banks, banks.lease(TEAM) as bank:
        await retain(bank, facts(SOME))
        await until_held(chroma, team=[SOME])
        if not reopened:
            monkeypatch.setattr("hindsight.store._VERIFY", 0.0)
            chroma.lose("team", 30)
            await meant(bank, 0)
            await until_held(chroma, team=[SOME])
    if reopened:
        chroma.lose("team", 30)
    async with opened(data, chroma.url) as banks, banks.lease(TEAM) as bank:
        found = [await meant(bank, number) for number in range(SOME)]
        await until_held(chroma, team=[SOME])

    assert found == [([fact(number)], []) for number in range(SOME)]


@pytest.mark.slow
@pytest.mark.usefixtures("_small_memory")
async def test_a_collection_that_a_kill_has_torn_is_made_anew(
    chroma: Chroma, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "BROKEN", 0.2)
    many = 1_050  # past 1,000, where Chroma writes its files
    async with opened(data, chroma.url) as banks, banks.lease(TEAM) as bank:
        await retain(bank, facts(many))
        await until_held(chroma, team=[many])
        chroma.kill()
        [file] = chroma.folder.glob("*/index_metadata.pickle")
        file.write_bytes(file.read_bytes()[:100])
        chroma.start()
        found = [await meant(bank, number) for number in SAMPLE]
        await retain(bank, facts(1, first=many))
        await until_held(chroma, team=[many + 1])

    assert found == [([fact(number)], []) for number in SAMPLE]


async def test_a_deleted_bank_takes_its_collection_along(chroma: Chroma, data: Path) -> None:
    async with opened(data, chroma.url) as banks:
        async with banks.lease(TEAM) as bank:
            await retain(bank, facts(SOME))
            await until_held(chroma, team=[SOME])
        await banks.delete(TEAM)
        await until_held(chroma)
        async with banks.lease(TEAM) as bank:
            await retain(bank, ["something else"])
            await until_held(chroma, team=[1])

    assert [path.name for path in (data / "banks").iterdir()] == [TEAM.folder]


@pytest.mark.slow
@pytest.mark.parametrize("restarted", [True, False], ids=["restarted", "by itself"])
async def test_a_bank_that_is_deleted_without_the_server_takes_its_collection_along_later(
    chroma: Chroma, data: Path, restarted: bool
) -> None:
    async with opened(data, chroma.url) as banks:
        async with banks.lease(TEAM) as bank:
            await retain(bank, facts(SOME))
            await until_held(chroma, team=[SOME])
        chroma.kill()
        await banks.delete(TEAM)
        left = names_in(data)
        async with banks.lease(TEAM) as bank:
            await retain(bank, ["something else"])
            texts = (await meant(bank, 0))[0]
        if not restarted:
            chroma.start()
            await until_held(chroma, team=[1])
    if restarted:
        chroma.start()
        async with opened(data, chroma.url) as banks, banks.lease(TEAM):
            await until_held(chroma, team=[1])

    assert ("ledger.db" in left, texts) == (False, ["something else"])
    assert [path.name for path in (data / "banks").iterdir()] == [TEAM.folder]


@pytest.mark.usefixtures("_small_memory")
async def test_two_data_folders_with_equal_banks_share_a_server_and_nothing_else(chroma: Chroma, data: Path) -> None:
    other = data.with_name("other")
    async with opened(data, chroma.url) as banks, opened(other, chroma.url) as others:
        async with banks.lease(TEAM) as bank, others.lease(TEAM) as twin:
            await retain(bank, facts(SOME))
            await until_held(chroma, team=[SOME])
            await retain(twin, facts(SOME + 10, first=1_000))
            await until_held(chroma, team=[SOME, SOME + 10])
            found = [await meant(bank, 5), await meant(twin, 1_005)]
        await others.delete(TEAM)
        await until_held(chroma, team=[SOME])

    assert found == [([fact(5)], []), ([fact(1_005)], [])]


@pytest.mark.slow
@pytest.mark.usefixtures("_small_memory")
async def test_a_folder_that_is_put_back_finds_no_vectors_of_later(chroma: Chroma, data: Path) -> None:
    backup = data.with_name("backup")
    async with opened(data, chroma.url) as banks, banks.lease(TEAM) as bank:
        [gone, *_] = await retain(bank, facts(SOME))
        await until_held(chroma, team=[SOME])
    shutil.copytree(data, backup)
    async with opened(data, chroma.url) as banks, banks.lease(TEAM) as bank:
        await bank.forget(gone)
        await retain(bank, facts(1, first=1_000))  # as many as before, but others
        await until_held(chroma, team=[SOME])
    shutil.copytree(backup, data, dirs_exist_ok=True)
    async with opened(data, chroma.url) as banks, banks.lease(TEAM) as bank:
        await retain(bank, facts(1, first=2_000))  # under the key that another one has in the collection
        found = [await meant(bank, number) for number in (0, 1, 2_000)]
        await until_held(chroma, team=[SOME + 1])
        found += [await meant(bank, number) for number in (0, 1, 2_000)]

    assert found == 2 * [([fact(number)], []) for number in (0, 1, 2_000)]


@pytest.mark.slow
@pytest.mark.usefixtures("_small_memory")
async def test_copies_of_a_folder_part_as_soon_as_both_are_used(chroma: Chroma, data: Path) -> None:
    copy = data.with_name("copy")
    async with opened(data, chroma.url) as banks, banks.lease(TEAM) as bank:
        await retain(bank, facts(SOME))
        await until_held(chroma, team=[SOME])
    shutil.copytree(data, copy)
    turns = ((copy, 1_000, 1, [SOME + 1]), (data, 2_000, 2, [SOME + 2]), (copy, 1_001, 1, [SOME + 2, SOME + 2]))
    found = []
    for folder, first, count, held in turns:
        async with opened(folder, chroma.url) as banks, banks.lease(TEAM) as bank:
            await retain(bank, facts(count, first=first))
            await until_held(chroma, team=held)
            found += [await meant(bank, first), await meant(bank, 3)]

    assert found == [([fact(number)], []) for number in (1_000, 3, 2_000, 3, 1_001, 3)]


@pytest.mark.slow
@pytest.mark.usefixtures("_small_memory")
async def test_a_bank_can_move_to_a_server_and_back(chroma: Chroma, data: Path) -> None:
    found = []
    for turn, url in enumerate(["", chroma.url, "", chroma.url]):
        async with opened(data, url) as banks, banks.lease(TEAM) as bank:
            ids = await retain(bank, facts(SOME, first=1_000 * turn))
            await bank.forget(ids[0])
            if url:
                await until_held(chroma, team=[(turn + 1) * (SOME - 1)])
            found += [await meant(bank, 1_000 * before + 7) for before in range(turn + 1)]
            assert (await meant(bank, 1_000 * turn))[0] != [fact(1_000 * turn)]

    assert found == [([fact(1_000 * before + 7)], []) for turn in range(4) for before in range(turn + 1)]


@pytest.mark.slow
async def test_check_removes_what_was_forgotten_from_the_server_too(
    chroma: Chroma, data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async with opened(data, chroma.url) as banks, banks.lease(TEAM) as bank:
        [gone, *_] = await retain(bank, facts(SOME))
        await until_held(chroma, team=[SOME])
        await bank.forget(gone)
        await until_held(chroma, team=[SOME - 1])
    monkeypatch.setenv("HINDSIGHT_CHROMA_URL", chroma.url)
    chroma.kill()
    down = await asyncio.to_thread(main, ["check", "--data-dir", str(data)])
    told = capsys.readouterr().out
    chroma.start()
    up = await asyncio.to_thread(main, ["check", "--data-dir", str(data)])
    held = await asyncio.to_thread(chroma.counts)
    async with opened(data, chroma.url) as banks, banks.lease(TEAM) as bank:
        await until_held(chroma, team=[SOME - 1])

    assert (down, up, held) == (1, 0, {})
    assert "stay until the Chroma server can be reached" in told


def served(data: Path, url: str) -> AbstractContextManager[Serving]:
    return serving(data, embedder=FIRST, chroma_url=url)


@pytest.mark.slow
def test_a_server_that_never_answers_delays_neither_the_start_nor_the_end(data: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        start = time.monotonic()
        with served(data, f"http://127.0.0.1:{silent.getsockname()[1]}") as running:
            started = time.monotonic() - start
            anyio.run(retain_over_mcp, running.url, facts(20))
            ending = time.monotonic()
            status = running.stop()
            ended = time.monotonic() - ending

    assert status == 0
    assert started < 10
    assert ended < 10


async def retain_over_mcp(url: str, contents: Sequence[str]) -> None:
    async with client(url, "team") as session:
        for content in contents:
            await answer(session, "retain", content=content)


@pytest.mark.slow
async def test_kills_of_the_server_under_load_lose_nothing_and_hold_up_nothing(chroma: Chroma, data: Path) -> None:
    many = 9_000  # more than are held in memory: recall needs the index
    stored: list[int] = []
    answers: list[tuple[int, list[str], bool]] = []
    waits: list[float] = []
    killing = asyncio.Event()

    async def load(url: str) -> None:
        async with httpx.AsyncClient(base_url=url, timeout=BOUND, trust_env=False) as http:
            for first in range(0, many, 100):
                body = "\n".join(json.dumps({"content": content}) for content in facts(100, first))
                lines = (await http.post("/banks/team/memories", content=body)).text.splitlines()
                assert [json.loads(line)["status"] for line in lines] == ["stored"] * 100
                stored.extend(range(first, first + 100))

    async def come_and_go(url: str, number: int) -> None:
        async with client(url, "team") as session:
            for turn in itertools.count():
                if killing.is_set():
                    return
                own = 100_000 * (number + 1) + turn
                start = time.monotonic()
                assert (await answer(session, "retain", content=fact(own)))["status"] == "stored"
                stored.append(own)
                sought = random.Random(own).choice(stored)
                found = await answer(session, "recall", query=mirror(fact(sought)), max_results=1)
                waits.append(time.monotonic() - start)
                answers.append((sought, [each["text"] for each in found["results"]], "warnings" in found))

    with served(data, chroma.url) as running:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(load, running.url)
            for number in range(4):
                tasks.start_soon(come_and_go, running.url, number)
            for _ in range(6):
                await anyio.sleep(random.Random(len(stored)).uniform(1, 3))
                await asyncio.to_thread(chroma.kill)
                await anyio.sleep(1)
                await asyncio.to_thread(chroma.start)
            while len(stored) < many:  # noqa: ASYNC110  # the load tells nobody
                await anyio.sleep(0.1)
            killing.set()
        await until_held(chroma, team=[len(stored)])
        async with client(running.url, "team") as session:
            later = [
                (await answer(session, "recall", query=mirror(fact(number)), max_results=1))["results"][0]["text"]
                for number in stored[:: len(stored) // 50]
            ]

    assert [each for each in answers if each[1:] != ([fact(each[0])], False)] == []
    assert later == [fact(number) for number in stored[:: len(stored) // 50]]
    assert max(waits) < 5
