"""What every vector index promises: embedded Chroma and a Chroma server."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Protocol

import anyio
import numpy as np
import pytest

from hindsight.embedding import Vectors
from hindsight.errors import IndexUnavailable
from hindsight.index import Keys, VectorIndex, chroma, server
from hindsight.index.chroma import open_chroma
from hindsight.index.server import ChromaServer
from hindsight.ledger.sqlite import SqliteLedger, open_sqlite
from hindsight.record import BankId
from tests.chroma import chroma_server, free_port

pytestmark = pytest.mark.anyio

DIMENSION = 16
BANK = BankId.parse("Größe 1")


class Opener(Protocol):
    """Opens a bank's index."""

    def __call__(self, bank: BankId, dimension: int, embedder: str = "") -> Awaitable[VectorIndex]: ...


def unit_rows(count: int, dimension: int = DIMENSION, seed: int = 1) -> Vectors:
    rows = np.random.default_rng(seed).standard_normal((count, dimension))
    unit: Vectors = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
    return unit


def numbers(*keys: int) -> Keys:
    return np.array(keys, dtype=np.int64)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with chroma_server(tmp_path_factory.mktemp("server")) as running:
        yield running.url


@pytest.fixture(params=["embedded", "server"])
async def opener(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Opener]:
    if request.param == "embedded":
        yield lambda bank, dimension, embedder="": open_chroma(tmp_path / bank.folder, bank, dimension, embedder)
        return
    connected = ChromaServer(request.getfixturevalue("url"))
    ledgers = dict[BankId, SqliteLedger]()

    async def open_on_server(bank: BankId, dimension: int, embedder: str = "") -> VectorIndex:
        if bank not in ledgers:
            ledgers[bank] = open_sqlite(tmp_path / bank.folder / "ledger.db", bank.text)
        return await connected.open(bank, dimension, ledgers[bank], embedder)

    yield open_on_server
    for ledger in ledgers.values():
        ledger.close()
    await connected.aclose()


@pytest.fixture
async def index(opener: Opener) -> AsyncIterator[VectorIndex]:
    opened = await opener(BANK, DIMENSION)
    yield opened
    await opened.aclose()


async def test_an_index_holds_what_was_upserted_in_any_number(index: VectorIndex) -> None:
    keys = np.arange(10, 267, dtype=np.int64)

    await index.upsert(keys, unit_rows(len(keys)))

    assert await index.count() == 257
    assert (await index.keys()).tolist() == list(range(10, 267))


async def test_an_empty_index_answers_with_nothing(index: VectorIndex) -> None:
    nearest = await index.nearest(unit_rows(1)[0], 5)

    assert (nearest.keys.tolist(), nearest.similarities.tolist()) == ([], [])
    assert (await index.keys()).tolist() == []
    assert await index.count() == 0


async def test_nothing_to_upsert_or_delete_changes_nothing(index: VectorIndex) -> None:
    await index.upsert(numbers(), unit_rows(0))
    await index.delete(numbers())

    assert await index.count() == 0


async def test_the_nearest_come_best_first_with_their_cosine(index: VectorIndex) -> None:
    vectors = unit_rows(300)
    await index.upsert(np.arange(300, dtype=np.int64), vectors)
    sought = unit_rows(1, seed=2)[0]

    nearest = await index.nearest(sought, 7)

    cosines = vectors @ sought
    assert nearest.keys.tolist() == np.argsort(-cosines)[:7].tolist()
    assert nearest.keys.dtype == np.int64
    assert nearest.similarities.dtype == np.float32
    np.testing.assert_allclose(nearest.similarities, np.sort(cosines)[::-1][:7], atol=1e-5)


async def test_fewer_than_wanted_come_when_there_are_no_more(index: VectorIndex) -> None:
    await index.upsert(numbers(3, 4), unit_rows(2))

    nearest = await index.nearest(unit_rows(1)[0], 500)

    assert sorted(nearest.keys.tolist()) == [3, 4]


