"""All banks of a data folder: each is opened once, kept while it is used, and closed when others need its place."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from hindsight.bank import Bank, Parts
from hindsight.errors import HindsightError, TooBusy
from hindsight.ledger import Glance
from hindsight.record import BankId
from hindsight.store import Store

logger = logging.getLogger(__name__)

LEDGER = "ledger.db"
StepT = TypeVar("StepT")
OpenStore = Callable[[BankId, Path], Awaitable[Store]]
Look = Callable[[Path], Glance]
_GONE = "gone-"  # starts the name of a folder that is being removed; no bank's does
_PATIENCE = 5.0  # seconds that a deletion waits for the calls under way


@dataclass(slots=True)
class _Seat:
    """A bank in its place: how many calls use it, how many of these have it in their hands, and it once it is open."""

    users: int = 0
    opening: asyncio.Lock = field(default_factory=asyncio.Lock)
    bank: Bank | None = None
    calls: int = 0
    quiet: asyncio.Event = field(default_factory=asyncio.Event)

    def take(self) -> None:
        """A call has the bank in its hands."""
        self.calls += 1
        self.quiet.clear()

    def give_back(self) -> None:
        """A call is done with the bank."""
        self.calls -= 1
        if not self.calls:
            self.quiet.set()


class Banks:
    """At most `most` banks stay open when no call needs more; the least recently used is closed first.

    `look` reads a ledger beside whoever writes it; blocking.
    """

    def __init__(self, folder: Path, parts: Parts, open_store: OpenStore, most: int, look: Look) -> None:
        self._folder = folder
        self._parts = parts
        self._open_store = open_store
        self._most = most
        self._look = look
        self._seats: dict[BankId, _Seat] = {}
        self._steps: set[asyncio.Task[Any]] = set()  # banks being opened, closed and deleted
        for left in folder.glob(f"{_GONE}*"):
            shutil.rmtree(left, ignore_errors=True)

    @asynccontextmanager
    async def lease(self, bank_id: BankId) -> AsyncIterator[Bank]:
        """The bank, open for as long as the context lasts."""
        async with self._seated(bank_id) as seat:
            bank = await self._taken(seat, bank_id)
            try:
                yield bank
            finally:
                seat.give_back()

    async def glances(self) -> list[Glance]:
        """The banks there are, by id."""
        return await asyncio.to_thread(self._glances)

    async def delete(self, bank_id: BankId) -> bool:
        """Remove a bank for good; False when there is none. Raises TooBusy while calls on it do not end.

        Whoever comes meanwhile waits, and finds an empty bank.
        """
        return await self._to_its_end(self._delete(bank_id))

    async def _delete(self, bank_id: BankId) -> bool:
        async with self._seated(bank_id) as seat, seat.opening:
            if seat.calls:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(seat.quiet.wait(), _PATIENCE)
            if seat.calls:
                raise TooBusy("calls on this bank are in flight", retry_after=5)
            if seat.bank is not None:
                bank, seat.bank = seat.bank, None
                await bank.aclose()
            return await asyncio.to_thread(self._remove, self._folder / bank_id.folder)

    async def aclose(self) -> None:
        """Close all banks; what was under way is finished first."""
        while self._steps:
            await asyncio.wait(self._steps)
        await asyncio.gather(*(self._close(bank_id, seat) for bank_id, seat in list(self._seats.items())))

    @asynccontextmanager
    async def _seated(self, bank_id: BankId) -> AsyncIterator[_Seat]:
        seat = self._seats.pop(bank_id, None) or _Seat()
        self._seats[bank_id] = seat
        seat.users += 1
        try:
            yield seat
        finally:
            seat.users -= 1
            await self._make_room()

    def _glances(self) -> list[Glance]:
        found = []
        for path in self._folder.glob(f"[!{_GONE[0]}]*/{LEDGER}"):
            with contextlib.suppress(HindsightError):  # one that is damaged or on its way out does not hide the others
                found.append(self._look(path))
        return sorted(found, key=lambda glance: glance.bank_id)

    def _remove(self, folder: Path) -> bool:
        if not (folder / LEDGER).exists():
            return False
        # Away in one step: killed in between, the bank is gone and the rest is removed at the next start.
        gone = folder.rename(folder.with_name(_GONE + uuid.uuid4().hex))
        shutil.rmtree(gone, ignore_errors=True)
        return True

    async def _taken(self, seat: _Seat, bank_id: BankId) -> Bank:
        while True:
            async with seat.opening:
                if seat.bank is not None:
                    seat.take()
                    return seat.bank
            await self._to_its_end(self._open(bank_id, seat))

    async def _open(self, bank_id: BankId, seat: _Seat) -> None:
        folder = self._folder / bank_id.folder
        create = partial(self._open_store, bank_id, folder)
        async with seat.opening:
            if seat.bank is None:
                seat.bank = Bank(self._parts, await create() if (folder / LEDGER).exists() else None, create)

    async def _make_room(self) -> None:
        idle = [(bank_id, seat) for bank_id, seat in self._seats.items() if seat.users == 0]
        for bank_id, seat in idle[: max(0, len(self._seats) - self._most)]:
            await self._to_its_end(self._close(bank_id, seat))

    async def _to_its_end(self, step: Coroutine[Any, Any, StepT]) -> StepT:
        """Wait for `step`, which goes on to its end when the waiting is cancelled: no bank is left half open."""
        task = asyncio.create_task(step)
        self._steps.add(task)
        task.add_done_callback(self._steps.discard)
        return await asyncio.shield(task)

    async def _close(self, bank_id: BankId, seat: _Seat) -> None:
        async with seat.opening:
            if seat.users == 0 and seat.bank is not None:
                bank, seat.bank = seat.bank, None
                # Not the fault of the call that needs the room.
                [failure] = await asyncio.gather(bank.aclose(), return_exceptions=True)
                if failure is not None:
                    logger.error("bank %s did not close cleanly", bank_id.text, exc_info=failure)
        if seat.users == 0 and self._seats.get(bank_id) is seat:
            del self._seats[bank_id]
