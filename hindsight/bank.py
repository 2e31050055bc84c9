"""A bank: one team's or agent's memory, where texts, vectors and records meet."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Generator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, tzinfo
from functools import partial
from itertools import accumulate, chain, islice
from typing import NotRequired, ParamSpec, TypedDict, TypeVar, cast

import numpy as np

from hindsight.drafts import Draft, Identified, Understood, identify, identity_of, read_when, understand
from hindsight.embedding import Vectors
from hindsight.embedding.batching import BatchingEmbedder
from hindsight.errors import (
    DeadlineExceeded,
    EmbedderUnavailable,
    HindsightError,
    IndexUnavailable,
    InvalidArgument,
    MemoryNotFound,
    TextRefused,
)
from hindsight.filters import Predicate
from hindsight.ledger import Changes, Conditions, EmbedderMark, Entry, Numbers, Span, Stats, Stored
from hindsight.recall import CANDIDATES, Question, answer
from hindsight.record import JsonObject, Memory, MemoryRecord, MemoryType, RecallAnswer, RetainAnswer, as_record
from hindsight.retrieval.asked import asked
from hindsight.retrieval.words import Keys, Scores
from hindsight.store import Store
from hindsight.telemetry import NO_LAG, Lag
from hindsight.understanding.dates import span_in

_NOTHING: tuple[Keys, Scores] = np.empty(0, np.int64), np.empty(0, np.float32)
NO_STATS = Stats(0, 0, {}, {}, {}, None, None, 0)
_OTHER_EMBEDDER = (
    "this bank's vectors come from another embedder, so only words can be searched; the operator's hindsight reindex"
    " brings meaning back"
)
_AGAIN = "to make it current again, retain it with supersedes set to that id"
# Seconds that a filter may take over a bank's metadata before its call is given up.
_PATIENCE = 5.0
# Pieces of one text that are embedded before the retain is acknowledged, half a second's work; of a longer one the rest
# is found by its words at once and by its meaning soon after.
_AT_ONCE = 160
# Characters of text in a page, unless one memory alone has more; and how many are read at a time to find out.
_PAGE, _STEP = 16_000_000, 50
_ID = 128  # characters of an id that came with a call, at most, in what is said about it
_FIRST, _LAST = datetime(1, 1, 3, tzinfo=UTC), datetime(9999, 12, 29, tzinfo=UTC)
P = ParamSpec("P")
ResultT = TypeVar("ResultT")


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
    predicate: Predicate | None = None
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


Found = Understood | RetainAnswer | HindsightError  # what a draft turned out to be


@dataclass(frozen=True, slots=True)
class Prepared:
    """Drafts on their way into a bank, in their order: an entry to be stored, or the answer where there is one."""

    outcomes: Sequence[Entry | RetainAnswer | HindsightError]
    warnings: list[str]


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
        [answer] = await self.commit(await self.prepare(await self.understand([draft])))
        if isinstance(answer, HindsightError):
            raise answer
        return answer

    async def understand(self, drafts: Sequence[Draft]) -> list[Found]:
        """For each draft what it says, if it is not known yet, or the answer."""
        return await asyncio.to_thread(self._understand_all, drafts, self._parts.now())

    async def prepare(self, found: Sequence[Found]) -> Prepared:
        """Embed what was understood; nothing is stored yet."""
        fresh = [each for each in found if isinstance(each, Understood)]
        vectors, warnings = await self._embed(fresh)
        entries = iter([each.entry(its) for each, its in zip(fresh, vectors, strict=True)])
        outcomes = [next(entries) if isinstance(each, Understood) else each for each in found]
        return Prepared(outcomes, warnings)

    async def commit(self, prepared: Prepared) -> list[RetainAnswer | HindsightError]:
        """Store what was prepared, in its order; returns when it is on disk and found by the next recall."""
        stored = iter(await self._stored([each for each in prepared.outcomes if isinstance(each, Entry)]))
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
                if identity != identity_of(memory.text, *fields):
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
        held = store.held.view()
        question = Question(asking, self._window(query.text), counting, vector, held)
        try:
            near = _NOTHING if vector is None else await store.nearest(vector, counting, CANDIDATES, held[0])
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
        when = None if edit.event_date is None else read_when("event_date", edit.event_date, self._parts.zone)
        changes = Changes(
            context=edit.context,
            type=edit.type,
            event_date=when.text if when else None,
            time=Span.between(when.start, when.end) if when else None,
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

    @property
    def lag(self) -> Lag:
        """What of its memories is still to be done."""
        return NO_LAG if self._store is None else self._store.lag

    @property
    def frozen(self) -> bool:
        """Whether it can only be read, since its files can't be written now: to write, open it anew."""
        return self._store is not None and self._store.frozen

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

    async def _stored(self, entries: Sequence[Entry]) -> list[Stored | BaseException]:
        if self._store is None and all(entry.memory.supersedes is not None for entry in entries):
            return [_no_older(entry.memory) for entry in entries]  # no bank comes into being for what it would refuse
        try:
            store = await self._created()
        except HindsightError as error:
            return [error] * len(entries)
        return await asyncio.gather(*map(store.retain, entries), return_exceptions=True)

    async def _created(self) -> Store:
        async with self._creating:
            if self._store is None:
                self._store = await self._create()
            return self._store

    def _understand_all(self, drafts: Sequence[Draft], now: datetime) -> list[Found]:
        # A microsecond apart, so that the times tell the order too.
        moments = [now + timedelta(microseconds=place) for place in range(len(drafts))]
        zone, embedder = self._parts.zone, self._parts.embedder
        identified = [_or_error(identify, draft, moment, zone) for draft, moment in zip(drafts, moments, strict=True)]
        identities = [each.identity for each in identified if isinstance(each, Identified)]
        known = {} if self._store is None else self._store.ledger.known(identities)
        return [
            each
            if isinstance(each, HindsightError)
            else _retained(known[each.identity], "known", [])
            if each.identity in known
            else _or_error(understand, each, zone, embedder)
            for each in identified
        ]

    async def _embed(self, understood: Sequence[Understood]) -> tuple[Sequence[Sequence[Vectors] | None], list[str]]:
        """For each one the vectors of its passages, each with those of its parts."""
        if not understood:
            return [], []
        nothing = [None] * len(understood)
        if not self._semantic():
            return nothing, [_OTHER_EMBEDDER]
        texts = [each.parted(_AT_ONCE) for each in understood]
        try:
            found = iter(await self._parts.embedder.embed_parts(list(chain.from_iterable(texts))))
        except TextRefused as error:
            return nothing, [f"{error.message}; what it refuses is found by its words alone, the rest by meaning soon"]
        except EmbedderUnavailable as error:
            return nothing, [f"{error.message}; the memory is stored and found by its words, by meaning later"]
        if not self._semantic():  # its dimension is known by now
            return nothing, [_OTHER_EMBEDDER]
        return [list(islice(found, len(its))) for its in texts], []

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

    def _semantic(self) -> bool:
        return self._store is None or self._store.semantic

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

    def _span(self, name: str, text: str | None) -> Span | None:
        """The days or the instant that an argument gives; an instant's end is the microsecond after it."""
        if text is None:
            return None
        when = read_when(name, text, self._parts.zone)
        span = Span.between(when.start, when.end)
        return Span(span.start, max(span.end, span.start + 1))

    def _conditions(self, narrowing: Narrowing) -> Conditions:
        since, until = self._span("since", narrowing.since), self._span("until", narrowing.until)
        if since and until and since.start >= until.end:
            raise InvalidArgument("since must not be after until", argument="since")
        return Conditions(
            types=narrowing.types,
            contexts=narrowing.contexts,
            tags=narrowing.tags,
            all_tags=narrowing.all_tags,
            since=since.start if since else None,
            until=until.end if until else None,
            session_id=narrowing.session_id,
            superseded=narrowing.superseded,
            predicate=narrowing.predicate and _hurried(narrowing.predicate),
        )


