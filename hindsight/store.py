"""One bank's store while it is open: its ledger, what recall keeps in memory, and the index, all kept in step.

A retain is acknowledged when the ledger has it on disk. A task of the store's own gives late vectors to passages that
lack them and carries vectors over to the index; until they are there they are held in memory and searched exactly.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import date
from functools import lru_cache

import numpy as np

from hindsight.embedding import Parted, Vectors
from hindsight.embedding.batching import BatchingEmbedder
from hindsight.errors import HindsightError, IndexUnavailable, LedgerDamaged, TextRefused, Unavailable
from hindsight.facets import Facets
from hindsight.gate import Gate
from hindsight.index import VectorIndex
from hindsight.joining import Joiner
from hindsight.ledger import Changes, Conditions, EmbedderMark, Entry, Facet, Forgotten, Ledger, Span, Stored
from hindsight.quota import Quota
from hindsight.record import Memory
from hindsight.retrieval.held import Held
from hindsight.retrieval.roster import Outline, Roster
from hindsight.retrieval.sentences import packed, stops
from hindsight.retrieval.sketch import Sketch
from hindsight.retrieval.terms import VERSION as TERMS_VERSION
from hindsight.retrieval.words import BLOCK, Block, Keys, Mask, Scores
from hindsight.telemetry import Lag

logger = logging.getLogger(__name__)

OpenIndex = Callable[[EmbedderMark], Awaitable[VectorIndex]]

# Vectors held in memory, 12 MB with 384 dimensions: a product over them takes a fraction of a millisecond, less than
# Chroma's search, so smaller banks are searched exactly; larger ones by the index, with a sketch of each vector.
HELD = 8_192
_COMMIT = 256  # memories in one commit
FEW = 4_000  # passages that cost less to score one by one than to find in the index
_SKETCHED = 2_000  # vectors read at a time to be sketched
_CARRY = 500  # passages carried to the index at a time
_LATE = 64  # passages embedded late at a time: whoever closes the bank waits for no more
# Lets lone retains gather, so that the index costs one more commit for many of them and not for each.
_LAG = 0.25
# Vectors that may wait for the index while others come, one at least in so many seconds: the index takes a tenth of the
# time of a load, and they are held in memory and searched exactly all the same.
_BACKLOG, _QUIET = HELD // 2, 1.0
# An index of more passages takes a second to open, with Python's lock held for most of it, so the first recall does not
# even start it; and to read all their vectors from the ledger takes as long.
SLOW = 32_768
_VERIFY = 60.0  # seconds after which an index that is in use is counted again: a server may come back with less
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 5.0
_EPOCH = date(1970, 1, 1).toordinal()


class Store:
    """Make it with `open_store`. `ledger`, `roster` and `held` may be read from any thread."""

    def __init__(
        self, name: str, ledger: Ledger, embedder: BatchingEmbedder, open_index: OpenIndex, quota: Quota
    ) -> None:
        self.ledger = ledger
        self.roster = Roster()
        self.held = Held(HELD)
        self.sketch = Sketch()
        self._sketching = self._sketched = False
        self._facets: Facets | None = None
        self._name = name
        self._embedder = embedder
        self._late: set[int] = set()  # keys of the passages that wait for a vector
        self._late_from = 0  # up to this key all have one, or the embedder refuses their text
        self._behind = False  # they wait for more than their turn
        self._ledger_mark: EmbedderMark | None = None
        self._quota = quota
        self._open_index = open_index
        self._gate = Gate(name, self._opened, self._compare)
        self._verified = 0.0  # when index and ledger last agreed
        self._behind_since: float | None = None
        self._retained = 0.0  # when something was last
        self._writing = asyncio.Lock()
        self._following = asyncio.Lock()
        self._news = asyncio.Event()
        self._stopping = asyncio.Event()
        self._joined = Joiner[Entry, Stored](self._commit, _COMMIT)
        self._follower: asyncio.Task[None] | None = None

    @property
    def embedder(self) -> EmbedderMark | None:
        """The embedder that the bank's vectors come from; None before the first."""
        return self._ledger_mark

    @property
    def semantic(self) -> bool:
        """Whether the embedder in use is the one that the bank's vectors come from.

        One whose dimension is not known yet is taken at its name: ask again once it has made a vector.
        """
        mark = self._ledger_mark
        return mark is None or (mark.name == self._embedder.name and self._embedder.dimension in (0, mark.dimension))

    @property
    def frozen(self) -> bool:
        """As the ledger says."""
        return self.ledger.frozen

    @property
    def late(self) -> int:
        """How many passages wait for their vectors."""
        return len(self._late)

    @property
    def lag(self) -> Lag:
        """What is still to be done."""
        seconds = 0.0 if self._behind_since is None else time.monotonic() - self._behind_since
        return Lag(self._joined.waiting, len(self._late), self.held.waiting, seconds, self.behind)

    @property
    def behind(self) -> bool:
        """Whether passages wait for their vectors for long: the embedder was down, or the bank is being reindexed."""
        return self._behind and bool(self._late)

    def load(self) -> None:
        """Fill what is kept in memory from the ledger. Blocking."""
        self._ledger_mark = self.ledger.embedder()
        outlines = [
            Outline(number, traits, session, _days(day), superseded)
            for number, traits, session, day, superseded in self.ledger.outlines()
        ]
        self.roster.add(outlines, *self.ledger.passages())
        self._late.update(self.ledger.late().tolist())
        self._behind = bool(self._late)
        self._load_words()
        if self.semantic:
            self._load_vectors()

    def start(self) -> None:
        """Start the task that brings the index up to date."""
        self._follower = asyncio.create_task(self._follow(), name=f"follow {self._name}")
        self._follower.add_done_callback(self._told_the_end)
        self._news.set()

    async def retain(self, entry: Entry) -> Stored:
        """Store an entry, in one commit with those that arrive beside it. Raises what the ledger answers."""
        return await self._joined(entry)

    async def update(self, number: int, changes: Changes) -> Memory | None:
        """Change a memory's categories; None when there is no such memory."""
        async with self._writing:
            return await asyncio.to_thread(self._update, number, changes)

    async def forget(self, numbers: Sequence[int]) -> Forgotten:
        """Remove memories for good; the index follows."""
        async with self._writing:
            forgotten = await asyncio.to_thread(self._forget, numbers)
        self._news.set()
        return forgotten

    async def reindex(self) -> None:
        """Give the bank to the embedder in use, which has made a vector by now; those of the bank come one by one.

        On disk when this returns: a restart goes on with it.
        """
        async with self._following, self._gate.lock, self._writing:
            if self.semantic:
                return
            await asyncio.to_thread(self._give_over)
            # Opened anew for the other vectors; a search under way falls back on the ledger.
            await self._gate.let_go()
        self._news.set()

    async def counting(self, conditions: Conditions) -> Mask:
        """Which memories meet the conditions, bool by number."""
        if conditions == Conditions(superseded=conditions.superseded):
            return self.roster.counting(superseded=conditions.superseded)
        async with self._writing:
            if self._facets is None:
                self._facets = await asyncio.to_thread(self._read_facets)
        return await asyncio.to_thread(self._counting, self._facets, conditions)

    async def nearest(self, vector: Vectors, counting: Mask, most: int, held: Keys) -> tuple[Keys, Scores]:
        """Keys and cosines of the passages nearest to `vector` that are not `held`, at most about `most`.

        `counting` says which memories count, bool by number. Raises IndexUnavailable while the index still opens.
        """
        outside = self.roster.passages(counting)
        outside[held[held < len(outside)]] = False
        if self._late:
            # The index may still have them from another embedder.
            late = np.array(list(self._late), np.int64)
            outside[late[late < len(outside)]] = False
        wanted = int(np.count_nonzero(outside))
        if not wanted:
            return np.empty(0, np.int64), np.empty(0, np.float32)
        # A condition leaves some of those that the index finds, so it is asked for more; scoring a few costs less.
        asked = min(3 * most, max(most, most * self.roster.count() // (4 * wanted)))
        try:
            if wanted > FEW:
                return await self._nearest_in_index(vector, outside, asked)
        except TimeoutError as error:
            if wanted > SLOW and not self._sketched:
                told = "the index is still opening; older memories were found by words alone"
                raise IndexUnavailable(told) from error
        except Unavailable:
            pass  # told by the gate
        return await asyncio.to_thread(self._nearest_of_all, vector, np.flatnonzero(outside))

    async def aclose(self) -> None:
        """Finish what is under way and let go of the files."""
        await self._joined.settle()
        self._stopping.set()
        self._news.set()
        if self._follower is not None:
            await asyncio.wait([self._follower])  # a failure of its own was logged when it came
        try:
            async with self._gate.lock:
                await self._gate.let_go()
        finally:
            await asyncio.to_thread(self.ledger.close)
            self._empty()

    def _empty(self) -> None:
        # A store is part of cycles, which may wait long for the garbage collector: what is large goes now.
        self.roster, self.held, self.sketch = Roster(), Held(HELD), Sketch()
        self._facets, self._late = None, set()

    async def _nearest_in_index(self, vector: Vectors, outside: Mask, asked: int) -> tuple[Keys, Scores]:
        if not self._gate.tried and self.roster.count() > SLOW:
            raise TimeoutError
        found = await self._gate.nearest(vector, asked)
        if time.monotonic() - self._verified > _VERIFY:
            self._news.set()
        known = found.keys < len(outside)
        known[known] = outside[found.keys[known]]
        return found.keys[known], found.similarities[known]

    def _nearest_of_all(self, vector: Vectors, keys: Keys) -> tuple[Keys, Scores]:
        cosines, known = self.sketch.cosines(keys, vector)
        others, vectors = self.ledger.vectors(keys[~known].tolist())
        if not len(others):
            return keys[known], cosines[known]
        return np.concatenate([keys[known], others]), np.concatenate([cosines[known], vectors @ vector])

    async def _commit(self, entries: Sequence[Entry]) -> Sequence[Stored | HindsightError]:
        async with self._writing:
            outcomes = await asyncio.to_thread(self._write, entries)
        self._retained = time.monotonic()
        self._news.set()
        return outcomes

    def _write(self, entries: Sequence[Entry]) -> Sequence[Stored | HindsightError]:
        room = self._quota.room(*self.ledger.fill()) if self._quota else None
        taken = entries if room is None else entries[:room]
        outcomes = self.ledger.retain(taken, self._mark()) if taken else []
        self._ledger_mark = self._ledger_mark or self.ledger.embedder()
        for entry, outcome in zip(taken, outcomes, strict=True):
            if isinstance(outcome, Stored) and not outcome.known:
                self._take_in(entry, outcome)
        return [*outcomes, *(self._quota.refusal() for _ in entries[len(taken) :])]

    def _take_in(self, entry: Entry, stored: Stored) -> None:
        text, keys = entry.memory.text, np.array(stored.keys, np.int64)
        # The words first: a reader looks them up only for keys that the roster has.
        pieces = zip(stored.keys, entry.cuts, strict=True)
        self.roster.words.add((key, text[cut.start : cut.end]) for key, cut in pieces if cut.worded)
        embedded = 0 if entry.vectors is None else len(entry.vectors)
        self._late.update(stored.keys[embedded:])
        self._behind = self._behind or entry.vectors is None
        if entry.vectors is not None:
            self._hold(keys[:embedded], entry.vectors)
        if self._facets is not None:
            self._facets.note(stored.number, _facet(entry.memory, entry.time))
        self.roster.add([_outline(entry, stored.number)], keys, np.full(len(keys), stored.number))
        if stored.superseded is not None:
            self.roster.supersede(stored.superseded)

    def _read_facets(self) -> Facets:
        facets = Facets()
        for number, facet in self.ledger.facets():
            facets.note(number, facet)
        return facets

    def _counting(self, facets: Facets, conditions: Conditions) -> Mask:
        counts = self.roster.counting(superseded=conditions.superseded)
        return counts & facets.fitting(conditions, len(counts))

    def _update(self, number: int, changes: Changes) -> Memory | None:
        memory = self.ledger.update(number, changes)
        if memory is not None:
            self.roster.redate(number, _day_of(memory))
            if self._facets is not None:
                self._facets.note(number, _facet(memory, changes.time or self._facets.time(number)))
        return memory

    def _forget(self, numbers: Sequence[int]) -> Forgotten:
        forgotten = self.ledger.forget(numbers)
        self.roster.remove(numbers, forgotten.keys)
        self.held.drop(np.array(forgotten.keys, np.int64))
        self._late.difference_update(forgotten.keys)
        for number in forgotten.revived:
            self.roster.supersede(number, superseded=False)
        return forgotten

    def _load_words(self) -> None:
        blocks = self.ledger.word_blocks(TERMS_VERSION)
        for first in range(0, self.roster.top + 1, BLOCK):
            try:
                self.roster.words.put(first // BLOCK, Block.from_bytes(blocks[first]))
            except (KeyError, ValueError):  # none yet, or a damaged one
                self.roster.words.add(self.ledger.passage_texts(first, first + BLOCK - 1))

    def _load_vectors(self) -> None:
        waiting, vectors = self.ledger.unindexed(self.roster.top + 1)
        self.held.add(waiting, vectors)
        newest, vectors = self.ledger.vectors_from(max(0, self.roster.top - HELD))
        settled = ~np.isin(newest, waiting)
        self.held.add(newest[settled], vectors[settled], settled=True)

    def _hold_all(self) -> None:
        self.ledger.unindex()
        held = Held(HELD)
        held.add(*self.ledger.unindexed(self.roster.top + 1))
        self.held = held

    async def _opened(self) -> VectorIndex:
        assert self._ledger_mark is not None  # nothing goes to an index before the first vector
        return await self._open_index(self._ledger_mark)

    async def _compare(self, index: VectorIndex) -> None:
        """Find out what the index lacks and has too much; both are seen to by the steps that follow."""
        if index.rebuilt:
            await self._start_over()
        else:
            await self._verify(index)

    async def _verify(self, index: VectorIndex) -> None:
        if await index.count() != await asyncio.to_thread(self.ledger.carried):
            held = await index.keys()
            async with self._writing:
                await asyncio.to_thread(self._correct, held)
        self._verified = time.monotonic()

    def _correct(self, held: Keys) -> None:
        lost, strange = self.ledger.correct(held)
        self.held.add(*self.ledger.vectors(self.held.lose(lost).tolist()))
        if len(lost) or len(strange):
            told = "bank %s: the index has lost %d vectors and has %d too many; both is being put right"
            logger.warning(told, self._name, len(lost), len(strange))
            self._news.set()

    async def _start_over(self) -> None:
        async with self._writing:
            await asyncio.to_thread(self._hold_all)
        self._verified = time.monotonic()
        self._news.set()

    async def _follow(self) -> None:
        pause = _FIRST_PAUSE
        if self.roster.count() > HELD and self.semantic:
            await self._rest(_LAG)
            with contextlib.suppress(Unavailable):  # told by whoever needs it
                await self._gate.index()  # before the first recall asks for it
        while not self._stopping.is_set():
            await self._news.wait()
            self._news.clear()
            self._behind_since = self._behind_since or time.monotonic()
            await self._rest(_LAG)
            try:
                await self._catch_up()
                pause = _FIRST_PAUSE
            except Unavailable as error:
                level = logging.WARNING if pause == _FIRST_PAUSE else logging.DEBUG
                logger.log(level, "bank %s: vectors wait: %s", self._name, error.message)
                self._news.set()
                await self._rest(pause)
                pause = min(pause * 2, _LONGEST_PAUSE)

    async def _catch_up(self) -> None:
        try:
            while not self._stopping.is_set() and await self._step():
                pass
            if not self._news.is_set():
                self._behind_since = None
                await self._count_again()
        finally:  # an index that is down must not keep recall from being fast
            await self._fill_sketch()
            await self._keep_words()

    async def _count_again(self) -> None:
        index = self._gate.open
        if index is not None and time.monotonic() - self._verified > _VERIFY:
            async with self._following:
                await self._verify(index)

    def _told_the_end(self, follower: asyncio.Task[None]) -> None:
        if not follower.cancelled() and (error := follower.exception()):
            logger.error("bank %s: the index no longer follows the ledger", self._name, exc_info=error)

    async def _rest(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), seconds)

    async def _step(self) -> bool:
        """Bring the index nearer to the ledger; whether there was anything to do."""
        async with self._following:
            try:
                return await self._carry() or await self._embed_late()
            except IndexUnavailable:
                if await self._embed_late():
                    return True
                raise

    async def _embed_late(self) -> bool:
        if not self.semantic:
            return False
        late = await asyncio.to_thread(self.ledger.unembedded, _LATE, self._late_from)
        if late:
            found = await self._embedder.embed_each(self._parted(late))
            made = {key: rows for (key, _), rows in zip(late, found, strict=True) if not isinstance(rows, TextRefused)}
            async with self._writing:
                if made:
                    await asyncio.to_thread(self._give_vectors, made)
                self._late.difference_update(key for key, _ in late)
                self._behind = self._behind and bool(self._late)
                self._late_from = late[-1][0]
            if refused := len(late) - len(made):
                logger.warning(
                    "bank %s: the embedder refuses %d passages; they are found by words alone", self._name, refused
                )
        return bool(late)

    def _parted(self, late: Sequence[tuple[int, str]]) -> list[Parted]:
        alone = self.roster.alone(np.array([key for key, _ in late], np.int64))
        return [Parted(text, stops(text) if whole else ()) for (_, text), whole in zip(late, alone, strict=True)]

    def _give_vectors(self, found: dict[int, Vectors]) -> None:
        keys, vectors = list(found), np.stack([rows[0] for rows in found.values()])
        sentences = [(key, packed(rows[1:])) for key, rows in found.items() if len(rows) > 1]
        self.ledger.embed(keys, vectors, self._mark(), sentences)
        self._ledger_mark = self._ledger_mark or self.ledger.embedder()
        there = self.roster.owners()[list(keys)] > 0  # some may have been forgotten meanwhile
        self._hold(np.array(keys, np.int64)[there], vectors[there])

    def _hold(self, keys: Keys, vectors: Vectors) -> None:
        self.held.add(keys, vectors)
        if self._sketching:
            self.sketch.add(keys, vectors)

    async def _fill_sketch(self) -> None:
        """Once a bank has more vectors than are held: what is retained from here on is sketched as it comes."""
        if self._sketching or self.roster.count() <= HELD or not self.semantic:
            return
        self._sketching = True
        sketch, top = self.sketch, self.roster.top
        for first in range(1, top + 1, _SKETCHED):
            keys = list(range(first, min(first + _SKETCHED, top + 1)))
            found = await asyncio.to_thread(self.ledger.vectors, keys)
            if self._stopping.is_set() or sketch is not self.sketch:
                return
            async with self._writing:
                await asyncio.to_thread(sketch.add, *found)
        async with self._writing:
            self.held.shrink()
        self._sketched = True

    def _give_over(self) -> None:
        self.sketch, self._sketching, self._sketched = Sketch(), False, False
        self.ledger.give_to(self._mark())
        self._ledger_mark = self.ledger.embedder()
        self.held = Held(HELD)
        self._late, self._late_from = set(self.ledger.late().tolist()), 0
        self._behind = True

    def _mark(self) -> EmbedderMark:
        return EmbedderMark(self._embedder.name, self._embedder.dimension)

    async def _carry(self) -> bool:
        """Bring one step's worth over to the index; whether there was any."""
        if self._ledger_mark is None:
            return False
        gone = await asyncio.to_thread(self.ledger.gone, _CARRY)
        if len(gone):
            await (await self._gate.index()).delete(gone)
            await asyncio.to_thread(self.ledger.dropped, gone.tolist())
            return True  # all of them first: one that has a new vector by now would lose it
        if self.held.waiting < _BACKLOG and time.monotonic() - self._retained < _QUIET:
            self._news.set()  # to be looked at again
            self._behind_since = None  # put off, not late
            return False
        keys, vectors = await asyncio.to_thread(self.ledger.unindexed, _CARRY)
        if len(keys):
            await (await self._gate.index()).upsert(keys, vectors)
            async with self._writing:
                await asyncio.to_thread(self._note_carried, keys.tolist())
        return bool(len(keys))

    def _note_carried(self, keys: Sequence[int]) -> None:
        self.ledger.indexed(keys)
        self.held.settle(keys)

    async def _keep_words(self) -> None:
        for number, block in await asyncio.to_thread(self.roster.words.freeze, self.roster.top):
            async with self._writing:
                await asyncio.to_thread(self._keep_block, number * BLOCK, block)
        async with self._writing:
            await asyncio.to_thread(self.roster.words.join)

    def _keep_block(self, first: int, block: Block) -> None:
        # The words of what was forgotten while the block grew must not outlive it on disk.
        gone = np.flatnonzero(self.roster.owners()[first : first + BLOCK] == 0)
        kept = block.without(gone)
        self.ledger.keep_word_block(first, first + BLOCK - 1, TERMS_VERSION, kept.as_bytes())


async def open_store(
    name: str, ledger: Ledger, embedder: BatchingEmbedder, open_index: OpenIndex, quota: Quota
) -> Store:
    """Open a store over a ledger, which goes with it; `open_index` opens the bank's index for vectors of an embedder.

    The ledger is closed when that fails. Raises LedgerUnavailable.
    """
    store = Store(name, ledger, embedder, open_index, quota)
    async with contextlib.AsyncExitStack() as opened:
        opened.push_async_callback(asyncio.to_thread, ledger.close)
        try:
            await asyncio.to_thread(store.load)
        except (ValueError, LookupError) as error:  # what no ledger of ours holds
            logger.error("the ledger of bank %s does not agree with itself: run hindsight check --repair", name)
            raise LedgerDamaged("this bank's ledger is damaged") from error
        opened.pop_all()
    if not ledger.frozen:
        store.start()
    return store


def _outline(entry: Entry, number: int) -> Outline:
    return Outline(number, entry.traits, entry.memory.session_id, _day_of(entry.memory))


def _facet(memory: Memory, time: Span) -> Facet:
    return Facet(memory.type, memory.context, memory.session_id, memory.tags, memory.metadata, time)


def _day_of(memory: Memory) -> int:
    return _days((memory.event_date or memory.retained_at)[:10])


@lru_cache(maxsize=1 << 14)
def _days(day: str) -> int:
    return date.fromisoformat(day).toordinal() - _EPOCH
