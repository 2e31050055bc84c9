"""One bank's store while it is open: its ledger, what recall keeps in memory, and the index, all kept in step.

A retain is acknowledged when the ledger has it on disk. A task of the store's own gives late vectors to passages that
lack them and carries vectors over to the index; until they are there they are held in memory and searched exactly.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence

import numpy as np

from hindsight.embedding import Vectors
from hindsight.embedding.batching import BatchingEmbedder
from hindsight.errors import HindsightError, IndexUnavailable, Unavailable
from hindsight.index import VectorIndex
from hindsight.joining import Joiner
from hindsight.ledger import EmbedderMark, Entry, Ledger, Stored
from hindsight.retrieval.roster import Roster, top_keys
from hindsight.retrieval.terms import VERSION as TERMS_VERSION
from hindsight.retrieval.words import BLOCK, Block, Keys

logger = logging.getLogger(__name__)

OpenIndex = Callable[[int], Awaitable[VectorIndex]]

_COMMIT = 256  # memories in one commit
_CARRY = 500  # passages carried to the index at a time
# Lets lone retains gather, so that the index costs one more commit for many of them and not for each.
_LAG = 0.25
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0


class Store:
    """Make it with `open_store`. `ledger` and `roster` may be read from any thread."""

    def __init__(self, name: str, ledger: Ledger, embedder: BatchingEmbedder, open_index: OpenIndex) -> None:
        self.ledger = ledger
        self.roster = Roster()
        self._name = name
        self._embedder = embedder
        self._mark = EmbedderMark(embedder.name, embedder.dimension)
        self._ledger_mark: EmbedderMark | None = None
        self._open_index = open_index
        self._index: VectorIndex | None = None
        self._opening = asyncio.Lock()
        self._news = asyncio.Event()
        self._stopping = asyncio.Event()
        self._joined = Joiner[Entry, Stored](self._commit, _COMMIT)
        self._follower: asyncio.Task[None] | None = None

    @property
    def semantic(self) -> bool:
        """Whether the embedder in use is the one that the bank's vectors come from."""
        return self._ledger_mark is None or self._ledger_mark == self._mark

    def load(self) -> None:
        """Fill the roster from the ledger. Blocking."""
        self._ledger_mark = self.ledger.embedder()
        rows = self.ledger.passages(above=0)
        self.roster.add([r.key for r in rows], [r.number for r in rows], [r.superseded for r in rows])
        self._load_words()
        self._hold_unindexed()

    def start(self) -> None:
        """Start the task that brings the index up to date."""
        self._follower = asyncio.create_task(self._follow(), name=f"follow {self._name}")
        self._news.set()

    async def retain(self, entry: Entry) -> Stored:
        """Store an entry, in one commit with those that arrive beside it. Raises what the ledger answers."""
        return await self._joined(entry)

    async def nearest(self, vector: Vectors, most: int) -> Keys:
        """Keys of about `most` passages nearest to `vector`, in no order; all that count are among those searched."""
        keys, vectors = self.roster.held()
        held = keys[top_keys(vectors @ vector + 2, most)] if len(keys) else keys
        if len(keys) >= self.roster.top:
            return held
        try:
            found = (await (await self._opened()).nearest(vector, most)).keys
        except IndexUnavailable as error:
            logger.warning("bank %s: the index is down, searching the ledger: %s", self._name, error.message)
            found = await asyncio.to_thread(self._nearest_in_ledger, vector, most)
        return np.concatenate([held, found])

    async def aclose(self) -> None:
        """Finish what is under way and let go of the files."""
        await self._joined.settle()
        self._stopping.set()
        self._news.set()
        if self._follower is not None:
            await self._follower
        if self._index is not None:
            await self._index.aclose()
        await asyncio.to_thread(self.ledger.close)

    def _nearest_in_ledger(self, vector: Vectors, most: int) -> Keys:
        keys, vectors = self.ledger.vectors(np.flatnonzero(self.roster.numbers()).tolist())
        return keys[top_keys(vectors @ vector + 2, most)] if len(keys) else keys

    async def _commit(self, entries: Sequence[Entry]) -> Sequence[Stored | HindsightError]:
        outcomes = await asyncio.to_thread(self._write, entries)
        self._news.set()
        return outcomes

    def _write(self, entries: Sequence[Entry]) -> Sequence[Stored | HindsightError]:
        outcomes = self.ledger.retain(entries, self._mark)
        self._ledger_mark = self._ledger_mark or self._mark
        for entry, outcome in zip(entries, outcomes, strict=True):
            if isinstance(outcome, Stored) and not outcome.known:
                self._take_in(entry, outcome)
        return outcomes

    def _take_in(self, entry: Entry, stored: Stored) -> None:
        text, keys = entry.memory.text, stored.keys
        self.roster.add(keys, [stored.number] * len(keys), [False] * len(keys))
        self.roster.words.add((key, text[cut.start : cut.end]) for key, cut in zip(keys, entry.cuts, strict=True))
        if entry.vectors is not None:
            self.roster.hold(keys, entry.vectors)
        if stored.superseded is not None:
            self.roster.supersede(stored.superseded)

    def _load_words(self) -> None:
        blocks = self.ledger.word_blocks(TERMS_VERSION)
        for number in range(self.roster.top // BLOCK + 1):
            if number in blocks:
                self.roster.words.put(number, Block.from_bytes(blocks[number]))
            else:
                self.roster.words.add(self.ledger.passage_texts(number * BLOCK, (number + 1) * BLOCK - 1))

    def _hold_unindexed(self) -> None:
        keys, vectors = self.ledger.unindexed(self.roster.top + 1)
        self.roster.hold(keys.tolist(), vectors)

    async def _opened(self) -> VectorIndex:
        async with self._opening:
            if self._index is None:
                self._index = await self._open_index(self._embedder.dimension)
                if self._index.rebuilt:
                    await asyncio.to_thread(self.ledger.unindex)
                    await asyncio.to_thread(self._hold_unindexed)
                    self._news.set()
            return self._index

    async def _follow(self) -> None:
        pause = _FIRST_PAUSE
        while not self._stopping.is_set():
            await self._news.wait()
            await self._rest(_LAG)
            self._news.clear()
            try:
                while not self._stopping.is_set() and (await self._embed_late() or await self._carry()):
                    pass
                await self._keep_words()
                pause = _FIRST_PAUSE
            except Unavailable as error:
                logger.warning("bank %s: the index waits %.1f s: %s", self._name, pause, error.message)
                self._news.set()
                await self._rest(pause)
                pause = min(pause * 2, _LONGEST_PAUSE)

    async def _rest(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), seconds)

    async def _embed_late(self) -> bool:
        if not self.semantic:
            return False
        late = await asyncio.to_thread(self.ledger.unembedded, _CARRY)
        if late:
            keys = [key for key, _ in late]
            vectors = await self._embedder.embed([text for _, text in late])
            await asyncio.to_thread(self.ledger.embed, keys, vectors)
            self.roster.hold(keys, vectors)
        return bool(late)

    async def _carry(self) -> bool:
        keys, vectors = await asyncio.to_thread(self.ledger.unindexed, _CARRY)
        if len(keys):
            await (await self._opened()).upsert(keys, vectors)
            await asyncio.to_thread(self.ledger.indexed, keys.tolist())
            self.roster.release(keys.tolist())
        return bool(len(keys))

    async def _keep_words(self) -> None:
        for number, block in await asyncio.to_thread(self.roster.words.freeze, self.roster.top):
            await asyncio.to_thread(self.ledger.keep_word_block, number, TERMS_VERSION, block.as_bytes())


async def open_store(name: str, ledger: Ledger, embedder: BatchingEmbedder, open_index: OpenIndex) -> Store:
    """Open a store over a ledger; `open_index` opens the bank's index for vectors of a dimension, when first needed."""
    store = Store(name, ledger, embedder, open_index)
    await asyncio.to_thread(store.load)
    store.start()
    return store
