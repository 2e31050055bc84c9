"""A bank: one team's or agent's memory, where texts, vectors and records meet."""

from __future__ import annotations

import asyncio
import hashlib
import json
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, tzinfo
from functools import partial

import numpy as np

from hindsight.embedding import Vectors
from hindsight.embedding.batching import BatchingEmbedder
from hindsight.errors import EmbedderUnavailable, InvalidArgument, MemoryNotFound
from hindsight.ledger import Changes, Conditions, Cut, EmbedderMark, Entry, Numbers, Span, Stats
from hindsight.record import JsonObject, Memory, MemoryType, RecallAnswer, Result, RetainAnswer
from hindsight.retrieval.budget import fitting
from hindsight.retrieval.fusion import best_memories, hybrid
from hindsight.retrieval.passages import passages
from hindsight.retrieval.roster import top_keys
from hindsight.retrieval.words import Keys, Mask, Scores
from hindsight.store import Store
from hindsight.understanding.category import category_of
from hindsight.understanding.dates import When, date_in, parse_when

# Passages that each arm hands to the fusion: what fits a query by both is nearly always among the first of one.
_CANDIDATES = 200
_NOTHING: tuple[Keys, Scores] = np.empty(0, np.int64), np.empty(0, np.float32)
NO_STATS = Stats(0, 0, {}, {}, {}, None, None, 0)
_OTHER_EMBEDDER = (
    "this bank's vectors come from another embedder, so only words can be searched; the operator's hindsight reindex"
    " brings meaning back"
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """What a caller wants to retain. `event_date` is as `parse_when` reads it; a `type` of None is to be found."""

    content: str
    context: str = "general"
    type: MemoryType | None = None
    event_date: str | None = None
    session_id: str | None = None
    document_id: str | None = None
    tags: tuple[str, ...] = ()
    metadata: JsonObject = field(default_factory=dict)
    supersedes: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Narrowing:
    """Which memories a caller wants to look at. `since` and `until` are dates as `parse_when` reads them."""

    types: tuple[MemoryType, ...] = ()
    contexts: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    all_tags: bool = False
    since: str | None = None
    until: str | None = None
    session_id: str | None = None
    predicate: Callable[[JsonObject], bool] | None = None
    superseded: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """What a caller looks for; the answer has at most `max_results` memories and about `max_tokens` tokens."""

    text: str
    max_results: int = 10
    max_tokens: int = 2048
    narrowing: Narrowing = Narrowing()


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """New categories for a memory; None leaves one as it is."""

    context: str | None = None
    type: MemoryType | None = None
    event_date: str | None = None
    tags: tuple[str, ...] | None = None
    metadata: JsonObject | None = None


@dataclass(frozen=True, slots=True)
class Parts:
    """What every bank works with: the embedder, the zone of naive times, and the clock."""

    embedder: BatchingEmbedder
    zone: tzinfo
    now: Callable[[], datetime] = lambda: datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class _Understood:
    """A draft made ready to be stored, but for its vectors."""

    memory: Memory
    identity: bytes
    time: Span
    cuts: tuple[Cut, ...]


class Bank:
    """One bank, open; several calls may run at once.

    `create` opens the bank's store at its first retain: a bank that nothing was retained in leaves no trace.
    """

    def __init__(self, parts: Parts, store: Store | None, create: Callable[[], Awaitable[Store]]) -> None:
        self._parts = parts
        self._store = store
        self._create = create
        self._creating = asyncio.Lock()

    async def retain(self, draft: Draft) -> RetainAnswer:
        """Store a memory, on disk and found by the next recall when this returns; the same one again is known.

        Raises InvalidArgument for a date that is none, MemoryNotFound or AlreadySuperseded for `supersedes`,
        StorageFull.
        """
        store = await self._created()
        understood = await asyncio.to_thread(self._understand, draft)
        known = await asyncio.to_thread(store.ledger.known, [understood.identity])
        if known:
            return _retained(known[understood.identity], "known", [])
        vectors, warnings = await self._embed(store, understood)
        entry = Entry(understood.memory, understood.identity, understood.time, understood.cuts, vectors)
        stored = await store.retain(entry)
        return _retained(stored.memory, "known" if stored.known else "stored", warnings)

    async def recall(self, query: Query) -> RecallAnswer:
        """The memories that fit best by meaning and words, best first. By words alone, with a warning, when need be.

        Raises InvalidArgument for a date that is none.
        """
        store = self._store
        if store is None:
            return {"results": []}
        counting = await asyncio.to_thread(self._counting, store, query.narrowing)
        vector, warnings = await self._embed_query(store, query.text)
        near = _NOTHING if vector is None else await store.nearest(vector, counting, _CANDIDATES)
        answer = await asyncio.to_thread(self._search, store, query, counting, vector, near)
        if warnings:
            answer["warnings"] = warnings
        return answer

    async def get(self, id: str) -> Memory:
        """The whole memory. Raises MemoryNotFound."""
        return (await self._find(id))[1]

    async def page(
        self, narrowing: Narrowing, *, newest: bool, beyond: int | None, most: int
    ) -> tuple[list[Memory], int | None]:
        """Up to `most` memories in the order of retaining or against it, and where the next page goes on, if any does.

        `beyond` is where the page before this one said that this one goes on. Raises InvalidArgument.
        """
        if self._store is None:
            return [], None
        ask = partial(self._store.ledger.page, newest=newest, beyond=beyond, most=most + 1)
        found = await asyncio.to_thread(ask, self._conditions(narrowing))
        more = found[most - 1][0] if len(found) > most else None
        return [memory for _, memory in found[:most]], more

    async def update(self, id: str, edit: Edit) -> Memory:
        """Change a memory's categories and return it as it is then. Raises MemoryNotFound, InvalidArgument."""
        when = None if edit.event_date is None else self._when("event_date", edit.event_date)
        changes = Changes(
            context=edit.context,
            type=edit.type,
            event_date=when.text if when else None,
            time=Span(_micros(when.start), _micros(when.end)) if when else None,
            tags=edit.tags,
            metadata=edit.metadata,
        )
        changed = None if self._store is None else await self._store.update(id, changes)
        if changed is None:
            raise MemoryNotFound(f"this bank has no memory {id}")
        return changed

    async def forget(self, id: str) -> None:
        """Remove a memory for good. Raises MemoryNotFound."""
        number, _ = await self._find(id)
        await self._held().forget([number])

    async def forget_all(self, narrowing: Narrowing) -> int:
        """Remove for good all memories that fit; returns how many."""
        numbers = await self._select(narrowing)
        if len(numbers):
            await self._held().forget(numbers.tolist())
        return len(numbers)

    async def sample(self, narrowing: Narrowing, most: int) -> tuple[int, list[Memory]]:
        """How many memories fit, and the first `most` of them."""
        numbers = await self._select(narrowing)
        if not len(numbers):
            return 0, []
        some = numbers[:most].tolist()
        found = await asyncio.to_thread(self._held().ledger.memories, some)
        return len(numbers), [found[number] for number in some if number in found]

    async def stats(self) -> tuple[Stats, EmbedderMark]:
        """What the bank holds, and the embedder of its vectors."""
        embedder = self._parts.embedder
        mine = EmbedderMark(embedder.name, embedder.dimension)
        if self._store is None:
            return NO_STATS, mine
        return await asyncio.to_thread(self._store.ledger.stats), self._store.embedder or mine

    async def aclose(self) -> None:
        """Finish what is under way and let go of the files."""
        if self._store is not None:
            await self._store.aclose()

    async def _created(self) -> Store:
        async with self._creating:
            if self._store is None:
                self._store = await self._create()
            return self._store

    def _understand(self, draft: Draft) -> _Understood:
        now = self._parts.now()
        given = None if draft.event_date is None else self._when("event_date", draft.event_date)
        when = given or date_in(draft.content, now, self._parts.zone)
        memory = Memory(
            id=str(uuid.uuid4()),
            text=draft.content,
            type=draft.type or category_of(draft.content),
            context=draft.context,
            retained_at=now.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z"),
            event_date=when.text if when else None,
            session_id=draft.session_id,
            document_id=draft.document_id,
            tags=draft.tags,
            metadata=draft.metadata,
            supersedes=draft.supersedes,
        )
        embedder = self._parts.embedder
        cuts = tuple(Cut(*bounds) for bounds in passages(draft.content, embedder.max_tokens, embedder.token_ends))
        return _Understood(memory, _identity(draft, given), _span(when, now), cuts)

    def _when(self, name: str, text: str) -> When:
        try:
            return parse_when(text, self._parts.zone)
        except ValueError as error:
            raise InvalidArgument(f"{name}: {error}", argument=name) from error

    async def _embed(self, store: Store, understood: _Understood) -> tuple[Vectors | None, list[str]]:
        if not store.semantic:
            return None, [_OTHER_EMBEDDER]
        text = understood.memory.text
        try:
            return await self._parts.embedder.embed([text[cut.start : cut.end] for cut in understood.cuts]), []
        except EmbedderUnavailable as error:
            return None, [f"{error.message}; the memory is stored and found by its words, by meaning later"]

    async def _embed_query(self, store: Store, text: str) -> tuple[Vectors | None, list[str]]:
        if not store.semantic:
            return None, [_OTHER_EMBEDDER]
        try:
            return await self._parts.embedder.embed_query(text), []
        except EmbedderUnavailable as error:
            return None, [f"{error.message}; these results were found by words alone"]

    def _held(self) -> Store:
        assert self._store is not None  # a memory was found in it
        return self._store

    async def _find(self, id: str) -> tuple[int, Memory]:
        found = None if self._store is None else await asyncio.to_thread(self._store.ledger.find, id)
        if found is None:
            raise MemoryNotFound(f"this bank has no memory {id}")
        return found

    async def _select(self, narrowing: Narrowing) -> Numbers:
        conditions = self._conditions(narrowing)
        if self._store is None:
            return np.empty(0, np.int64)
        return await asyncio.to_thread(self._store.ledger.select, conditions)

    def _counting(self, store: Store, narrowing: Narrowing) -> Mask:
        """Which passages a recall looks at."""
        conditions = self._conditions(narrowing)
        free = conditions == Conditions(superseded=conditions.superseded)
        among = None if free else store.ledger.select(conditions)
        return store.roster.counting(superseded=conditions.superseded, among=among)

    def _conditions(self, narrowing: Narrowing) -> Conditions:
        since = None if narrowing.since is None else _micros(self._when("since", narrowing.since).start)
        until = None if narrowing.until is None else _last_micro(self._when("until", narrowing.until))
        if since is not None and until is not None and since > until:
            raise InvalidArgument("since must not be after until", argument="since")
        return Conditions(
            types=narrowing.types,
            contexts=narrowing.contexts,
            tags=narrowing.tags,
            all_tags=narrowing.all_tags,
            since=since,
            until=until,
            session_id=narrowing.session_id,
            superseded=narrowing.superseded,
            predicate=narrowing.predicate,
        )

    def _search(
        self, store: Store, query: Query, counting: Mask, vector: Vectors | None, near: tuple[Keys, Scores]
    ) -> RecallAnswer:
        words = store.roster.words.score(query.text, counting)
        keys, cosines = np.flatnonzero(words > 0), np.zeros(len(counting), np.float32)
        if vector is not None:
            keys = _cosines(store, counting, vector, near, top_keys(words, _CANDIDATES), cosines)
        numbers = store.roster.numbers()[keys]
        best = best_memories(keys, numbers, hybrid(cosines[keys], words[keys]), query.max_results)
        results = _results(store, best)
        fit = fitting(results, query.max_tokens, lambda text: len(self._parts.embedder.token_ends(text)))
        answer = RecallAnswer(results=results[:fit])
        if fit < len(np.unique(numbers)):
            answer["more"] = True
        return answer


def _cosines(
    store: Store, counting: Mask, vector: Vectors, near: tuple[Keys, Scores], worded: Keys, cosines: Scores
) -> Keys:
    """Fill in the cosines, by key, of all candidates: what is held, near, or fits by its words; returns their keys."""
    held, vectors = store.held.view()
    there = held < len(counting)
    cosines[held[there]] = (vectors @ vector)[there]
    cosines[near[0]] = near[1]
    known = np.zeros(len(counting), np.bool_)
    known[held[there]] = known[near[0]] = True
    missing, their_vectors = store.ledger.vectors(worded[~known[worded]].tolist())
    if len(missing):
        cosines[missing] = their_vectors @ vector
    known[worded] = True
    return np.flatnonzero(known & counting)


def _results(store: Store, best: list[tuple[int, int]]) -> list[Result]:
    memories = store.ledger.memories([number for number, _ in best])
    cuts = store.ledger.cuts([key for _, key in best])
    return [_result(memories[number], cuts[key]) for number, key in best if number in memories and key in cuts]


def _result(memory: Memory, cut: Cut) -> Result:
    result = Result(
        id=memory.id,
        text=memory.text[cut.start : cut.end],
        type=memory.type.value,
        context=memory.context,
        event_date=memory.event_date,
    )
    if len(result["text"]) < len(memory.text):
        result["truncated"] = True
    if memory.superseded_by is not None:
        result["superseded_by"] = memory.superseded_by
    return result


def _retained(memory: Memory, status: str, warnings: list[str]) -> RetainAnswer:
    answer = RetainAnswer(id=memory.id, status=status, type=memory.type.value, event_date=memory.event_date)
    if memory.supersedes is not None:
        answer["superseded"] = memory.supersedes
    if warnings:
        answer["warnings"] = warnings
    return answer


def _identity(draft: Draft, given: When | None) -> bytes:
    """Equal for two drafts that are the same memory; dates count as given, not as read out of the text."""
    parts = [draft.content, draft.context, given.text if given else None, draft.session_id, draft.document_id]
    return hashlib.sha256(json.dumps(parts).encode()).digest()


def _span(when: When | None, now: datetime) -> Span:
    start, end = (when.start, when.end) if when else (now, now)
    return Span(_micros(start), _micros(end))


def _last_micro(when: When) -> int:
    """The end of a day, which is not part of it; of an instant, the one after it."""
    return _micros(when.end) + (when.start == when.end)


def _micros(moment: datetime) -> int:
    return (moment - _EPOCH) // timedelta(microseconds=1)
