"""Where deleted banks go: away in one step, emptied, and kept as a name until nothing is left of them elsewhere.

The name of such a folder is all that is needed: it says what the bank is called outside.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Protocol

from hindsight.errors import Unavailable

_PREFIX = "gone-"  # no bank's folder starts so
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0

logger = logging.getLogger(__name__)


class Outside(Protocol):
    """What banks have outside their folders."""

    def name(self, folder: Path) -> str:
        """What the bank in a folder is called there, of letters and digits; empty when it has nothing. Blocking."""
        ...

    async def drop(self, name: str) -> None:
        """Remove what is called so, if it is there. Raises Unavailable."""
        ...


class Gone:
    """The deleted banks of a folder of banks. `outside` is None where banks are nothing but their folders."""

    def __init__(self, folder: Path, outside: Outside | None = None) -> None:
        self._folder = folder
        self._outside = outside
        self._news = asyncio.Event()
        for left in folder.glob(f"{_PREFIX}*"):
            self._empty(left)

    async def take(self, bank: Path) -> None:
        """Remove a bank's folder, which nobody has open. Killed in between, the next start does the rest."""
        await asyncio.to_thread(self._take, bank)
        self._news.set()

    async def clear(self) -> None:
        """Remove what the deleted banks have outside, again and again until it goes. Runs until it is cancelled."""
        pause = _FIRST_PAUSE
        while True:
            try:
                await self._drop_all()
                pause = _FIRST_PAUSE
                await self._news.wait()
                self._news.clear()
            except Unavailable as error:
                level = logging.WARNING if pause == _FIRST_PAUSE else logging.DEBUG
                logger.log(level, "a deleted bank's vectors are still to be removed: %s", error.message)
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)

    def _take(self, bank: Path) -> None:
        name = self._outside.name(bank) if self._outside else ""
        self._empty(bank.rename(bank.with_name(f"{_PREFIX}{uuid.uuid4().hex}-{name}")))

    def _empty(self, gone: Path) -> None:
        if not (self._outside and _name(gone)):
            shutil.rmtree(gone, ignore_errors=True)
            return
        for path in gone.iterdir():
            with contextlib.suppress(OSError):  # what stays now goes with the folder
                shutil.rmtree(path) if path.is_dir() else path.unlink()

    async def _drop_all(self) -> None:
        if self._outside is None:
            return
        for gone in sorted(self._folder.glob(f"{_PREFIX}*")):
            if name := _name(gone):
                await self._outside.drop(name)
            await asyncio.to_thread(shutil.rmtree, gone, ignore_errors=True)


@asynccontextmanager
async def clearing(folder: Path, outside: Outside | None) -> AsyncIterator[Gone]:
    """The deleted banks of `folder`, which are cleared for as long as the context lasts."""
    gone = Gone(folder, outside)
    clearer = asyncio.create_task(gone.clear(), name="clear deleted banks")
    try:
        yield gone
    finally:
        clearer.cancel()
        await asyncio.wait([clearer])


def is_gone(folder: Path) -> bool:
    """Whether a folder among those of banks is what a deleted one left."""
    return folder.name.startswith(_PREFIX)


def _name(gone: Path) -> str:
    return gone.name.removeprefix(_PREFIX).partition("-")[2]
