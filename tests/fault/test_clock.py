"""A clock that jumps, a day back and a day ahead: order, pages and links go by what came first, waits by no clock."""

from __future__ import annotations

import ast
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from hindsight.bank import Bank, Narrowing, Parts, Query
from hindsight.drafts import Draft
from hindsight.embedding.batching import BatchingEmbedder
from hindsight.index import VectorIndex
from hindsight.index.chroma import open_chroma
from hindsight.ledger import EmbedderMark
from hindsight.ledger.sqlite import open_sqlite
from hindsight.quota import Quota
from hindsight.record import BankId
from hindsight.store import Store, open_store
from tests.mirrored import Mirrored, mirror

pytestmark = pytest.mark.anyio

ID = BankId("team")
NOON = datetime(2026, 5, 13, 12, tzinfo=UTC)
DAY = timedelta(days=1)
JUMPS = (timedelta(0), -DAY, DAY, -2 * DAY, timedelta(0))
TEXTS = [f"The {animal} is in the garden." for animal in ("heron", "otter", "badger", "falcon", "weasel")]
ROOT = Path(__file__).parents[2] / "hindsight"
# Who may ask what time it is: what is retained, when a key ends, when a call was, and nobody who waits.
ASK_THE_TIME = {"bank.py", "keys.py", "telemetry.py", "wiring.py"}
WALL_CLOCKS = {"now", "utcnow", "today", "time", "time_ns", "localtime", "gmtime"}


@dataclass
class Clock:
    """A clock that shows what it is set to."""

    shows: datetime = NOON

    def __call__(self) -> datetime:
        return self.shows


@asynccontextmanager
async def opened(folder: Path, clock: Clock) -> AsyncIterator[Bank]:
    embedder = BatchingEmbedder(Mirrored("mirrored"))

    async def create() -> Store:
        async def open_index(mark: EmbedderMark) -> VectorIndex:
            return await open_chroma(folder / "index", ID, mark.dimension, mark.name)

        ledger = open_sqlite(folder / "ledger.db", ID.text)
        return await open_store(ID.text, ledger, embedder, open_index, Quota(0, 0))

    bank = Bank(Parts(embedder, UTC, clock), await create(), create)
    try:
        yield bank
    finally:
        await bank.aclose()


async def retain_all(bank: Bank, clock: Clock) -> None:
    for text, jump in zip(TEXTS, JUMPS, strict=True):
        clock.shows = NOON + jump
        await bank.retain(Draft(content=text))


async def pages(bank: Bank, clock: Clock, *, newest: bool) -> list[str]:
    """The texts of all pages of two, between which the clock jumps."""
    texts: list[str] = []
    beyond: int | None = None
    for jump in JUMPS:
        clock.shows = NOON + jump
        page, beyond = await bank.page(Narrowing(), newest=newest, beyond=beyond, most=2)
        texts += [memory.text for memory in page]
        if beyond is None:
            break
    return texts


async def test_memories_keep_the_order_they_came_in_and_the_time_the_clock_showed(tmp_path: Path) -> None:
    clock = Clock()
    async with opened(tmp_path, clock) as bank:
        await retain_all(bank, clock)
        before = [await pages(bank, clock, newest=newest) for newest in (False, True)]
    async with opened(tmp_path, clock) as bank:
        after = [await pages(bank, clock, newest=newest) for newest in (False, True)]
        exported = list(bank.export())

    assert before == after == [TEXTS, TEXTS[::-1]]
    assert [memory["text"] for memory in exported] == TEXTS
    assert [memory["retained_at"] for memory in exported] == [
        (NOON + jump).isoformat(timespec="microseconds").replace("+00:00", "Z") for jump in JUMPS
    ]


async def test_whatever_the_clock_shows_all_is_found_known_and_replaced(tmp_path: Path) -> None:
    clock = Clock()
    async with opened(tmp_path, clock) as bank:
        await retain_all(bank, clock)
        clock.shows = NOON - 10 * DAY
        again = [(await bank.retain(Draft(content=text)))["status"] for text in TEXTS]
        by_words = [(await bank.recall(Query(text=text)))["results"][0] for text in TEXTS]
        by_meaning = [(await bank.recall(Query(text=mirror(text))))["results"][0] for text in TEXTS]
        old = by_words[1]["id"]
        new = await bank.retain(Draft(content="The otter is in the barn.", supersedes=old))
        links = (await bank.get(old)).superseded_by, (await bank.get(new["id"])).supersedes
        since = (await bank.page(Narrowing(since="2026-05-14"), newest=False, beyond=None, most=10))[0]

    assert again == ["known"] * len(TEXTS)
    assert [result["text"] for result in by_words] == TEXTS
    assert [result["text"] for result in by_meaning] == TEXTS
    assert links == (new["id"], old)
    assert [memory.text for memory in since] == [TEXTS[2]]


def test_nobody_who_waits_goes_by_the_clock_on_the_wall() -> None:
    asking = {str(path.relative_to(ROOT)) for path in ROOT.rglob("*.py") if _asks_the_time(ast.parse(path.read_text()))}

    assert asking == ASK_THE_TIME


def _asks_the_time(tree: ast.AST) -> bool:
    called = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return any(
        isinstance(function, ast.Attribute)
        and isinstance(function.value, ast.Name)
        and function.value.id in ("time", "datetime", "date")
        and function.attr in WALL_CLOCKS
        for function in called
    )
