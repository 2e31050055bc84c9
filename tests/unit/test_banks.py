"""Banks that open and close under way: each is open once, and whoever leaves leaves nothing half done."""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import UTC
from pathlib import Path
from typing import cast

import anyio
import pytest

from hindsight.bank import Bank, Parts
from hindsight.banks import LEDGER, Banks
from hindsight.embedding.batching import BatchingEmbedder
from hindsight.ledger import Glance
from hindsight.record import BankId
from hindsight.store import Store
from hindsight.telemetry import Lag, Sights
from tests.serving import until

pytestmark = pytest.mark.anyio

BOUND = 10.0
PARTS = cast(Parts, None)  # what banks work with plays no part here


LAG = Lag(0, unembedded=3, unindexed=2, seconds=0.5, waits=False)


class _Queue:
    """An embedder with four texts and a query before it."""

    waiting = (4, 1)


@dataclass(eq=False)
class Door:
    """Opens stores that do nothing, and counts. Opening and closing wait for their events."""

    may_open: asyncio.Event = field(default_factory=asyncio.Event)
    may_close: asyncio.Event = field(default_factory=asyncio.Event)
    opening: asyncio.Event = field(default_factory=asyncio.Event)
    closing: asyncio.Event = field(default_factory=asyncio.Event)
    opened: list[BankId] = field(default_factory=list)
    open_now: list[BankId] = field(default_factory=list)
    most_of_one: int = 0
    failure: Exception | None = None

    async def open(self, bank_id: BankId, folder: Path) -> Store:
        self.opening.set()
        await self.may_open.wait()
        self.opened.append(bank_id)
        self.open_now.append(bank_id)
        self.most_of_one = max(self.most_of_one, self.open_now.count(bank_id))
        return cast(Store, _NoStore(self, bank_id))


@dataclass(frozen=True, slots=True)
class _NoStore:
    door: Door
    bank_id: BankId
    lag: Lag = LAG
    frozen: bool = False

    async def aclose(self) -> None:
        self.door.closing.set()
        await self.door.may_close.wait()
        self.door.open_now.remove(self.bank_id)
        if self.door.failure:
            raise self.door.failure


def no_look(path: Path) -> Glance:
    raise AssertionError("nobody looks here")


@pytest.fixture
def door() -> Door:
    made = Door()
    made.may_open.set()
    made.may_close.set()
    return made


@pytest.fixture
def ids(tmp_path: Path) -> list[BankId]:
    """Twenty banks that are there."""
    found = [BankId(f"bank-{number}") for number in range(20)]
    for bank_id in found:
        (tmp_path / bank_id.folder).mkdir()
        (tmp_path / bank_id.folder / LEDGER).touch()
    return found


@pytest.fixture
def banks(door: Door, tmp_path: Path, ids: list[BankId]) -> Banks:
    """Room for one bank."""
    return Banks(tmp_path, PARTS, door.open, 1, no_look)


async def leave(task: asyncio.Task[None]) -> None:
    """Cancel a caller and wait until it is gone."""
    task.cancel()
    with anyio.fail_after(BOUND):
        await asyncio.wait([task])
    assert task.cancelled()


async def use(banks: Banks, bank_id: BankId) -> None:
    async with banks.lease(bank_id):
        await asyncio.sleep(0)


async def test_twenty_banks_in_use_at_once_with_room_for_one_are_each_open_once(
    banks: Banks, door: Door, ids: list[BankId]
) -> None:
    with anyio.fail_after(BOUND):
        for _ in range(5):
            async with anyio.create_task_group() as tasks:
                for bank_id in [*ids, *ids]:
                    tasks.start_soon(use, banks, bank_id)
        await until(lambda: len(door.open_now) <= 1)  # the last ones are still being closed

    assert door.most_of_one == 1
    await banks.aclose()
    assert door.open_now == []