async def test_an_upserted_key_takes_its_new_vector(index: VectorIndex) -> None:
    old, new = unit_rows(2)
    await index.upsert(numbers(5), old[np.newaxis])

    await index.upsert(numbers(5), new[np.newaxis])

    nearest = await index.nearest(new, 2)
    assert nearest.keys.tolist() == [5]
    assert nearest.similarities[0] == pytest.approx(1.0, abs=1e-5)


async def test_a_deleted_key_takes_no_place_among_the_nearest(index: VectorIndex) -> None:
    vectors = unit_rows(120)
    await index.upsert(np.arange(120, dtype=np.int64), vectors)

    await index.delete(np.arange(60, dtype=np.int64))

    nearest = await index.nearest(vectors[0], 60)
    assert sorted(nearest.keys.tolist()) == list(range(60, 120))
    assert await index.count() == 60


async def test_deleting_keys_that_are_not_held_is_no_error(index: VectorIndex) -> None:
    await index.upsert(numbers(1), unit_rows(1))

    await index.delete(numbers(2, 3))

    assert (await index.keys()).tolist() == [1]


async def test_all_keys_come_when_there_are_more_than_a_page(
    index: VectorIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chroma, "PAGE", 40)
    monkeypatch.setattr(server, "PAGE", 40)
    await index.upsert(np.arange(80, dtype=np.int64), unit_rows(80))

    assert (await index.keys()).tolist() == list(range(80))


async def test_large_keys_keep_their_value(index: VectorIndex) -> None:
    await index.upsert(numbers(2**53 + 1, 2**63 - 1), unit_rows(2))

    assert (await index.keys()).tolist() == [2**53 + 1, 2**63 - 1]


async def test_two_banks_hold_their_own_vectors(opener: Opener) -> None:
    first, second = await opener(BankId.parse("a"), DIMENSION), await opener(BankId.parse("A"), DIMENSION)
    await first.upsert(numbers(1), unit_rows(1))
    await second.upsert(numbers(2), unit_rows(1))

    assert (await first.nearest(unit_rows(1)[0], 5)).keys.tolist() == [1]
    assert (await second.nearest(unit_rows(1)[0], 5)).keys.tolist() == [2]
    await first.aclose()
    await second.aclose()


async def test_a_reopened_index_still_holds_everything(opener: Opener) -> None:
    vectors = unit_rows(1_130)
    first = await opener(BANK, DIMENSION)
    await first.upsert(np.arange(1_130, dtype=np.int64), vectors)
    await first.delete(numbers(1, 1_120))
    await first.aclose()

    second = await opener(BANK, DIMENSION)

    assert (first.rebuilt, second.rebuilt) == (True, False)
    assert await second.count() == 1_128
    assert [(await second.nearest(vectors[key], 1)).keys.tolist() for key in (0, 999, 1_129)] == [[0], [999], [1_129]]
    await second.aclose()


async def test_an_index_says_that_it_is_rebuilt_until_it_holds_something(opener: Opener) -> None:
    said = []
    for _ in range(2):
        opened = await opener(BANK, DIMENSION)
        said.append(opened.rebuilt)
        await opened.aclose()

    assert said == [True, True]


@pytest.mark.parametrize(("dimension", "embedder"), [(2 * DIMENSION, "one"), (DIMENSION, "another")])
async def test_an_index_of_another_embedder_starts_empty_and_says_so(
    opener: Opener, dimension: int, embedder: str
) -> None:
    first = await opener(BANK, DIMENSION, "one")
    await first.upsert(numbers(1), unit_rows(1))
    await first.aclose()

    second = await opener(BANK, dimension, embedder)

    assert second.rebuilt
    assert await second.count() == 0
    await second.upsert(numbers(1), unit_rows(1, dimension))
    await second.aclose()


async def test_a_vector_of_another_dimension_is_refused(index: VectorIndex) -> None:
    await index.upsert(numbers(1), unit_rows(1))

    with pytest.raises(IndexUnavailable):
        await index.upsert(numbers(2), unit_rows(1, DIMENSION + 1))
    with pytest.raises(IndexUnavailable):
        await index.nearest(unit_rows(1, DIMENSION + 1)[0], 1)


