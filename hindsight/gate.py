"""The way to a bank's index: opened when first needed, opened anew when it went stale, waited for only while it works.

Whoever finds that it does not work goes on without it at once; what opens it meanwhile runs beside.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

from hindsight.embedding import Vectors
from hindsight.errors import IndexUnavailable, Unavailable
from hindsight.index import Nearest, VectorIndex

PATIENCE = 0.5  # seconds, from the start of an opening, that a search waits for it

logger = logging.getLogger(__name__)


class Gate:
    """Leads to what `open_index` opens, once `compare` has brought it and the ledger together.

    Whoever holds the `lock` keeps it from being opened and closed.
    """

    def __init__(
        self,
        name: str,
        open_index: Callable[[], Awaitable[VectorIndex]],
        compare: Callable[[VectorIndex], Awaitable[None]],
    ) -> None:
        self.lock = asyncio.Lock()
        self._name = name
        self._open_index = open_index
        self._compare = compare
        self._index: VectorIndex | None = None
        self._opener: asyncio.Task[VectorIndex] | None = None
        self._since = 0.0  # when the opener started
        self._works = True

    @property
    def tried(self) -> bool:
        """Whether anybody has wanted the index yet."""
        return self._opener is not None

    @property
    def open(self) -> VectorIndex | None:
        """The index, if it is open."""
        return None if self._index is None or self._index.stale else self._index

    async def index(self) -> VectorIndex:
        """The index, opened if need be. Raises Unavailable."""
        index = self.open
        return index if index is not None else await asyncio.shield(self._opening())

    async def nearest(self, vector: Vectors, count: int) -> Nearest:
        """As VectorIndex says. Raises TimeoutError while it opens, IndexUnavailable at once if it can't be."""
        index = self.open
        if index is None:
            opening = self._opening()
            if not self._works:
                raise IndexUnavailable("the vector index does not work at the moment")
            async with asyncio.timeout_at(self._since + PATIENCE):
                index = await asyncio.shield(opening)
        try:
            found = await index.nearest(vector, count)
        except IndexUnavailable as error:
            self._fails(error)
            raise
        self._succeeds()
        return found

    async def let_go(self) -> None:
        """Close the index; the next who wants it opens it. The caller holds the lock."""
        if self._index is not None:
            index, self._index = self._index, None
            await index.aclose()

    def _opening(self) -> asyncio.Task[VectorIndex]:
        # In a task of its own: a caller that leaves must not leave an open index behind that nobody knows of.
        if self._opener is None or self._opener.done():
            self._since = asyncio.get_running_loop().time()
            self._opener = asyncio.create_task(self._open(), name=f"open the index of {self._name}")
            self._opener.add_done_callback(self._told_the_end)
        return self._opener

    async def _open(self) -> VectorIndex:
        async with self.lock:
            if (index := self.open) is not None:
                return index
            await self.let_go()
            async with AsyncExitStack() as opened:
                index = await self._open_index()
                opened.push_async_callback(index.aclose)
                await self._compare(index)
                opened.pop_all()
            self._index = index
            self._succeeds()
            return index

    def _told_the_end(self, opener: asyncio.Task[VectorIndex]) -> None:
        if not opener.cancelled() and (error := opener.exception()):
            self._fails(error)

    def _fails(self, error: BaseException) -> None:
        if self._works:
            told = error.message if isinstance(error, Unavailable) else repr(error)
            logger.warning("bank %s: vectors are searched in the ledger for now: %s", self._name, told)
        self._works = False

    def _succeeds(self) -> None:
        if not self._works:
            logger.info("bank %s: vectors are searched in the index again", self._name)
        self._works = True
