"""A bank: one team's or agent's memory, where texts, vectors and records meet."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import uuid
from collections.abc import Awaitable, Callable, Generator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta, tzinfo
from functools import partial
from itertools import accumulate
from typing import NotRequired, ParamSpec, TypedDict, TypeVar, cast

import numpy as np

from hindsight.embedding import Vectors
from hindsight.embedding.batching import BatchingEmbedder
from hindsight.errors import EmbedderUnavailable, HindsightError, IndexUnavailable, InvalidArgument, MemoryNotFound
from hindsight.ledger import Changes, Conditions, Cut, EmbedderMark, Entry, Numbers, Span, Stats, Stored
from hindsight.recall import CANDIDATES, Question, answer
from hindsight.record import JsonObject, Memory, MemoryRecord, MemoryType, RecallAnswer, RetainAnswer, as_record
from hindsight.retrieval.asked import asked
from hindsight.retrieval.passages import pieces
from hindsight.retrieval.traits import traits_of
from hindsight.retrieval.words import Keys, Scores
from hindsight.store import Store
from hindsight.understanding.category import category_of
from hindsight.understanding.dates import date_in, span_in
from hindsight.understanding.when import When, parse_when

_NOTHING: tuple[Keys, Scores] = np.empty(0, np.int64), np.empty(0, np.float32)
NO_STATS = Stats(0, 0, {}, {}, {}, None, None, 0)
_OTHER_EMBEDDER = (
    "this bank's vectors come from another embedder, so only words can be searched; the operator's hindsight reindex"
    " brings meaning back"
)
# Pieces of one text that are embedded before the retain is acknowledged, half a second's work; of a longer one the rest
# is found by its words at once and by its meaning soon after.
_AT_ONCE = 160
# Characters of text in a page, unless one memory alone has more; and how many are read at a time to find out.
_PAGE, _STEP = 16_000_000, 50
_ID = 128  # characters of an id that came with a call, at most, in what is said about it
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST, _LAST = datetime(1, 1, 3, tzinfo=UTC), datetime(9999, 12, 29, tzinfo=UTC)
P = ParamSpec("P")
ResultT = TypeVar("ResultT")


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """What a memory brings along from an earlier life; what is None it gets anew.

    `retained_at` is as `parse_when` reads it. `identity` is set where the draft's own would be another. `dated` says
    that the draft's event_date stands even when it is None.
    """

    id: str | None = None
    retained_at: str | None = None
    identity: bytes | None = None
    dated: bool = False


NEW = Origin()


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
    origin: Origin = NEW


class Exported(MemoryRecord):
    """A memory as it leaves in an export; `identity`, in hex, only where the rest does not tell it."""

    identity: NotRequired[str]


class Reindexing(TypedDict):
    """How far a bank is on its way to an embedder: how many of its passages wait for their vectors."""

    embedder: str
    passages: int
    waiting: int


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
class Prepared:
    """Drafts on their way into a bank, in their order: an entry to be stored, or the answer where there is one."""

    outcomes: Sequence[Entry | RetainAnswer | HindsightError]
    warnings: list[str]


@dataclass(frozen=True, slots=True)
class _Identified:
    """A draft with its date, as given, its identity, and when it came."""

    draft: Draft
    given: When | None
    identity: bytes
    now: datetime


@dataclass(frozen=True, slots=True)
class _Understood:
    """A draft made ready to be stored, but for its vectors."""

    memory: Memory
    identity: bytes
    time: Span
    cuts: tuple[Cut, ...]

    def entry(self, vectors: Vectors | None) -> Entry:
        """It with its vectors, or without."""
        traits = traits_of(self.memory.text)
        return Entry(self.memory, traits, self.identity, self.time, self.cuts, vectors)


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
        if self._store is None:
            self._check_first(draft)
        [answer] = await self.commit(await self.prepare([draft]))
        if isinstance(answer, HindsightError):
            raise answer
        return answer

    async def prepare(self, drafts: Sequence[Draft]) -> Prepared:
        """Look up, understand and embed; nothing is stored yet. What is known is not embedded again."""
        now = self._parts.now()
        store = await self._created()
        found = await asyncio.to_thread(self._understand_all, store, drafts, now)
        fresh = {each.identity: each for each in found if isinstance(each, _Understood)}
        vectors, warnings = await self._embed(store, list(fresh.values()))
        of = dict(zip(fresh, vectors, strict=True))
        outcomes = [each.entry(of[each.identity]) if isinstance(each, _Understood) else each for each in found]
        return Prepared(outcomes, warnings)

    async def commit(self, prepared: Prepared) -> list[RetainAnswer | HindsightError]:
        """Store what was prepared, in its order; returns when it is on disk and found by the next recall."""
        store = self._held()
        entries = [each for each in prepared.outcomes if isinstance(each, Entry)]
        stored = iter(await asyncio.gather(*map(store.retain, entries), return_exceptions=True))
        answers: list[RetainAnswer | HindsightError] = []
        for each in prepared.outcomes:
            outcome = next(stored) if isinstance(each, Entry) else each
            if isinstance(outcome, Stored):
                outcome = _retained(outcome.memory, "known" if outcome.known else "stored", prepared.warnings)
            elif isinstance(outcome, BaseException) and not isinstance(outcome, HindsightError):
                raise outcome
            answers.append(outcome)
        return answers

    def export(self) -> Generator[Exported, None, None]:
        """All memories, oldest first, as they were when the first was asked for. Blocking; close it if cut short."""
        if self._store is None:
            return
        with contextlib.closing(self._store.ledger.export()) as found:
            for memory, identity in found:
                exported = cast(Exported, as_record(memory))
                fields = memory.context, memory.event_date, memory.session_id, memory.document_id, memory.supersedes
                if identity != _identity(memory.text, *fields):
                    exported["identity"] = identity.hex()
                yield exported

    async def recall(self, query: Query) -> RecallAnswer:
        """The memories that fit best by meaning and words, best first. By words alone, with a warning, when need be.

        Raises InvalidArgument for a date that is none.
        """
        store, conditions = self._store, self._conditions(query.narrowing)
        if store is None:
            return {"results": []}
        counting = await store.counting(conditions)
        asking = asked(query.text, store.roster.names())
        vector, warnings = await self._embed_query(store, asking.text)
        question = Question(asking, self._window(query.text), counting, vector)
        try:
            near = _NOTHING if vector is None else await store.nearest(vector, counting, CANDIDATES)
        except IndexUnavailable as error:
            near, warnings = _NOTHING, [*warnings, error.message]
        found = await asyncio.to_thread(self._answer, store, question, near, query)
        if warnings:
            found["warnings"] = warnings
        return found

    async def get(self, id: str) -> Memory:
        """The whole memory. Raises MemoryNotFound."""
        return (await self._find(id))[1]

    async def page(
        self, narrowing: Narrowing, *, newest: bool, beyond: int | None, most: int
    ) -> tuple[list[Memory], int | None]:
        """Up to `most` memories in the order of retaining or against it, and where the next page goes on, if any does.

        Fewer when their texts have more than sixteen million characters.

        `beyond` is where the page before this one said that this one goes on. Raises InvalidArgument.
        """
        conditions = self._conditions(narrowing)
        if self._store is None:
            return [], None
        ask = partial(self._store.ledger.page, conditions, newest=newest)
        found: list[tuple[int, Memory]] = []
        size, whole = 0, False
        while len(found) <= most and size <= _PAGE and not whole:
            step = min(_STEP, most + 1 - len(found))
            part = await asyncio.to_thread(ask, beyond=found[-1][0] if found else beyond, most=step)
            size += sum(len(memory.text) for _, memory in part)
            whole = len(part) < step
            found += part
        sizes = accumulate(len(memory.text) for _, memory in found[:most])
        fit = max(1, sum(size <= _PAGE for size in sizes))
        return [memory for _, memory in found[:fit]], found[fit - 1][0] if fit < len(found) else None

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
        number, _ = await self._find(id)
        changed = await self._held().update(number, changes)
        if changed is None:
            raise _no_memory(id)
        return changed

    async def forget(self, id: str) -> None:
        """Remove a memory for good. Raises MemoryNotFound."""
        number, _ = await self._find(id)
        if not (await self._held().forget([number])).count:  # another call was faster
            raise _no_memory(id)

    async def forget_all(self, narrowing: Narrowing) -> int:
        """Remove for good all memories that fit; returns how many."""
        numbers = await self._select(narrowing)
        return (await self._held().forget(numbers.tolist())).count if len(numbers) else 0

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

    async def reindex(self) -> Reindexing:
        """Give the bank to the embedder in use, if it is another one's; called again, tells how far that is.

        Words are searched meanwhile, and texts are not touched. Raises EmbedderUnavailable, and leaves the bank as it
        was, when the embedder does not work.
        """
        store, embedder = self._store, self._parts.embedder
        if store is None:
            return {"embedder": embedder.name, "passages": 0, "waiting": 0}
        if not (store.semantic and embedder.dimension):
            await embedder.embed_query("ready")
            await store.reindex()
        return {"embedder": embedder.name, "passages": store.roster.count(), "waiting": store.late}

    async def aclose(self) -> None:
        """Finish what is under way and let go of the files."""
        if self._store is not None:
            await self._store.aclose()

    def _check_first(self, draft: Draft) -> None:
        """Refuse now what the ledger would refuse, so that no bank comes into being for it."""
        if draft.event_date is not None:
            self._when("event_date", draft.event_date)
        if draft.supersedes is not None:
            named = draft.supersedes[:_ID]
            raise MemoryNotFound(f"supersedes names {named}, and this bank has no such memory; nothing was stored")

    async def _created(self) -> Store:
        async with self._creating:
            if self._store is None:
                self._store = await self._create()
            return self._store

    def _understand_all(
        self, store: Store, drafts: Sequence[Draft], now: datetime
    ) -> list[_Understood | RetainAnswer | HindsightError]:
        # A microsecond apart, so that the times tell the order too.
        moments = [now + timedelta(microseconds=place) for place in range(len(drafts))]
        identified = [_or_error(self._identify, draft, moment) for draft, moment in zip(drafts, moments, strict=True)]
        known = store.ledger.known([each.identity for each in identified if isinstance(each, _Identified)])
        return [
            each
            if isinstance(each, HindsightError)
            else _retained(known[each.identity], "known", [])
            if each.identity in known
            else _or_error(self._understand, each)
            for each in identified
        ]

    def _identify(self, draft: Draft, now: datetime) -> _Identified:
        given = None if draft.event_date is None else self._when("event_date", draft.event_date)
        date = given.text if given else None
        own = draft.origin.identity or _identity(
            draft.content, draft.context, date, draft.session_id, draft.document_id, draft.supersedes
        )
        return _Identified(draft, given, own, now)

    def _understand(self, identified: _Identified) -> _Understood:
        draft, origin = identified.draft, identified.draft.origin
        now = identified.now if origin.retained_at is None else self._when("retained_at", origin.retained_at).start
        when = identified.given or (None if origin.dated else date_in(draft.content, now, self._parts.zone))
        memory = Memory(
            id=origin.id or str(uuid.uuid4()),
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
        found = pieces(draft.content, embedder.max_tokens, embedder.token_ends)
        cuts = (Cut(*found.whole, worded=not found.passages), *(Cut(*bounds) for bounds in found.passages))
        return _Understood(memory, identified.identity, _span(when, now), cuts)

    def _when(self, name: str, text: str) -> When:
        try:
            return parse_when(text, self._parts.zone)
        except ValueError as error:
            raise InvalidArgument(f"{name}: {error}", argument=name) from error

    async def _embed(
        self, store: Store, understood: Sequence[_Understood]
    ) -> tuple[Sequence[Vectors | None], list[str]]:
        """The vectors of each one's passages."""
        if not understood:
            return [], []
        nothing = [None] * len(understood)
        if not store.semantic:
            return nothing, [_OTHER_EMBEDDER]
        parts = [each.cuts[:_AT_ONCE] for each in understood]
        texts = [
            each.memory.text[cut.start : cut.end] for each, cuts in zip(understood, parts, strict=True) for cut in cuts
        ]
        try:
            vectors = await self._parts.embedder.embed(texts)
        except EmbedderUnavailable as error:
            return nothing, [f"{error.message}; the memory is stored and found by its words, by meaning later"]
        if not store.semantic:  # its dimension is known by now
            return nothing, [_OTHER_EMBEDDER]
        return np.split(vectors, np.cumsum([len(cuts) for cuts in parts])[:-1]), []

    async def _embed_query(self, store: Store, text: str) -> tuple[Vectors | None, list[str]]:
        if not store.semantic:
            return None, [_OTHER_EMBEDDER]
        try:
            vector = await self._parts.embedder.embed_query(text)
        except EmbedderUnavailable as error:
            return None, [f"{error.message}; these results were found by words alone"]
        if not store.semantic:  # its dimension is known by now
            return None, [_OTHER_EMBEDDER]
        return vector, [_late(store.late)] if store.behind else []

    def _held(self) -> Store:
        assert self._store is not None  # a memory was found in it
        return self._store

    async def _find(self, id: str) -> tuple[int, Memory]:
        found = None if self._store is None else await asyncio.to_thread(self._store.ledger.find, id)
        if found is None:
            raise _no_memory(id)
        return found

    async def _select(self, narrowing: Narrowing) -> Numbers:
        conditions = self._conditions(narrowing)
        if self._store is None:
            return np.empty(0, np.int64)
        return await asyncio.to_thread(self._store.ledger.select, conditions)

    def _window(self, query: str) -> tuple[date, date] | None:
        """The days, both included, that a query speaks of relative to now."""
        span = span_in(query, self._parts.now(), self._parts.zone)
        if span is None:
            return None
        start, end = (_clamped(moment).astimezone(self._parts.zone) for moment in span)
        return start.date(), (end - timedelta(microseconds=1)).date()

    def _answer(self, store: Store, question: Question, near: tuple[Keys, Scores], query: Query) -> RecallAnswer:
        return answer(
            store,
            question,
            near,
            max_results=query.max_results,
            max_tokens=query.max_tokens,
            count_tokens=lambda text: len(self._parts.embedder.token_ends(text)),
        )

    def _conditions(self, narrowing: Narrowing) -> Conditions:
        since = None if narrowing.since is None else _micros(self._when("since", narrowing.since).start)
        until = None if narrowing.until is None else _last_micro(self._when("until", narrowing.until))
        if since is not None and until is not None and since >= until:
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