async def test_a_bank_opens_only_once_there_is_room_for_it(banks: Banks, door: Door, ids: list[BankId]) -> None:
    await use(banks, ids[0])
    door.may_close.clear()
    second = asyncio.create_task(use(banks, ids[1]))
    with anyio.fail_after(BOUND):
        await door.closing.wait()
        opened_meanwhile = list(door.opened)
        door.may_close.set()
        await second

    assert opened_meanwhile == [ids[0]]
    assert door.opened == [ids[0], ids[1]]
    await banks.aclose()


async def test_no_more_banks_are_closed_than_have_to_be(door: Door, tmp_path: Path, ids: list[BankId]) -> None:
    banks = Banks(tmp_path, PARTS, door.open, 2, no_look)
    door.may_close.clear()
    with anyio.fail_after(BOUND):
        async with banks.lease(ids[0]), AsyncExitStack() as later:
            async with banks.lease(ids[1]):
                await later.enter_async_context(banks.lease(ids[2]))
            await door.closing.wait()
        door.may_close.set()
        await until(lambda: len(door.open_now) <= 2)

    assert door.open_now == [ids[0], ids[2]]
    await banks.aclose()


async def test_never_more_are_open_than_there_are_descriptors_for(
    door: Door, tmp_path: Path, ids: list[BankId]
) -> None:
    banks = Banks(tmp_path, PARTS, door.open, 20, no_look, at_once=2)
    most = 0

    async def use_and_look(bank_id: BankId) -> None:
        nonlocal most
        async with banks.lease(bank_id):
            most = max(most, len(door.open_now))
            await asyncio.sleep(0)

    with anyio.fail_after(BOUND):
        async with anyio.create_task_group() as tasks:
            for bank_id in [*ids, *ids]:
                tasks.start_soon(use_and_look, bank_id)

    assert most == 2
    assert set(door.opened) == set(ids)
    await banks.aclose()
    assert door.open_now == []


async def test_a_caller_that_leaves_while_it_waits_for_a_place_takes_none(
    door: Door, tmp_path: Path, ids: list[BankId]
) -> None:
    banks = Banks(tmp_path, PARTS, door.open, 1, no_look, at_once=1)
    with anyio.fail_after(BOUND):
        async with banks.lease(ids[0]):
            waiting = asyncio.create_task(use(banks, ids[1]))
            await asyncio.sleep(0)
            await leave(waiting)
        await use(banks, ids[2])

    assert door.open_now[-1] == ids[2]
    await banks.aclose()
    assert door.open_now == []


async def test_a_caller_that_leaves_while_it_waits_for_a_place_holds_up_no_end(
    door: Door, tmp_path: Path, ids: list[BankId]
) -> None:
    banks = Banks(tmp_path, PARTS, door.open, 2, no_look, at_once=2)
    with anyio.fail_after(BOUND):
        async with banks.lease(ids[0]), banks.lease(ids[1]):
            waiting = asyncio.create_task(use(banks, ids[2]))
            await asyncio.sleep(0)
            await leave(waiting)
        await banks.aclose()

    assert door.opened == ids[:2]
    assert door.open_now == []


async def test_a_call_on_an_open_bank_does_not_wait_for_the_room_that_another_one_needs(
    door: Door, tmp_path: Path, ids: list[BankId]
) -> None:
    banks = Banks(tmp_path, PARTS, door.open, 2, no_look)
    await use(banks, ids[0])
    await use(banks, ids[1])
    door.may_close.clear()
    third = asyncio.create_task(use(banks, ids[2]))
    with anyio.fail_after(BOUND):
        await door.closing.wait()
        await use(banks, ids[1])
        door.may_close.set()
        await third

    assert door.opened == ids[:3]
    await banks.aclose()


async def test_callers_of_one_bank_share_it(banks: Banks, ids: list[BankId]) -> None:
    found: list[Bank] = []

    async def look() -> None:
        async with banks.lease(ids[0]) as bank:
            found.append(bank)
            await asyncio.sleep(0)

    async with anyio.create_task_group() as tasks:
        for _ in range(5):
            tasks.start_soon(look)

    assert len(found) == 5
    assert len(set(map(id, found))) == 1


