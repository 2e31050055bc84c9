"""All banks of a data folder: each is opened once, kept while it is used, and closed when others need its place."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from hindsight.bank import Bank, Parts
from hindsight.record import BankId
from hindsight.store import Store

LEDGER = "ledger.db"
OpenStore = Callable[[BankId, Path], Awaitable[Store]]


@dataclass(slots=True)
class _Seat:
    """A bank in its place: how many calls use it, and the bank once it is open."""

    users: int = 0
    opening: asyncio.Lock = field(default_factory=asyncio.Lock)
    bank: Bank | None = None


class Banks:
    """At most `most` banks stay open when no call needs more; the least recently used is closed first."""

    def __init__(self, folder: Path, parts: Parts, open_store: OpenStore, most: int) -> None:
        self._folder = folder
        self._parts = parts
        self._open_store = open_store
        self._most = most
        self._seats: dict[BankId, _Seat] = {}

    @asynccontextmanager
    async def lease(self, bank_id: BankId) -> AsyncIterator[Bank]:
        """The bank, open for as long as the context lasts."""
        seat = self._seats.pop(bank_id, None) or _Seat()
        self._seats[bank_id] = seat
        seat.users += 1
        try:
            async with seat.opening:
                bank = seat.bank = seat.bank or await self._open(bank_id)
            yield bank
        finally:
            seat.users -= 1
            await self._make_room()

    async def aclose(self) -> None:
        """Close all banks; what was under way is finished first."""
        await asyncio.gather(*(self._close(bank_id) for bank_id in list(self._seats)))

    async def _open(self, bank_id: BankId) -> Bank:
        folder = self._folder / bank_id.folder
        create = partial(self._open_store, bank_id, folder)
        return Bank(self._parts, await create() if (folder / LEDGER).exists() else None, create)

    async def _make_room(self) -> None:
        idle = [bank_id for bank_id, seat in self._seats.items() if seat.users == 0]
        for bank_id in idle[: max(0, len(self._seats) - self._most)]:
            await self._close(bank_id)

    async def _close(self, bank_id: BankId) -> None:
        seat = self._seats[bank_id]
        async with seat.opening:
            if seat.users == 0 and seat.bank is not None:
                bank, seat.bank = seat.bank, None
                await bank.aclose()
        if seat.users == 0 and self._seats.get(bank_id) is seat:
            del self._seats[bank_id]
