"""Joins calls that arrive together into one run: one embedding, one commit for many.

A lone call runs at once. What arrives while as many runs are under way as may be waits for the end of one and then runs
together, so the busier the server is, the more each run does.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")


class Joiner(Generic[ItemT, ResultT]):
    """Runs `work` on what has arrived, at most `most` items at a time, `at_once` runs beside each other at most.

    `work` answers with one result or exception per item, in order; an exception that it raises reaches every item's
    caller. A caller that goes away does not undo the work that others share.
    """

    def __init__(
        self,
        work: Callable[[Sequence[ItemT]], Awaitable[Sequence[ResultT | Exception]]],
        most: int,
        at_once: int = 1,
    ) -> None:
        self._work = work
        self._most = most
        self._at_once = at_once
        self._waiting: deque[tuple[ItemT, asyncio.Future[ResultT]]] = deque()
        self._runners: set[asyncio.Task[None]] = set()

    @property
    def waiting(self) -> int:
        """How many items wait for a run to begin."""
        return len(self._waiting)

    async def __call__(self, item: ItemT) -> ResultT:
        """The result of `item`."""
        future: asyncio.Future[ResultT] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, future))
        if len(self._runners) < self._at_once:
            self._runners.add(asyncio.create_task(self._run()))
        return await future

    async def settle(self) -> None:
        """Return when nothing is waiting or under way."""
        while self._runners:
            await asyncio.wait(self._runners)

    async def _run(self) -> None:
        try:
            while self._waiting:
                batch = [self._waiting.popleft() for _ in range(min(self._most, len(self._waiting)))]
                outcomes = await asyncio.gather(self._work([item for item, _ in batch]), return_exceptions=True)
                self._tell(batch, outcomes[0])
        finally:
            # Here, not when the task is seen to be done: what comes in between would wait for nobody.
            self._runners -= {asyncio.current_task()}

    @staticmethod
    def _tell(
        batch: list[tuple[ItemT, asyncio.Future[ResultT]]], outcome: Sequence[ResultT | Exception] | BaseException
    ) -> None:
        if not isinstance(outcome, BaseException) and len(outcome) != len(batch):
            outcome = RuntimeError(f"{len(outcome)} results came for {len(batch)} items")
        results = [outcome] * len(batch) if isinstance(outcome, BaseException) else outcome
        for (_, future), result in zip(batch, results, strict=True):
            if future.done():
                continue
            if isinstance(result, BaseException):
                future.set_exception(result)
            else:
                future.set_result(result)
