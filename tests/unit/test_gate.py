"""The way to an index: who waits for it, and for how long."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

import anyio
import numpy as np
import pytest

from hindsight.embedding import Vectors
from hindsight.errors import IndexUnavailable
from hindsight.gate import PATIENCE, Gate
from hindsight.index import Keys, Nearest, VectorIndex
from tests.serving import BOUND, until

pytestmark = pytest.mark.anyio

VECTOR = np.zeros(4, np.float32)


@dataclass(eq=False)
class Slot:
    """An index that finds one key; it is `broken` until it is opened anew."""

    rebuilt: bool = False
    stale: bool = False
    broken: bool = False
    closed: bool = False

    async def upsert(self, keys: Keys, vectors: Vectors) -> None: ...

    async def delete(self, keys: Keys) -> None: ...

    async def nearest(self, vector: Vectors, count: int) -> Nearest:
        if self.broken:
            self.stale = True
            raise IndexUnavailable("it is broken")
        return Nearest(np.array([7], np.int64), np.ones(1, np.float32))

    async def keys(self) -> Keys:
        return np.empty(0, np.int64)

    async def count(self) -> int:
        return 0

    async def aclose(self) -> None:
        self.closed = True


@dataclass(eq=False)
class Way:
    """A gate and what is behind it: `down`, or open as soon as it `may_open`."""

    may_open: asyncio.Event = field(default_factory=asyncio.Event)
    down: bool = False
    opened: list[Slot] = field(default_factory=list)
    compared: list[VectorIndex] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.gate = Gate("team", self._open, self._compare)

    async def _open(self) -> VectorIndex:
        await self.may_open.wait()
        if self.down:
            raise IndexUnavailable("it is down")
        self.opened.append(Slot())
        return self.opened[-1]

    async def _compare(self, index: VectorIndex) -> None:
        self.compared.append(index)

    async def finds(self) -> list[int]:
        with anyio.fail_after(BOUND):
            found = await self.gate.nearest(VECTOR, 1)
        return [int(key) for key in found.keys]


async def test_all_who_want_the_index_open_it_once(caplog: pytest.LogCaptureFixture) -> None:
    way = Way()
    way.may_open.set()

    found = await asyncio.gather(*(way.finds() for _ in range(9)))

    assert found == [[7]] * 9
    assert way.compared == way.opened == [await way.gate.index()]
    assert caplog.messages == []


async def test_those_who_come_while_it_opens_wait_no_longer_than_the_first() -> None:
    way = Way()
    first = asyncio.create_task(way.finds())
    await asyncio.sleep(PATIENCE / 2)
    second = asyncio.create_task(way.finds())
    await asyncio.wait([first, second])
    start = time.monotonic()
    with pytest.raises(TimeoutError):
        await way.finds()
    third = time.monotonic() - start
    way.may_open.set()
    await way.gate.index()

    assert [type(task.exception()) for task in (first, second)] == [TimeoutError] * 2
    assert third < PATIENCE
    assert await way.finds() == [7]


async def test_once_it_failed_nobody_waits_until_it_works(caplog: pytest.LogCaptureFixture) -> None:
    way = Way(down=True)
    way.may_open.set()
    with pytest.raises(IndexUnavailable):
        await way.gate.index()
    way.may_open.clear()
    start = time.monotonic()
    for _ in range(20):
        with pytest.raises(IndexUnavailable):
            await way.finds()
    passed = time.monotonic() - start
    way.down = False
    way.may_open.set()
    await until(lambda: way.gate.open is not None)

    assert passed < PATIENCE
    assert await way.finds() == [7]
    assert [message for message in caplog.messages if "in the ledger" in message] != []
    assert len(caplog.records) == 1


async def test_a_stale_index_is_closed_and_another_one_opened() -> None:
    way = Way()
    way.may_open.set()
    await way.finds()
    way.opened[0].broken = True
    with pytest.raises(IndexUnavailable):
        await way.finds()
    await way.gate.index()

    assert await way.finds() == [7]
    assert [slot.closed for slot in way.opened] == [True, False]
    assert way.compared == way.opened


async def test_an_index_that_is_let_go_is_opened_again_by_the_next_who_wants_it() -> None:
    way = Way()
    way.may_open.set()
    await way.finds()
    async with way.gate.lock:
        await way.gate.let_go()

    assert await way.finds() == [7]
    assert [slot.closed for slot in way.opened] == [True, False]