async def test_a_caller_that_leaves_while_a_bank_opens_does_not_open_it_twice(
    banks: Banks, door: Door, ids: list[BankId]
) -> None:
    door.may_open.clear()
    first = asyncio.create_task(use(banks, ids[0]))
    with anyio.fail_after(BOUND):
        await door.opening.wait()
        await leave(first)
        second = asyncio.create_task(use(banks, ids[0]))
        await asyncio.sleep(0)
        door.may_open.set()
        await second

    assert door.opened == [ids[0]]
    await banks.aclose()
    assert door.open_now == []


async def test_a_bank_that_opens_when_nobody_wants_it_any_more_is_closed_in_the_end(
    banks: Banks, door: Door, ids: list[BankId]
) -> None:
    door.may_open.clear()
    only = asyncio.create_task(use(banks, ids[0]))
    with anyio.fail_after(BOUND):
        await door.opening.wait()
        await leave(only)
        door.may_open.set()
        await banks.aclose()

    assert door.opened == [ids[0]]
    assert door.open_now == []


async def test_a_caller_that_leaves_while_another_bank_closes_leaves_none_half_closed(
    banks: Banks, door: Door, ids: list[BankId]
) -> None:
    await use(banks, ids[0])
    door.may_close.clear()
    second = asyncio.create_task(use(banks, ids[1]))
    with anyio.fail_after(BOUND):
        await door.closing.wait()
        await leave(second)
        again = asyncio.create_task(use(banks, ids[0]))
        await asyncio.sleep(0)
        door.may_close.set()
        await again

    assert door.most_of_one == 1
    assert door.opened.count(ids[0]) == 2
    await banks.aclose()
    assert door.open_now == []


async def test_a_bank_that_does_not_close_cleanly_is_not_the_fault_of_the_call_that_needs_the_room(
    banks: Banks, door: Door, ids: list[BankId], caplog: pytest.LogCaptureFixture
) -> None:
    await use(banks, ids[0])
    door.failure = OSError("the disk is gone")
    with caplog.at_level(logging.ERROR):
        await use(banks, ids[1])

    assert "bank-0 did not close cleanly" in caplog.text


async def test_a_bank_that_can_not_be_opened_can_be_tried_again(banks: Banks, door: Door, tmp_path: Path) -> None:
    calls = []

    async def broken(bank_id: BankId, folder: Path) -> Store:
        calls.append(bank_id)
        if len(calls) == 1:
            raise OSError("not now")
        return await door.open(bank_id, folder)

    tried = Banks(tmp_path, PARTS, broken, 1, no_look)
    with pytest.raises(OSError, match="not now"):
        await use(tried, BankId("bank-0"))
    await use(tried, BankId("bank-0"))

    assert len(calls) == 2
    await tried.aclose()


async def test_unknown_banks_are_looked_at_without_opening_anything(banks: Banks, door: Door, tmp_path: Path) -> None:
    before = entries(tmp_path)
    for number in range(10):
        await use(banks, BankId(f"typo-{number}"))

    assert door.opened == []
    assert entries(tmp_path) == before


async def test_only_open_banks_are_asked_what_they_have_still_to_do(
    door: Door, tmp_path: Path, ids: list[BankId]
) -> None:
    parts = Parts(cast(BatchingEmbedder, _Queue()), UTC)
    banks = Banks(tmp_path, parts, door.open, 2, no_look)
    before = banks.sights()
    for bank_id in ids[:3]:
        await use(banks, bank_id)

    assert before == Sights((), texts=4, queries=1)
    assert banks.sights() == Sights((LAG, LAG), texts=4, queries=1)
    assert door.opened == ids[:3]
    await banks.aclose()


def test_banks_are_writable_where_their_folder_is_or_can_be_made(tmp_path: Path, door: Door) -> None:
    folder = tmp_path / "data" / "banks"
    banks = Banks(folder, PARTS, door.open, 1, no_look)

    without_any = banks.writable
    folder.parent.mkdir()
    to_be_made = banks.writable
    folder.mkdir()
    made = banks.writable

    assert (without_any, to_be_made, made) == (False, True, True)


def entries(folder: Path) -> list[Path]:
    return sorted(folder.iterdir())