def _retained(memory: Memory, status: str, warnings: list[str]) -> RetainAnswer:
    answer = RetainAnswer(id=memory.id, status=status, type=memory.type.value, event_date=memory.event_date)
    if memory.supersedes is not None:
        answer["superseded"] = memory.supersedes
    if warnings:
        answer["warnings"] = warnings
    return answer


def _no_memory(id: str) -> MemoryNotFound:
    return MemoryNotFound(f"this bank has no memory {id[:_ID]}")


def _late(passages: int) -> str:
    return f"{passages:,} passages wait for their vectors and are found by words alone until then"


def _or_error(call: Callable[P, ResultT], *given: P.args, **named: P.kwargs) -> ResultT | HindsightError:
    try:
        return call(*given, **named)
    except HindsightError as error:
        return error


def _identity(
    content: str,
    context: str,
    date: str | None,
    session_id: str | None,
    document_id: str | None,
    supersedes: str | None,
) -> bytes:
    """Equal for two that are the same memory; `date` counts as given, not as read out of the text."""
    parts = [content, context, date, session_id, document_id]
    if supersedes is not None:  # a correction is a memory of its own: what became true again must be stored again
        parts.append(supersedes)
    return hashlib.sha256(json.dumps(parts).encode()).digest()


def _span(when: When | None, now: datetime) -> Span:
    start, end = (when.start, when.end) if when else (now, now)
    return Span(_micros(start), _micros(end))


def _clamped(moment: datetime) -> datetime:
    """A moment that every zone can hold; windows may be open to the ends of time."""
    return max(_FIRST, min(_LAST, moment))


def _last_micro(when: When) -> int:
    """The end of a day, which is not part of it; of an instant, the one after it."""
    return _micros(when.end) + (when.start == when.end)


def _micros(moment: datetime) -> int:
    return (moment - _EPOCH) // timedelta(microseconds=1)
