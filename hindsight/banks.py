"""All banks of a data folder: each is opened once, kept while it is used, and closed when others need its place."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from hindsight.bank import Bank, Parts
from hindsight.errors import HindsightError, StorageGone, TooBusy
from hindsight.gone import Gone, is_gone
from hindsight.ledger import Glance
from hindsight.record import BankId
from hindsight.store import Store
from hindsight.telemetry import Sights

logger = logging.getLogger(__name__)

LEDGER = "ledger.db"
StepT = TypeVar("StepT")
OpenStore = Callable[[BankId, Path], Awaitable[Store]]
Look = Callable[[Path], Glance]
_PATIENCE = 5.0  # seconds that a deletion waits for the calls under way


@dataclass(slots=True)
class _Seat:
    """A bank in its place: how many calls use it, how many of these have it in their hands, and it once it is open.

    `waiting` is the way to a place among those that are open at once, which ends when all have left who wanted it.
    """

    users: int = 0
    opening: asyncio.Lock = field(default_factory=asyncio.Lock)
    bank: Bank | None = None
    calls: int = 0
    quiet: asyncio.Event = field(default_factory=asyncio.Event)
    waiting: asyncio.Task[Any] | None = None
    closing: asyncio.Task[None] | None = None

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
    """At most `most` banks stay open when no call needs more; the least recently used is closed first. `at_once` are
    never exceeded: whoever needs one more waits until a bank is not needed any longer.

    `look` reads a ledger beside whoever writes it; blocking. `gone` takes the deleted ones. `folder` lies in the data
    folder: none is opened in another one that has come into its place, which nobody holds.
    """

    def __init__(
        self,
        folder: Path,
        parts: Parts,
        open_store: OpenStore,
        most: int,
        look: Look,
        gone: Gone | None = None,
        at_once: int = sys.maxsize,
    ) -> None:
        self._folder = folder
        self._parts = parts
        self._open_store = open_store
        self._most = min(most, at_once)
        self._look = look
        self._gone = gone or Gone(folder)
        self._place = _identity(folder.parent)
        self._seats: dict[BankId, _Seat] = {}
        self._places = asyncio.Semaphore(at_once)  # one for each bank that is open
        self._steps: set[asyncio.Task[Any]] = set()  # banks being opened, closed and deleted

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
        """The banks there are, by id; damaged ones last, so that whoever works through them does what can be done.

        Raises StorageGone.
        """
        return await asyncio.to_thread(self._glances)

    def sights(self) -> Sights:
        """What the open banks have still to do. Opens none, and asks no disk."""
        lags = tuple(seat.bank.lag for seat in self._seats.values() if seat.bank is not None)
        return Sights(lags, *self._parts.embedder.waiting)

    @property
    def writable(self) -> bool:
        """Whether ledgers can be opened and written where they are kept."""
        place = self._folder if self._folder.exists() else self._folder.parent
        return os.access(place, os.W_OK | os.X_OK)

    async def delete(self, bank_id: BankId) -> bool:
        """Remove a bank for good; False when there is none. Raises TooBusy while calls on it do not end, StorageGone.

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
                await self._shut(seat, seat.bank)
            self._check_place()
            folder = self._folder / bank_id.folder
            if not (folder / LEDGER).exists():
                return False
            await self._gone.take(folder)
            return True

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
            # First: banks open faster than they close.
            if seat.bank is None and (closing := self._making_room()):
                await asyncio.wait(closing)
            yield seat
        finally:
            seat.users -= 1
            if not seat.users and seat.waiting:
                seat.waiting.cancel()
            if not seat.users and not seat.closing and seat.bank is not None and seat.bank.frozen:
                self._begin_to_close(bank_id, seat)  # for the next call to find out whether it still is
            self._making_room()

    def _glances(self) -> list[Glance]:
        self._check_place()
        found = []
        for path in self._folder.glob(f"*/{LEDGER}"):
            if is_gone(path.parent):
                continue
            try:
                seen = self._look(path)
            except HindsightError:  # one that is damaged or on its way out does not hide the others
                seen = None
            if seen is not None and seen.begun:
                found.append(seen)
            elif seen is None or _holds_more_than(path):
                known = BankId.of_folder(path.parent.name)
                if known and path.exists():
                    found.append(Glance(known.text, 0, 0, damaged=True))
        return sorted(found, key=lambda glance: (glance.damaged, glance.bank_id))

    async def _taken(self, seat: _Seat, bank_id: BankId) -> Bank:
        while True:
            async with seat.opening:
                if seat.bank is not None:
                    seat.take()
                    return seat.bank
            await self._to_its_end(self._open(bank_id, seat))

    async def _open(self, bank_id: BankId, seat: _Seat) -> None:
        folder = self._folder / bank_id.folder
        create = partial(self._open_in_place, bank_id, folder)
        async with seat.opening:
            if seat.bank is not None:
                return
            seat.waiting = asyncio.create_task(self._places.acquire())
            await asyncio.wait([seat.waiting])
            if seat.waiting.cancelled():
                return
            try:
                self._check_place()
                seat.bank = Bank(self._parts, await create() if (folder / LEDGER).exists() else None, create)
            finally:
                seat.waiting = None
                if seat.bank is None:
                    self._places.release()

    async def _open_in_place(self, bank_id: BankId, folder: Path) -> Store:
        self._check_place()
        return await self._open_store(bank_id, folder)

    def _check_place(self) -> None:
        if _identity(self._folder.parent) != self._place:
            raise StorageGone("the data folder was removed or replaced while the server ran")

    def _making_room(self) -> list[asyncio.Task[None]]:
        """The tasks that close the least recently used banks, as many as there are too many."""
        excess = len(self._seats) - self._most
        if excess <= 0:
            return []
        idle = [(bank_id, seat) for bank_id, seat in self._seats.items() if seat.users == 0]
        idle.sort(key=lambda each: each[1].closing is None)  # those that close already make room too
        return [seat.closing or self._begin_to_close(bank_id, seat) for bank_id, seat in idle[:excess]]

    def _begin_to_close(self, bank_id: BankId, seat: _Seat) -> asyncio.Task[None]:
        seat.closing = self._begin(self._close(bank_id, seat))
        return seat.closing

    async def _to_its_end(self, step: Coroutine[Any, Any, StepT]) -> StepT:
        """Wait for `step`, which goes on to its end when the waiting is cancelled: no bank is left half open."""
        return await asyncio.shield(self._begin(step))

    def _begin(self, step: Coroutine[Any, Any, StepT]) -> asyncio.Task[StepT]:
        task = asyncio.create_task(step)
        self._steps.add(task)
        task.add_done_callback(self._steps.discard)
        return task

    async def _close(self, bank_id: BankId, seat: _Seat) -> None:
        async with seat.opening:
            if seat.users == 0 and seat.bank is not None:
                # Not the fault of the call that needs the room.
                [failure] = await asyncio.gather(self._shut(seat, seat.bank), return_exceptions=True)
                if failure is not None:
                    logger.error("bank %s did not close cleanly", bank_id.text, exc_info=failure)
        seat.closing = None
        if seat.users == 0 and self._seats.get(bank_id) is seat:
            del self._seats[bank_id]

    async def _shut(self, seat: _Seat, bank: Bank) -> None:
        seat.bank = None
        try:
            await bank.aclose()
        finally:
            self._places.release()


def _identity(folder: Path) -> tuple[int, int] | None:
    """What tells a folder from another one of its name; None when there is none."""
    with contextlib.suppress(OSError):
        status = folder.stat()
        return status.st_dev, status.st_ino
    return None


def _holds_more_than(ledger: Path) -> bool:
    """Whether there is more in a bank's folder than its ledger."""
    return any(not path.name.startswith(ledger.name) for path in ledger.parent.glob("*"))