def _retained(memory: Memory, status: str, warnings: list[str]) -> RetainAnswer:
    answer = RetainAnswer(id=memory.id, status=status, type=memory.type.value, event_date=memory.event_date)
    if memory.supersedes is not None:
        answer["superseded"] = memory.supersedes
    if memory.superseded_by is not None:
        gone = f"this memory is known but superseded by {memory.superseded_by}, so recall does not show it; {_AGAIN}"
        warnings = [*warnings, gone]
    if warnings:
        answer["warnings"] = warnings
    return answer


def _no_memory(id: str) -> MemoryNotFound:
    return MemoryNotFound(f"this bank has no memory {id[:_ID]}")


def _no_older(memory: Memory) -> MemoryNotFound:
    named = (memory.supersedes or "")[:_ID]
    return MemoryNotFound(f"supersedes names {named}, and this bank has no such memory; nothing was stored")


def _late(passages: int) -> str:
    return f"{passages:,} passages wait for their vectors and are found by words alone until then"


def _or_error(call: Callable[P, ResultT], *given: P.args, **named: P.kwargs) -> ResultT | HindsightError:
    try:
        return call(*given, **named)
    except HindsightError as error:
        return error


def _hurried(predicate: Predicate) -> Predicate:
    """The predicate, until it has taken too long over all that it was asked: a thread can't be stopped from outside."""
    end = time.monotonic() + _PATIENCE

    def judge(metadata: JsonObject) -> bool:
        if time.monotonic() > end:
            raise DeadlineExceeded(
                "the filter takes too long on this bank", next_action="Call again with a simpler one."
            )
        return predicate(metadata)

    return judge


def _clamped(moment: datetime) -> datetime:
    """A moment that every zone can hold; windows may be open to the ends of time."""
    return max(_FIRST, min(_LAST, moment))
