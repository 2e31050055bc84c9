"""A bank: one team's or agent's memory, where texts, vectors and records meet."""

from __future__ import annotations

import asyncio
import hashlib
import json
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, tzinfo

import numpy as np

from hindsight.embedding import Vectors
from hindsight.embedding.batching import BatchingEmbedder
from hindsight.errors import EmbedderUnavailable, InvalidArgument
from hindsight.ledger import Cut, Entry, Span
from hindsight.record import JsonObject, Memory, MemoryType, RecallAnswer, Result, RetainAnswer
from hindsight.retrieval.fusion import best_memories, hybrid
from hindsight.retrieval.passages import passages
from hindsight.retrieval.roster import top_keys, union
from hindsight.retrieval.words import Keys, Scores
from hindsight.store import Store
from hindsight.understanding.category import category_of
from hindsight.understanding.dates import When, date_in, parse_when

# Passages that each arm hands to the fusion: what fits a query by both is nearly always among the first of one.
_CANDIDATES = 200
_NONE: Keys = np.empty(0, np.int64)
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
class Query:
    """What a caller looks for."""

    text: str
    max_results: int = 10


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
        """The memories that fit best by meaning and words, best first. By words alone, with a warning, when need be."""
        if self._store is None:
            return {"results": []}
        vector, warnings = await self._embed_query(self._store, query.text)
        near = _NONE if vector is None else await self._store.nearest(vector, _CANDIDATES)
        results = await asyncio.to_thread(self._search, self._store, query, vector, near)
        return {"results": results, "warnings": warnings} if warnings else {"results": results}

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
        given = None if draft.event_date is None else self._when(draft.event_date)
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

    def _when(self, text: str) -> When:
        try:
            return parse_when(text, self._parts.zone)
        except ValueError as error:
            raise InvalidArgument(f"event_date: {error}", argument="event_date") from error

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

    def _search(self, store: Store, query: Query, vector: Vectors | None, near: Keys) -> list[Result]:
        alive = store.roster.alive(superseded=False)
        words = store.roster.words.score(query.text, alive)
        keys = union(near[near < len(alive)], top_keys(words, _CANDIDATES))
        keys = keys[alive[keys]]
        scores = hybrid(_cosines(store, keys, vector), words[keys])
        best = best_memories(keys, store.roster.numbers()[keys], scores, query.max_results)
        return _results(store, best)


def _cosines(store: Store, keys: Keys, vector: Vectors | None) -> Scores:
    """The cosine of each passage with the query, float32 [n]; 0 for one without a vector yet."""
    cosines = np.zeros(len(keys), np.float32)
    if vector is not None:
        found, vectors = store.ledger.vectors(keys.tolist())
        cosines[np.searchsorted(keys, found)] = vectors @ vector if len(found) else 0
    return cosines


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


def _micros(moment: datetime) -> int:
    return (moment - _EPOCH) // timedelta(microseconds=1)
