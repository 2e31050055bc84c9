"""A bank's store: ledger, memory and index in step, whatever comes between them."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import weakref
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC
from itertools import pairwise
from pathlib import Path

import anyio
import numpy as np
import pytest

from hindsight.bank import Bank, Narrowing, Parts, Query
from hindsight.drafts import Draft
from hindsight.embedding import Parted, Vectors
from hindsight.embedding.batching import BatchingEmbedder
from hindsight.errors import EmbedderUnavailable, IndexUnavailable, MemoryNotFound
from hindsight.index import Keys, Nearest, VectorIndex
from hindsight.ledger import EmbedderMark
from hindsight.ledger.sqlite import SqliteLedger, open_sqlite
from hindsight.quota import Quota
from hindsight.retrieval.terms import VERSION
from hindsight.retrieval.words import BLOCK, Block, WordIndex
from hindsight.store import Store, open_store
from hindsight.telemetry import NO_LAG, Lag
from tests.serving import until

pytestmark = pytest.mark.anyio

BOUND = 20.0


@dataclass(eq=False)
class Hashing:
    """An embedder whose vectors come from a hash; down while `down`."""

    name: str = "hashing"
    dimension: int = 8
    max_tokens: int = 256
    down: bool = False

    async def ready(self) -> None:
        pass

    async def embed(self, texts: Sequence[str]) -> Vectors:
        if self.down:
            raise EmbedderUnavailable("the embedder is down")
        rows = [np.frombuffer(hashlib.blake2b(text.encode(), digest_size=8).digest(), np.uint8) for text in texts]
        vectors = np.array(rows, np.float32) + 1
        return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), np.float32)

    def token_ends(self, text: str) -> list[int]:
        return [place for place, character in enumerate(text) if character == " "] + [len(text)]

    async def aclose(self) -> None:
        pass


@dataclass(eq=False)
class Shelf:
    """An index that is a dict; opening it waits for `may_open`. It outlives the stores that open it."""

    held: dict[int, Vectors] = field(default_factory=dict)
    mark: EmbedderMark | None = None
    down: bool = False
    opened: int = 0
    counted: int = 0
    listed: int = 0
    opening: asyncio.Event = field(default_factory=asyncio.Event)
    may_open: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def rebuilt(self) -> bool:
        return not self.held

    @property
    def stale(self) -> bool:
        return False

    async def open(self, mark: EmbedderMark) -> VectorIndex:
        self.opening.set()
        await self.may_open.wait()
        if self.down:
            raise IndexUnavailable("the index is down")
        if self.mark != mark:
            self.held.clear()
        self.mark = mark
        self.opened += 1
        return self

    async def upsert(self, keys: Keys, vectors: Vectors) -> None:
        self.held.update(zip(keys.tolist(), vectors, strict=True))

    async def delete(self, keys: Keys) -> None:
        for key in keys.tolist():
            self.held.pop(key, None)

    async def nearest(self, vector: Vectors, count: int) -> Nearest:
        keys = np.array(list(self.held), np.int64)
        cosines = np.array([row @ vector for row in self.held.values()], np.float32)
        best = np.argsort(-cosines)[:count]
        return Nearest(keys[best], cosines[best])

    async def keys(self) -> Keys:
        self.listed += 1
        return np.array(sorted(self.held), np.int64)

    async def count(self) -> int:
        self.counted += 1
        return len(self.held)

    async def aclose(self) -> None:
        pass


@dataclass(eq=False)
class House:
    """A bank with its parts at hand."""

    bank: Bank
    store: Store
    ledger: SqliteLedger
    embedder: Hashing
    shelf: Shelf

    async def retain(self, *contents: str) -> list[str]:
        """Retain memories together; their ids."""
        answers = await asyncio.gather(*(self.bank.retain(Draft(content=content)) for content in contents))
        return [answer["id"] for answer in answers]

    async def settled(self) -> None:
        """Return once the index has followed."""
        await until(lambda: not len(self.ledger.gone(1)) and not len(self.ledger.unindexed(1)[0]))


async def opened(folder: Path, embedder: Hashing, shelf: Shelf) -> House:
    ledger = open_sqlite(folder / "ledger.db", "team")
    batching = BatchingEmbedder(embedder)
    store = await open_store("team", ledger, batching, shelf.open, Quota())

    async def create() -> Store:
        return store

    return House(Bank(Parts(batching, UTC), store, create), store, ledger, embedder, shelf)


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    shelf = Shelf()
    shelf.may_open.set()
    made = await opened(tmp_path, Hashing(), shelf)
    yield made
    await made.bank.aclose()


async def texts(bank: Bank, query: str, most: int = 10) -> list[str]:
    answer = await bank.recall(Query(text=query, max_results=most, max_tokens=100_000))
    return [result["text"] for result in answer["results"]]


async def test_the_index_follows_what_is_retained_and_forgotten(house: House) -> None:
    ids = await house.retain("one fact", "two facts", "three facts")
    await house.settled()
    full = len(house.shelf.held)
    await house.bank.forget(ids[1])
    await house.settled()

    assert (full, len(house.shelf.held)) == (3, 2)


async def test_a_bank_tells_what_it_has_still_to_do_until_it_is_done(tmp_path: Path) -> None:
    shelf = Shelf()
    house = await opened(tmp_path, Hashing(), shelf)
    await house.retain("one fact", "two facts")
    house.embedder.down = True
    await house.retain("three facts")
    with anyio.fail_after(BOUND):
        await shelf.opening.wait()
    before = house.bank.lag
    house.embedder.down = False
    shelf.may_open.set()
    await until(lambda: house.bank.lag == NO_LAG)

    assert dataclasses.replace(before, seconds=0) == Lag(0, unembedded=1, unindexed=2, seconds=0, waits=True)
    assert 0 < before.seconds < BOUND
    await house.bank.aclose()


async def test_what_is_forgotten_while_the_index_opens_is_not_in_it_in_the_end(tmp_path: Path) -> None:
    shelf = Shelf()
    house = await opened(tmp_path, Hashing(), shelf)
    gone, _ = await house.retain("the canary sings", "the cat sleeps")
    with anyio.fail_after(BOUND):
        await shelf.opening.wait()
    await house.bank.forget(gone)
    shelf.may_open.set()
    await house.settled()

    assert len(shelf.held) == 1
    assert await texts(house.bank, "canary", 1) == ["the cat sleeps"]
    await house.bank.aclose()


async def test_a_recall_that_is_given_up_while_the_index_opens_does_not_open_it_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hindsight.store.FEW", 10)  # else so few are scored without the index
    shelf = Shelf()
    shelf.may_open.set()
    before = await opened(tmp_path, Hashing(), shelf)
    await before.retain(*(f"fact number {number}" for number in range(20)))
    await before.settled()
    await before.bank.aclose()
    shelf.may_open.clear()
    shelf.opening.clear()
    shelf.opened = 0
    house = await opened(tmp_path, Hashing(), shelf)
    house.store.held.drop(np.arange(100))  # as in a bank of which not all is held in memory
    [vector] = await house.embedder.embed(["fact number 3"])
    counting = house.store.roster.counting(superseded=False)

    first = asyncio.create_task(house.store.nearest(vector, counting, 2, house.store.held.view()[0]))
    with anyio.fail_after(BOUND):
        await shelf.opening.wait()
        first.cancel()
        await asyncio.wait([first])
        second = asyncio.create_task(house.store.nearest(vector, counting, 2, house.store.held.view()[0]))
        await asyncio.sleep(0)
        shelf.may_open.set()
        keys, cosines = await second

    assert first.cancelled()
    assert (len(keys), round(float(cosines[0]), 3)) == (2, 1.0)
    assert shelf.opened == 1
    await house.bank.aclose()


async def test_a_store_that_is_closed_while_its_index_opens_waits_for_it(tmp_path: Path) -> None:
    shelf = Shelf()
    house = await opened(tmp_path, Hashing(), shelf)
    await house.retain("the cat sleeps")
    with anyio.fail_after(BOUND):
        await shelf.opening.wait()
        closing = asyncio.create_task(house.bank.aclose())
        await asyncio.sleep(0)
        shelf.may_open.set()
        await closing
        shelf.opened = 0
        again = await opened(tmp_path, Hashing(), shelf)
        await again.settled()

    assert len(shelf.held) == 1
    await again.bank.aclose()


async def test_a_store_that_is_closed_lets_go_of_its_memory_at_once(house: House) -> None:
    await house.retain("Alice keeps bees.")
    parts = [weakref.ref(part) for part in (house.store.roster, house.store.held, house.store.sketch)]

    await house.bank.aclose()

    assert [part() for part in parts] == [None, None, None]


@pytest.mark.parametrize("verify", [60.0, 0.0], ids=["reopened", "in use"])
async def test_what_an_index_lost_comes_back_and_what_is_foreign_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verify: float
) -> None:
    monkeypatch.setattr("hindsight.store.FEW", 10)  # else so few are scored without the index
    monkeypatch.setattr("hindsight.store.HELD", 5)
    monkeypatch.setattr("hindsight.store._VERIFY", verify)
    contents = [f"fact number {number}" for number in range(40)]
    shelf = Shelf()
    shelf.may_open.set()
    house = await opened(tmp_path, Hashing(), shelf)
    await house.retain(*contents)
    await house.settled()
    if verify:
        await house.bank.aclose()
    for key in (3, 4, 5, 40):
        shelf.held[1_000] = shelf.held.pop(key)
    if verify:
        house = await opened(tmp_path, Hashing(), shelf)

    await texts(house.bank, contents[0], 1)
    await until(lambda: sorted(shelf.held) == list(range(1, 41)))

    assert [await texts(house.bank, content, 1) for content in contents] == [[content] for content in contents]
    await house.bank.aclose()


async def test_an_index_that_holds_what_it_should_is_only_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hindsight.store.HELD", 5)
    shelf = Shelf()
    shelf.may_open.set()
    house = await opened(tmp_path, Hashing(), shelf)
    await house.retain(*(f"fact number {number}" for number in range(40)))
    await house.settled()
    await house.bank.aclose()
    house = await opened(tmp_path, Hashing(), shelf)
    await until(lambda: shelf.opened == 2)
    await house.bank.aclose()

    assert (shelf.counted, shelf.listed) == (1, 0)


async def test_an_index_that_is_down_holds_up_neither_late_vectors_nor_the_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hindsight.store.HELD", 5)
    shelf = Shelf(down=True)
    shelf.may_open.set()
    house = await opened(tmp_path, Hashing(), shelf)
    await house.retain(*(f"fact number {number}" for number in range(BLOCK + 10)))
    house.embedder.down = True
    await house.retain("a late fact")
    house.embedder.down = False
    await until(lambda: not house.store.late and bool(house.ledger.word_blocks(VERSION)))

    assert "warnings" not in await house.bank.recall(Query(text="fact number 7"))
    await house.bank.aclose()


async def test_a_vector_leaves_the_index_also_while_the_embedder_is_down(house: House) -> None:
    gone, _ = await house.retain("the canary sings", "the cat sleeps")
    await house.settled()
    house.embedder.down = True
    await house.retain("a late fact")
    await house.bank.forget(gone)
    await house.settled()

    assert len(house.shelf.held) == 1


async def test_late_vectors_come_when_the_embedder_is_back(house: House) -> None:
    house.embedder.down = True
    answer = await house.bank.retain(Draft(content="a late fact"))
    found = await house.bank.recall(Query(text="late"))
    house.embedder.down = False
    await until(lambda: len(house.shelf.held) == 1)

    assert answer["warnings"] != []
    assert [result["text"] for result in found["results"]] == ["a late fact"]
    assert "warnings" not in await house.bank.recall(Query(text="late"))


@dataclass(eq=False)
class Bees(Hashing):
    """An embedder whose vectors tell how much of a text is about bees."""

    dimension: int = 2

    async def embed(self, texts: Sequence[str]) -> Vectors:
        if self.down:
            raise EmbedderUnavailable("the embedder is down")
        words = [text.lower().replace(".", "").split() for text in texts]
        shares = [sum(word in ("bees", "hive", "wax") for word in each) / len(each) for each in words]
        return np.array([(share, (1 - share**2) ** 0.5) for share in shares], np.float32)


class BeesInParts(Bees):
    """The same, which knows parts."""

    async def embed_parts(self, texts: Sequence[Parted]) -> list[Vectors]:
        return [await self.embed([each.text, *_parts(each)]) for each in texts]


def _parts(parted: Parted) -> list[str]:
    return [parted.text[start:stop] for start, stop in pairwise((0, *parted.stops))]


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("embedder", [Bees(), BeesInParts()], ids=["whole texts", "parts"])
async def test_a_fact_beside_others_is_found_by_its_sentence(tmp_path: Path, embedder: Bees, late: bool) -> None:
    vague, fact = "A hive stood there.", "We had lunch out in the sun. Bees swarm. Then we all went home by train."
    shelf = Shelf()
    shelf.may_open.set()
    house = await opened(tmp_path, embedder, shelf)
    embedder.down = late
    await house.retain(vague, fact)
    embedder.down = False
    await until(lambda: not house.store.late)

    assert await texts(house.bank, "wax") == ([fact, vague] if isinstance(embedder, BeesInParts) else [vague, fact])
    await house.bank.aclose()


async def test_words_of_what_was_forgotten_are_in_no_block_that_is_kept(house: House) -> None:
    canary = await house.retain("zanzibarcanary")
    for start in range(0, BLOCK + 10, 500):
        await house.retain(*(f"item {number}" for number in range(start, start + 500)))
        if start == 1_000:
            await house.bank.forget(canary[0])
    await until(lambda: bool(house.ledger.word_blocks(VERSION)))

    words = WordIndex()
    words.put(0, Block.from_bytes(house.ledger.word_blocks(VERSION)[0]))
    alive = np.ones(BLOCK, np.bool_)
    counts = [len(hits.keys) for hits in words.look_up(["zanzibarcanari", "zanzibarcanary", "item", "77"], alive)]
    assert counts[:2] == [0, 0]
    assert counts[2] > 4_000
    assert counts[3] == 1


async def test_a_bank_of_which_everything_was_forgotten_answers_with_nothing_after_reopening(tmp_path: Path) -> None:
    shelf = Shelf()
    shelf.may_open.set()
    before = await opened(tmp_path, Hashing(), shelf)
    [only] = await before.retain("the canary sings")
    await before.bank.forget(only)
    await before.bank.aclose()
    house = await opened(tmp_path, Hashing(), shelf)

    assert await texts(house.bank, "canary") == []
    assert (await house.bank.page(Narrowing(), newest=True, beyond=None, most=9)) == ([], None)
    await house.bank.aclose()


async def test_a_page_of_long_memories_is_shorter_and_the_next_one_goes_on(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hindsight.bank._PAGE", 100)
    contents = [f"{number} " + "x" * 40 for number in range(7)] + ["y" * 300, "z"]
    for content in contents:
        await house.retain(content)
    pages: list[list[str]] = []
    beyond = None
    while not pages or beyond is not None:
        page, beyond = await house.bank.page(Narrowing(), newest=False, beyond=beyond, most=5)
        pages.append([memory.text for memory in page])

    assert [text for page in pages for text in page] == contents
    assert [len(page) for page in pages] == [2, 2, 2, 1, 1, 1]


async def test_two_that_forget_at_once_share_the_count(house: House) -> None:
    await house.retain(*(f"fact number {number}" for number in range(20)))
    counts = await asyncio.gather(*(house.bank.forget_all(Narrowing()) for _ in range(5)))

    assert sum(counts) == 20
    assert await texts(house.bank, "fact") == []


async def test_a_memory_that_another_call_forgets_first_is_not_found(house: House) -> None:
    [id] = await house.retain("one fact")
    outcomes = await asyncio.gather(*(house.bank.forget(id) for _ in range(5)), return_exceptions=True)

    assert [type(outcome) for outcome in outcomes if outcome is not None] == [MemoryNotFound] * 4


async def test_a_successor_and_its_predecessor_in_one_commit_are_told_apart(house: House) -> None:
    [old] = await house.retain("old fact")
    drafts = [Draft(content=f"new fact {number}", supersedes=old) for number in range(5)]
    outcomes = await asyncio.gather(*map(house.bank.retain, drafts), return_exceptions=True)
    [taken] = [outcome for outcome in outcomes if isinstance(outcome, dict)]

    assert taken["superseded"] == old
    assert len(await texts(house.bank, "fact")) == 1


async def test_retaining_forgetting_and_recalling_at_once_agree_in_the_end(house: House) -> None:
    kept: set[str] = set()

    async def come_and_go(number: int) -> None:
        for turn in range(10):
            text = f"fact {number} of turn {turn}"
            [id] = await house.retain(text)
            assert text in await texts(house.bank, text, 100)
            if (number + turn) % 2:
                await house.bank.forget(id)
            else:
                kept.add(text)

    with anyio.fail_after(BOUND):
        await asyncio.gather(*(come_and_go(number) for number in range(10)))
    found = await texts(house.bank, "fact", 100)
    await house.settled()

    assert sorted(found) == sorted(kept)
    assert len(house.shelf.held) == len(kept)
    assert house.store.roster.owners().astype(bool).sum() == len(kept)


async def test_what_comes_and_goes_during_a_recall_does_not_break_it(house: House) -> None:
    """The arrays of a bank grow at its 64th memory; recalls are under way then."""
    await house.retain(*(f"fact number {number}" for number in range(60)))

    async def look() -> None:
        for _ in range(30):
            assert await texts(house.bank, "fact number 7", 1) == ["fact number 7"]

    async def come_and_go(number: int) -> None:
        for turn in range(20):
            drafts = [Draft(content=f"passing {number} {turn} {each}", session_id="s") for each in range(5)]
            stored = await asyncio.gather(*map(house.bank.retain, drafts))
            await asyncio.gather(*(house.bank.forget(each["id"]) for each in stored))

    with anyio.fail_after(BOUND):
        await asyncio.gather(*(look() for _ in range(4)), *(come_and_go(number) for number in range(4)))

    assert len((await house.bank.page(Narrowing(), newest=True, beyond=None, most=100))[0]) == 60
