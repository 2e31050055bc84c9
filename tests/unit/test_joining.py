"""Joiner: what arrives together runs together."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import anyio
import pytest

from hindsight.joining import Joiner

pytestmark = pytest.mark.anyio

BOUND = 5


class Work:
    """Doubles numbers; notes each run and holds it until it may end.

    A negative number fails alone, 99 the whole run.
    """

    def __init__(self) -> None:
        self.runs: list[list[int]] = []
        self.started = asyncio.Event()
        self.may_end = asyncio.Event()

    async def __call__(self, items: Sequence[int]) -> list[int | Exception]:
        self.runs.append(list(items))
        self.started.set()
        await self.may_end.wait()
        if 99 in items:
            raise LookupError("99")
        return [ValueError(item) if item < 0 else 2 * item for item in items]


async def test_a_lone_call_runs_at_once_and_what_comes_meanwhile_runs_together() -> None:
    work = Work()
    joined = Joiner[int, int](work, most=10)
    with anyio.fail_after(BOUND):
        first = asyncio.create_task(joined(1))
        await work.started.wait()
        others = [asyncio.create_task(joined(number)) for number in (2, 3, 4)]
        await asyncio.sleep(0)
        waiting = joined.waiting
        work.may_end.set()
        results = await asyncio.gather(first, *others)

    assert results == [2, 4, 6, 8]
    assert work.runs == [[1], [2, 3, 4]]
    assert (waiting, joined.waiting) == (3, 0)


async def test_a_run_has_at_most_so_many() -> None:
    work = Work()
    work.may_end.set()
    joined = Joiner[int, int](work, most=2)
    with anyio.fail_after(BOUND):
        results = await asyncio.gather(*(joined(number) for number in range(5)))

    assert results == [0, 2, 4, 6, 8]
    assert work.runs == [[0, 1], [2, 3], [4]]


async def test_as_many_runs_are_under_way_as_may_be() -> None:
    work = Work()
    joined = Joiner[int, int](work, most=2, at_once=2)
    with anyio.fail_after(BOUND):
        calls = [asyncio.create_task(joined(number)) for number in range(5)]
        await work.started.wait()
        await asyncio.sleep(0)
        under_way = list(work.runs)
        work.may_end.set()
        results = await asyncio.gather(*calls)
        await joined.settle()

    assert under_way == [[0, 1], [2, 3]]
    assert results == [0, 2, 4, 6, 8]
    assert work.runs == [[0, 1], [2, 3], [4]]


async def test_an_item_that_fails_fails_for_its_caller_alone() -> None:
    work = Work()
    work.may_end.set()
    joined = Joiner[int, int](work, most=10)
    with anyio.fail_after(BOUND):
        good, bad = await asyncio.gather(joined(1), joined(-1), return_exceptions=True)

    assert good == 2
    assert isinstance(bad, ValueError)


async def test_a_run_that_fails_fails_for_all_in_it_and_the_next_one_works() -> None:
    work = Work()
    work.may_end.set()
    joined = Joiner[int, int](work, most=2)
    with anyio.fail_after(BOUND):
        results = await asyncio.gather(joined(99), joined(1), joined(2), return_exceptions=True)

    assert [type(result) for result in results] == [LookupError, LookupError, int]


async def test_a_run_that_answers_for_too_few_fails_instead_of_leaving_anybody_waiting() -> None:
    async def too_few(items: Sequence[int]) -> list[int | Exception]:
        return [0]

    joined = Joiner[int, int](too_few, most=10)
    with anyio.fail_after(BOUND):
        results = await asyncio.gather(joined(1), joined(2), return_exceptions=True)

    assert [type(result) for result in results] == [RuntimeError, RuntimeError]


async def test_a_caller_that_leaves_does_not_undo_what_the_others_wait_for() -> None:
    work = Work()
    joined = Joiner[int, int](work, most=10)
    with anyio.fail_after(BOUND):
        leaving, staying = asyncio.create_task(joined(1)), asyncio.create_task(joined(2))
        await work.started.wait()
        leaving.cancel()
        work.may_end.set()
        result = await staying
        await joined.settle()

    assert result == 4
    assert leaving.cancelled()