async def test_a_closed_index_is_unavailable_and_closes_twice(index: VectorIndex) -> None:
    await index.aclose()
    await index.aclose()

    with pytest.raises(IndexUnavailable):
        await index.count()
    with pytest.raises(IndexUnavailable):
        await index.upsert(numbers(1), unit_rows(1))


async def test_closing_waits_for_the_calls_under_way(index: VectorIndex) -> None:
    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(index.upsert, numbers(1), unit_rows(1))
            await anyio.lowlevel.checkpoint()
            tasks.start_soon(index.aclose)


async def test_a_cancelled_upsert_leaves_a_good_index(index: VectorIndex) -> None:
    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(index.upsert, np.arange(5_000, dtype=np.int64), unit_rows(5_000))
            while not await index.count():  # its turn comes between two steps of the upsert
                pass
            scope.cancel()

    held = await index.keys()
    assert 0 < len(held) < 5_000
    assert held.tolist() == list(range(len(held)))


async def test_reads_get_their_turn_while_much_is_written(index: VectorIndex) -> None:
    seen: list[int] = []

    async def watch() -> None:
        while not seen or seen[-1] < 1_000:
            seen.append(await index.count())

    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(watch)
            tasks.start_soon(index.upsert, np.arange(1_000, dtype=np.int64), unit_rows(1_000))

    assert len(set(seen)) > 5


async def open_at(url: str, folder: Path) -> VectorIndex:
    """The index of BANK at a server that may be none."""
    async with aclosing(ChromaServer(url)) as connected:
        with contextlib.closing(open_sqlite(folder / "ledger.db", BANK.text)) as ledger:
            return await connected.open(BANK, DIMENSION, ledger)


async def test_a_server_that_is_gone_is_unavailable(tmp_path: Path) -> None:
    with pytest.raises(IndexUnavailable):
        await open_at(f"http://127.0.0.1:{free_port()}", tmp_path)


async def test_a_server_that_never_answers_is_unavailable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "KNOCK", 0.2)

    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(IndexUnavailable):
        await open_at(f"http://127.0.0.1:{silent.getsockname()[1]}", tmp_path)


@pytest.mark.parametrize("body", [b"<html>", b"{}", b"[]", b'{"id": 1, "metadata": 2}'])
async def test_a_server_that_is_no_chroma_is_unavailable(tmp_path: Path, body: bytes) -> None:
    async def other(stream: anyio.abc.SocketStream) -> None:
        async with stream:
            await stream.receive()
            head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
            await stream.send(head.encode() + body)

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port = listener.extra(anyio.abc.SocketAttribute.local_port)
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, other)
        with pytest.raises(IndexUnavailable):
            await open_at(f"http://127.0.0.1:{port}", tmp_path)
        tasks.cancel_scope.cancel()


async def test_opening_and_closing_an_embedded_index_keeps_no_threads_or_descriptors(tmp_path: Path) -> None:
    async def cycle() -> tuple[int, int]:
        opened = await open_chroma(tmp_path / "index", BANK, DIMENSION)
        await opened.upsert(numbers(1), unit_rows(1))
        await opened.aclose()
        return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))

    counts = [await cycle() for _ in range(12)]

    # One that is open has 13 descriptors and 6 threads, and they end a moment after it was closed.
    descriptors, threads = zip(*counts, strict=True)
    assert max(descriptors) - min(descriptors) < 3 * 13
    assert max(threads) - min(threads) < 3 * 6


async def test_a_full_disk_pauses_writes_but_not_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = await open_chroma(tmp_path / "index", BANK, DIMENSION)
    await opened.upsert(numbers(1), unit_rows(1))

    monkeypatch.setattr(chroma, "MIN_FREE", 2**62)

    with pytest.raises(IndexUnavailable):
        await opened.upsert(numbers(2), unit_rows(1))
    with pytest.raises(IndexUnavailable):
        await opened.delete(numbers(1))
    await opened.aclose()
    again = await open_chroma(tmp_path / "index", BANK, DIMENSION)
    assert (await again.nearest(unit_rows(1)[0], 5)).keys.tolist() == [1]
    await again.aclose()
