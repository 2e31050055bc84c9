"""What every ledger promises (see Ledger), checked against each of them: one factory a line in FACTORIES."""

from __future__ import annotations

import dataclasses
import itertools
import math
import sqlite3
import sys
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hindsight.embedding import Vectors
from hindsight.errors import AlreadySuperseded, HindsightError, InvalidArgument, LedgerUnavailable, MemoryNotFound
from hindsight.ledger import Changes, Conditions, Cut, EmbedderMark, Entry, Forgotten, Ledger, Span, Stats, Stored, Tie
from hindsight.ledger.sqlite import open_sqlite
from hindsight.record import JsonObject, Memory, MemoryType
from hindsight.retrieval.traits import traits_of

FACTORIES: dict[str, Callable[[Path], Ledger]] = {
    "sqlite": lambda folder: open_sqlite(folder / "ledger.db", "Team A"),
}
BOUND = 20.0
DIMENSION = 4
MARK = EmbedderMark("test-embedder", DIMENSION)
ALL = Conditions(superseded=True)


@pytest.fixture(params=FACTORIES)
def opener(request: pytest.FixtureRequest) -> Callable[[Path], Ledger]:
    return FACTORIES[request.param]


@pytest.fixture
def ledger(opener: Callable[[Path], Ledger], tmp_path: Path) -> Iterator[Ledger]:
    opened = opener(tmp_path)
    yield opened
    opened.close()


def unit_rows(count: int, seed: int = 1) -> Vectors:
    rows = np.random.default_rng(seed).standard_normal((count, DIMENSION))
    unit: Vectors = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
    return unit


def entry(
    text: str = "a fact",
    *,
    id: str | None = None,
    time: tuple[int, int] = (0, 0),
    cuts: Sequence[tuple[int, int]] | None = None,
    embedded: bool = True,
    **fields: Any,
) -> Entry:
    """An entry of its own identity, with a passage for all of its text unless `cuts` says otherwise."""
    memory = Memory(
        id=id or str(uuid.uuid4()),
        text=text,
        **{"type": MemoryType.WORLD, "context": "general", "retained_at": "2024-05-03T10:15:00.000000Z", **fields},
    )
    bounds = tuple(Cut(*each) for each in cuts or [(0, len(text))])
    vectors = unit_rows(len(bounds), seed=len(text)) if embedded else None
    return Entry(memory, traits_of(text), memory.id.encode(), Span(*time), bounds, vectors)


def put(ledger: Ledger, *entries: Entry) -> list[Stored]:
    """Retain entries, all of which are taken."""
    outcomes = ledger.retain(entries, MARK)
    assert all(isinstance(outcome, Stored) for outcome in outcomes), outcomes
    return [outcome for outcome in outcomes if isinstance(outcome, Stored)]


def found(ledger: Ledger, id: str) -> Memory:
    """A memory that is there."""
    there = ledger.find(id)
    assert there is not None
    return there[1]


def chain(ledger: Ledger, *ids: str) -> list[int]:
    """Memories that each supersede the one before; their numbers."""
    links = zip(ids, (None, *ids), strict=False)
    return [put(ledger, entry(id, id=id, supersedes=before))[0].number for id, before in links]


def links(ledger: Ledger, *ids: str) -> list[tuple[str | None, str | None]]:
    """What each memory supersedes and is superseded by."""
    memories = [found(ledger, id) for id in ids]
    return [(memory.supersedes, memory.superseded_by) for memory in memories]


# Retaining and finding


def test_a_memory_comes_back_as_it_was_given(ledger: Ledger) -> None:
    given = entry(
        "before\0after \U0010ffff 日本",
        type=MemoryType.OPINION,
        context="NUL\0too",
        event_date="2024-05-03T10:15:00.123456789Z",
        session_id="s",
        document_id="d",
        tags=("b", "a", "c,d", "\0"),
        metadata={"big": 10**40, "nested": {"list": [None, True, 1.5, -0.0, 1e300, {"": "\U0001f600"}]}, "empty": {}},
    )
    [stored] = put(ledger, given)

    assert (stored.memory, stored.known, stored.superseded) == (given.memory, False, None)
    assert ledger.find(given.memory.id) == (stored.number, given.memory)
    assert ledger.memories([stored.number]) == {stored.number: given.memory}
    assert ledger.known([given.identity, b"other"]) == {given.identity: given.memory}
    assert [memory for _, memory in ledger.page(ALL, newest=True, beyond=None, most=9)] == [given.memory]
    assert math.copysign(1, found(ledger, given.memory.id).metadata["nested"]["list"][3]) == -1


def test_an_empty_ledger_answers_with_nothing(ledger: Ledger) -> None:
    assert ledger.embedder() is None
    assert ledger.retain([], MARK) == []
    assert ledger.find("nope") is None
    assert ledger.known([]) == ledger.known([b"nope"]) == {}
    assert ledger.select(ALL).tolist() == []
    assert ledger.page(ALL, newest=True, beyond=None, most=9) == []
    assert list(ledger.export()) == []
    assert ledger.update(7, Changes(context="c")) is None
    assert ledger.forget([1, 2]) == Forgotten(0, (), ())
    assert dataclasses.replace(ledger.stats(), bytes=0) == Stats(0, 0, {}, {}, {}, None, None, 0)
    assert ledger.memories([1]) == {}
    assert ledger.cuts([1]) == {}
    assert [array.tolist() for array in (*ledger.vectors([1]), *ledger.vectors_from(0))] == [[], [], [], []]
    assert [array.tolist() for array in ledger.passages()] == [[], []]
    assert list(ledger.outlines()) == []
    assert ledger.late().tolist() == []
    assert ledger.passage_texts(0, 99) == ledger.unembedded(9) == []
    assert [array.tolist() for array in ledger.unindexed(9)] == [[], []]
    assert ledger.gone(9).tolist() == []
    assert ledger.word_blocks(1) == {}


def test_numbers_and_keys_ascend_in_the_order_of_retaining_and_are_never_used_again(ledger: Ledger) -> None:
    first, second = put(ledger, entry("one two", cuts=[(0, 4), (4, 7)]), entry("three"))
    ledger.forget([second.number])
    [third] = put(ledger, entry("four"))

    assert 0 < first.number < second.number < third.number
    assert 0 < first.keys[0] < first.keys[1] < second.keys[0] < third.keys[0]


def test_numbers_and_keys_are_not_used_again_after_reopening(opener: Callable[[Path], Ledger], tmp_path: Path) -> None:
    with closing(opener(tmp_path)) as ledger:
        [last] = put(ledger, entry())
        ledger.forget([last.number])
    with closing(opener(tmp_path)) as ledger:
        [next_one] = put(ledger, entry())

    assert (next_one.number > last.number, next_one.keys > last.keys) == (True, True)


def test_the_same_identity_again_is_known_and_nothing_is_written(ledger: Ledger) -> None:
    first = entry("tea", context="first")
    again = dataclasses.replace(first, memory=entry("tea", context="again").memory)
    put(ledger, first)

    assert ledger.retain([again, again], MARK) == [Stored(first.memory, known=True)] * 2
    assert ledger.stats().memories == 1


def test_the_same_identity_twice_in_one_commit_is_stored_once(ledger: Ledger) -> None:
    one = entry("tea")
    stored, known = put(ledger, one, one)

    assert (stored.known, known) == (False, Stored(one.memory, known=True))
    assert len(ledger.select(ALL)) == 1


def test_an_entry_that_is_refused_leaves_the_others_as_they_are(ledger: Ledger) -> None:
    old = entry("old", id="old")
    put(ledger, old)
    entries = [
        entry("before", id="before"),
        entry("lost", supersedes="nope"),
        entry("new", id="new", supersedes="old"),
        entry("late", supersedes="old"),
        entry("clash", id="before"),
        entry("after", id="after", supersedes="before"),
    ]
    entries[4] = dataclasses.replace(entries[4], identity=b"another")

    outcomes = ledger.retain(entries, MARK)

    assert [type(outcome) for outcome in outcomes] == [
        Stored, MemoryNotFound, Stored, AlreadySuperseded, InvalidArgument, Stored,
    ]  # fmt: skip
    assert [memory.text for _, memory in ledger.page(ALL, newest=False, beyond=None, most=99)] == [
        "old", "before", "new", "after",
    ]  # fmt: skip
    assert links(ledger, "old", "before", "new", "after") == [
        (None, "new"), (None, "after"), ("old", None), ("before", None),
    ]  # fmt: skip
    late = outcomes[3]
    assert isinstance(late, HindsightError)
    assert late.extra == {"superseded_by": "new"}
    assert "old is superseded by new already" in late.message


def test_the_embedder_of_the_first_vector_is_the_banks_embedder(ledger: Ledger) -> None:
    ledger.retain([entry(embedded=False)], EmbedderMark("never heard of", 9))
    assert ledger.embedder() is None
    put(ledger, entry())
    ledger.retain([entry()], EmbedderMark("another", 8))

    assert ledger.embedder() == MARK


# Superseding and forgetting


def test_a_chain_is_linked_both_ways(ledger: Ledger) -> None:
    numbers = chain(ledger, "a", "b", "c")

    assert links(ledger, "a", "b", "c") == [(None, "b"), ("a", "c"), ("b", None)]
    assert ledger.select(Conditions()).tolist() == numbers[2:]
    assert ledger.select(ALL).tolist() == numbers
    assert [superseded for *_, superseded in ledger.outlines()] == [True, True, False]


@pytest.mark.parametrize(
    ("gone", "left", "linked", "revived"),
    [
        ("a", "bc", [(None, "c"), ("b", None)], ""),
        ("b", "ac", [(None, None), (None, None)], "a"),
        ("c", "ab", [(None, "b"), ("a", None)], "b"),
        ("bc", "a", [(None, None)], "a"),
        ("cb", "a", [(None, None)], "a"),
        ("ab", "c", [(None, None)], ""),
        ("ac", "b", [(None, None)], "b"),
        ("abc", "", [], ""),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_forgetting_a_link_of_a_chain_clears_what_pointed_to_it(
    ledger: Ledger, gone: str, left: str, linked: list[tuple[str | None, str | None]], revived: str
) -> None:
    numbers = dict(zip("abc", chain(ledger, *"abc"), strict=True))
    forgotten = ledger.forget([numbers[id] for id in gone])

    assert links(ledger, *left) == linked
    assert (forgotten.count, forgotten.revived) == (len(gone), tuple(numbers[id] for id in revived))
    assert all(ledger.find(id) is None for id in gone)


def test_a_revived_memory_can_be_superseded_again(ledger: Ledger) -> None:
    _, successor = chain(ledger, "a", "b")
    ledger.forget([successor])
    put(ledger, entry("c", id="c", supersedes="a"))

    assert links(ledger, "a", "c") == [(None, "c"), ("a", None)]


def test_forgetting_takes_everything_that_a_memory_had(ledger: Ledger) -> None:
    kept, gone = put(ledger, entry("kept"), entry("one two", cuts=[(0, 4), (4, 7)], tags=("t",)))
    ledger.keep_word_block(0, 4095, 1, b"both")
    forgotten = ledger.forget([gone.number, 999])

    assert forgotten == Forgotten(1, gone.keys, ())
    assert ledger.find(gone.memory.id) is None
    assert ledger.known([gone.memory.id.encode()]) == {}
    assert ledger.cuts([*kept.keys, *gone.keys]) == {kept.keys[0]: Cut(0, 4)}
    assert ledger.vectors([*kept.keys, *gone.keys])[0].tolist() == list(kept.keys)
    assert ledger.passages()[0].tolist() == list(kept.keys)
    assert ledger.select(Conditions(tags=("t",), superseded=True)).tolist() == []
    assert ledger.stats().tags == {}
    assert ledger.word_blocks(1) == {}
    assert sorted(ledger.gone(9).tolist()) == list(gone.keys)


def test_what_was_forgotten_may_be_retained_again(ledger: Ledger) -> None:
    one = entry("tea")
    [first] = put(ledger, one)
    ledger.forget([first.number])
    [second] = put(ledger, one)

    assert (second.known, second.number > first.number) == (False, True)


# Conditions


CONTEXTS, TAGS, SESSIONS = ("c1", "c2"), ("t1", "t2", "t3"), (None, "s1", "s2")


@dataclasses.dataclass(frozen=True)
class Row:
    """A memory as the plain evaluator sees it."""

    type: MemoryType
    context: str
    tags: tuple[str, ...]
    session_id: str | None
    start: int
    length: int
    color: str | None
    superseded: bool


ROWS = st.lists(
    st.builds(
        Row,
        type=st.sampled_from(MemoryType),
        context=st.sampled_from(CONTEXTS),
        tags=st.lists(st.sampled_from(TAGS), unique=True).map(tuple),
        session_id=st.sampled_from(SESSIONS),
        start=st.integers(-4, 4),
        length=st.integers(0, 3),
        color=st.sampled_from((None, "red", "blue")),
        superseded=st.booleans(),
    ),
    max_size=12,
)
CONDITIONS = st.builds(
    Conditions,
    types=st.lists(st.sampled_from(MemoryType), unique=True, max_size=2).map(tuple),
    contexts=st.lists(st.sampled_from((*CONTEXTS, "never")), unique=True, max_size=2).map(tuple),
    tags=st.lists(st.sampled_from((*TAGS, "never")), unique=True, max_size=2).map(tuple),
    all_tags=st.booleans(),
    since=st.none() | st.integers(-5, 5),
    until=st.none() | st.integers(-5, 6),
    session_id=st.sampled_from((*SESSIONS, "never")),
    superseded=st.booleans(),
    predicate=st.sampled_from((None, lambda metadata: metadata.get("color") == "red")),
)


def fits(row: Row, asked: Conditions) -> bool:
    end = row.start + row.length
    return (
        (not asked.types or row.type in asked.types)
        and (not asked.contexts or row.context in asked.contexts)
        and (not asked.tags or (all if asked.all_tags else any)(tag in row.tags for tag in asked.tags))
        and (asked.since is None or end > asked.since or row.start >= asked.since)
        and (asked.until is None or row.start < asked.until)
        and (asked.session_id is None or row.session_id == asked.session_id)
        and (asked.superseded or not row.superseded)
        and (asked.predicate is None or asked.predicate({"color": row.color}))
    )


@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(rows=ROWS, asked=st.lists(CONDITIONS, min_size=1, max_size=6))
def test_every_combination_of_conditions_selects_what_meets_them_all(
    opener: Callable[[Path], Ledger], tmp_path: Path, rows: list[Row], asked: list[Conditions]
) -> None:
    folder = tmp_path / str(uuid.uuid4())
    folder.mkdir()
    with closing(opener(folder)) as ledger:
        numbers = [stored.number for stored in put(ledger, *(as_entry(row) for row in rows))]
        for conditions in asked:
            right = [number for number, row in zip(numbers, rows, strict=True) if fits(row, conditions)]

            assert ledger.select(conditions).tolist() == right
            assert [n for n, _ in ledger.page(conditions, newest=False, beyond=None, most=99)] == right
            assert [n for n, _ in ledger.page(conditions, newest=True, beyond=None, most=2)] == right[::-1][:2]


def as_entry(row: Row) -> Entry:
    return entry(
        "a fact",
        time=(row.start, row.start + row.length),
        type=row.type,
        context=row.context,
        tags=row.tags,
        session_id=row.session_id,
        metadata={"color": row.color},
        superseded_by="somebody" if row.superseded else None,
    )


def test_a_filter_that_leaves_2_of_100_gives_2(ledger: Ledger) -> None:
    put(ledger, *(entry(f"fact {number}", metadata={"rare": number % 50 == 7}) for number in range(100)))
    asked = Conditions(predicate=lambda metadata: metadata["rare"] is True)

    assert len(ledger.select(asked)) == 2
    assert [memory.text for _, memory in ledger.page(asked, newest=True, beyond=None, most=50)] == ["fact 57", "fact 7"]


def test_pages_go_through_everything_once_in_either_order_whatever_is_written_between(ledger: Ledger) -> None:
    numbers = [stored.number for stored in put(ledger, *(entry(f"fact {number}") for number in range(10)))]

    def through(newest: bool) -> Iterator[int]:
        beyond = None
        while page := ledger.page(ALL, newest=newest, beyond=beyond, most=3):
            yield from (number for number, _ in page)
            beyond = page[-1][0]
            if newest:
                put(ledger, entry("written meanwhile"))
            ledger.forget([number for number, _ in page])

    assert list(through(newest=True)) == numbers[::-1]
    assert [memory.text for _, memory in ledger.page(ALL, newest=False, beyond=None, most=9)] == [
        "written meanwhile"
    ] * 4
    assert len(list(through(newest=False))) == 4


# Updating


def test_an_update_changes_what_it_names_and_leaves_the_rest(ledger: Ledger) -> None:
    before = entry(
        "tea", id="a", tags=("old",), metadata={"k": 1}, session_id="s", time=(5, 6), event_date="2024-01-01"
    )
    [stored] = put(ledger, before)
    changes: list[tuple[Changes, JsonObject]] = [
        (Changes(), {}),
        (Changes(context="new"), {"context": "new"}),
        (Changes(type=MemoryType.OPINION), {"type": MemoryType.OPINION}),
        (Changes(event_date="1970-01-01", time=Span(0, 1)), {"event_date": "1970-01-01"}),
        (Changes(tags=("x", "y")), {"tags": ("x", "y")}),
        (Changes(tags=()), {"tags": ()}),
        (Changes(metadata={"n": 10**30}), {"metadata": {"n": 10**30}}),
        (Changes(metadata={}), {"metadata": {}}),
    ]
    right = before.memory
    for change, difference in changes:
        right = dataclasses.replace(right, **difference)

        assert ledger.update(stored.number, change) == right
        assert found(ledger, "a") == right


def test_conditions_go_by_what_was_updated(ledger: Ledger) -> None:
    [stored] = put(ledger, entry("tea", id="a", tags=("old",), time=(5, 5)))
    changes = Changes(event_date="1970-01-01", time=Span(0, 1), tags=("new",), context="c", metadata={"k": 1})
    ledger.update(stored.number, changes)

    hits = [
        Conditions(tags=("new",)), Conditions(until=1), Conditions(contexts=("c",)),
        Conditions(predicate=lambda metadata: metadata == {"k": 1}),
    ]  # fmt: skip
    misses = [Conditions(tags=("old",)), Conditions(since=1), Conditions(contexts=("general",))]
    assert [ledger.select(asked).tolist() for asked in hits] == [[stored.number]] * 4
    assert [ledger.select(asked).tolist() for asked in misses] == [[]] * 3
    assert ledger.stats().tags == {"new": 1}


def test_a_superseded_memory_can_be_updated_and_stays_superseded(ledger: Ledger) -> None:
    old, _ = chain(ledger, "a", "b")
    updated = ledger.update(old, Changes(context="history"))

    assert updated is not None
    assert (updated.context, updated.superseded_by) == ("history", "b")


def test_stats_count_by_value_and_tell_the_first_and_the_last_date(ledger: Ledger) -> None:
    put(
        ledger,
        entry("a", id="a", context="c1", tags=("x", "y"), event_date="2024-05-03"),
        entry("b", id="b", context="c1", tags=("x",), event_date="0001-01-01", supersedes="a"),
        entry("c", context="c2", type=MemoryType.OPINION, event_date="9999-12-31T23:59:59Z"),
        entry("d"),
    )
    stats = ledger.stats()

    assert dataclasses.replace(stats, bytes=0) == Stats(
        memories=4,
        superseded=1,
        types={"world": 3, "opinion": 1},
        contexts={"c1": 2, "c2": 1, "general": 1},
        tags={"x": 2, "y": 1},
        first_date="0001-01-01",
        last_date="9999-12-31T23:59:59Z",
        bytes=0,
    )
    assert list(stats.contexts) == ["c1", "c2", "general"]
    assert stats.bytes > 0


def test_the_ends_of_the_calendar_are_kept_to_the_microsecond(ledger: Ledger) -> None:
    first, last = -62_135_596_800_000_000, 253_402_300_799_999_999
    put(ledger, entry("first", time=(first, first)), entry("last", time=(last, last)))

    assert len(ledger.select(Conditions(since=first, until=first + 1))) == 1
    assert len(ledger.select(Conditions(since=first, until=last))) == 1
    assert len(ledger.select(Conditions(since=last, until=last + 1))) == 1


# Passages, vectors, words


def test_passages_keep_their_bounds_texts_and_vectors(ledger: Ledger) -> None:
    long = entry("日本 two three", cuts=[(0, 3), (3, 7), (7, 12)])
    first, second = put(ledger, long, entry("four"))
    assert long.vectors is not None

    keys, vectors = ledger.vectors([second.keys[0], *reversed(first.keys), 999])
    assert keys.tolist() == [*first.keys, *second.keys]
    assert np.array_equal(vectors[:3], long.vectors)
    assert vectors.dtype == np.float32
    assert vectors.shape == (4, DIMENSION)
    assert ledger.cuts(first.keys) == dict(zip(first.keys, long.cuts, strict=True))
    assert ledger.passage_texts(first.keys[1], second.keys[0]) == [
        (first.keys[1], "two "), (first.keys[2], "three"), (second.keys[0], "four"),
    ]  # fmt: skip
    assert [array.tolist() for array in ledger.passages()] == [
        [*first.keys, *second.keys],
        [first.number] * 3 + [second.number],
    ]
    assert ledger.vectors_from(first.keys[2])[0].tolist() == [first.keys[2], *second.keys]


def test_thousands_of_keys_may_be_asked_for_at_once(ledger: Ledger) -> None:
    stored = put(ledger, *(entry(f"fact {number}") for number in range(1_200)))
    numbers = [each.number for each in stored]
    keys = [each.keys[0] for each in stored]

    assert list(ledger.memories(numbers)) == numbers
    assert ledger.vectors(keys[::-1])[0].tolist() == keys
    assert len(ledger.known([each.memory.id.encode() for each in stored])) == 1_200
    assert len(ledger.forget(numbers).keys) == 1_200
    assert len(ledger.select(ALL)) == 0


def test_what_has_no_vector_is_told_until_it_gets_one(ledger: Ledger) -> None:
    late, _ = put(ledger, entry("one two", cuts=[(0, 4), (4, 7)], embedded=False), entry("three"))

    assert ledger.late().tolist() == list(late.keys)
    assert ledger.unembedded(9) == [(late.keys[0], "one "), (late.keys[1], "two")]
    assert ledger.unembedded(1) == [(late.keys[0], "one ")]
    assert ledger.unembedded(9, late.keys[0]) == [(late.keys[1], "two")]
    assert ledger.vectors(late.keys)[0].tolist() == []
    rows = unit_rows(3)
    ledger.embed([*late.keys, 999], rows, MARK)
    assert ledger.unembedded(9) == []
    assert ledger.late().tolist() == []
    assert np.array_equal(ledger.vectors(late.keys)[1], rows[:2])


def test_a_long_text_may_bring_the_vectors_of_its_first_pieces_only(ledger: Ledger) -> None:
    whole = entry("one two three", cuts=[(0, 4), (4, 8), (8, 13)])
    assert whole.vectors is not None
    [stored] = put(ledger, dataclasses.replace(whole, vectors=whole.vectors[:1]))

    assert ledger.vectors(stored.keys)[0].tolist() == list(stored.keys[:1])
    assert ledger.unembedded(9) == [(stored.keys[1], "two "), (stored.keys[2], "three")]


def test_what_is_kept_of_sentences_goes_with_its_memory(ledger: Ledger) -> None:
    one, two, none = put(
        ledger,
        dataclasses.replace(entry("One. Two."), sentences=b"1 2"),
        dataclasses.replace(entry("Three. Four."), sentences=b"3 4"),
        entry("five"),
    )
    keys = [each.keys[0] for each in (none, two, one)]

    assert ledger.sentences([*keys, 999]) == {one.keys[0]: b"1 2", two.keys[0]: b"3 4"}
    ledger.forget([one.number])
    assert ledger.sentences(keys) == {two.keys[0]: b"3 4"}


def test_late_vectors_bring_what_is_kept_of_sentences_but_not_for_what_was_forgotten(ledger: Ledger) -> None:
    late, gone = put(ledger, entry("One. Two.", embedded=False), entry("Three. Four.", embedded=False))
    ledger.forget([gone.number])
    ledger.embed([late.keys[0], gone.keys[0]], unit_rows(2), MARK, [(late.keys[0], b"1 2"), (gone.keys[0], b"3 4")])

    assert ledger.sentences([late.keys[0], gone.keys[0]]) == {late.keys[0]: b"1 2"}


def test_only_the_words_of_worded_pieces_are_told(ledger: Ledger) -> None:
    cuts = (Cut(0, 13, worded=False), Cut(0, 8), Cut(8, 13))
    [stored] = put(ledger, dataclasses.replace(entry("one two three", cuts=[(0, 1)] * 3), cuts=cuts))

    assert ledger.cuts(stored.keys) == dict(zip(stored.keys, cuts, strict=True))
    assert ledger.passage_texts(0, 99) == [(stored.keys[1], "one two "), (stored.keys[2], "three")]


def test_outlines_tell_traits_session_day_and_whether_superseded(ledger: Ledger) -> None:
    dated = entry("Ana: when was it?", id="a", session_id="s", event_date="2023-01-02T03:04:05Z")
    one, two = put(ledger, dated, entry("On 3 May 2024", supersedes="a"))

    assert list(ledger.outlines()) == [
        (one.number, traits_of("Ana: when was it?"), "s", "2023-01-02", True),
        (two.number, traits_of("On 3 May 2024"), None, "2024-05-03", False),
    ]
    assert traits_of("Ana: when was it?").label == "ana"


@pytest.mark.parametrize("dimension", [DIMENSION, DIMENSION + 1])
def test_a_bank_given_to_another_embedder_has_no_vectors_any_more(ledger: Ledger, dimension: int) -> None:
    stored = put(ledger, dataclasses.replace(entry("1"), sentences=b"1"), entry("2", embedded=False))
    ledger.indexed(stored[0].keys)
    mark = EmbedderMark("another", dimension)
    ledger.give_to(mark)

    assert ledger.embedder() == mark
    assert ledger.late().tolist() == [key for each in stored for key in each.keys]
    assert ledger.vectors_from(0)[0].tolist() == ledger.unindexed(9)[0].tolist() == []
    assert ledger.sentences(stored[0].keys) == {}
    assert ledger.gone(9).tolist() == []
    assert len(ledger.memories([each.number for each in stored])) == 2


def test_what_the_index_lacks_is_told_until_it_has_it(ledger: Ledger) -> None:
    one, late, three = (stored.keys[0] for stored in put(ledger, entry("1"), entry("2", embedded=False), entry("3")))

    assert ledger.unindexed(9)[0].tolist() == [one, three]
    assert ledger.unindexed(1)[0].tolist() == [one]
    ledger.indexed([one, 999])
    ledger.embed([late], unit_rows(1), MARK)
    assert ledger.unindexed(9)[0].tolist() == [late, three]
    ledger.unindex()
    assert ledger.unindexed(9)[0].tolist() == [one, late, three]


def test_what_was_forgotten_is_told_until_the_index_has_dropped_it(ledger: Ledger) -> None:
    stored = put(ledger, entry("indexed"), entry("on its way"), entry("unembedded", embedded=False), entry("kept"))
    keys = [each.keys[0] for each in stored]
    ledger.indexed(keys[:1])
    ledger.forget([each.number for each in stored[:3]])

    assert sorted(ledger.gone(9).tolist()) == keys[:3]
    assert len(ledger.gone(2)) == 2
    ledger.dropped([keys[0], keys[2]])
    assert ledger.gone(9).tolist() == [keys[1]]
    assert ledger.unindexed(9)[0].tolist() == keys[3:]


def test_an_index_that_starts_over_still_hears_of_what_was_forgotten(ledger: Ledger) -> None:
    # A step on its way to the index may hold a passage that was forgotten since: it must be taken out again.
    [stored] = put(ledger, entry())
    ledger.forget([stored.number])
    ledger.unindex()

    assert ledger.gone(9).tolist() == list(stored.keys)


def test_what_the_index_really_holds_is_set_right(ledger: Ledger) -> None:
    first, second, third, late = put(ledger, *(entry(id) for id in "abc"), entry("d", embedded=False))
    ledger.indexed([*first.keys, *second.keys])
    carried = ledger.carried()
    held = np.array([*first.keys, *third.keys, *late.keys, 10**9], np.int64)

    lost, strange = ledger.correct(held)

    assert (carried, ledger.carried()) == (2, 1)
    assert lost.tolist() == list(second.keys)
    assert strange.tolist() == [*late.keys, 10**9]
    assert ledger.gone(9).tolist() == [*late.keys, 10**9]
    assert ledger.unindexed(9)[0].tolist() == [*second.keys, *third.keys]


def test_an_index_that_holds_what_it_should_is_left_as_it_is(ledger: Ledger) -> None:
    [first] = put(ledger, entry())
    ledger.indexed(first.keys)

    lost, strange = ledger.correct(np.array(first.keys, np.int64))

    assert (lost.tolist(), strange.tolist(), ledger.carried(), ledger.gone(9).tolist()) == ([], [], 1, [])


def test_a_tie_is_kept_until_another_one_is_noted(opener: Callable[[Path], Ledger], tmp_path: Path) -> None:
    ties: list[Tie | None] = []
    for tie in (Tie("a", ("first", "second")), Tie("b")):
        with closing(opener(tmp_path)) as ledger:
            ties.append(ledger.tie())
            ledger.retie(tie)

    with closing(opener(tmp_path)) as ledger:
        assert [*ties, ledger.tie()] == [None, Tie("a", ("first", "second")), Tie("b")]


def test_word_blocks_are_kept_by_version_until_one_of_their_passages_is_forgotten(ledger: Ledger) -> None:
    [stored] = put(ledger, entry())
    key = stored.keys[0]
    ledger.keep_word_block(key, key + 9, 1, b"touched")
    ledger.keep_word_block(key + 10, key + 19, 1, b"untouched")
    ledger.keep_word_block(key + 20, key + 29, 1, b"replaced")
    ledger.keep_word_block(key + 20, key + 29, 2, b"newer")

    assert ledger.word_blocks(1) == {key: b"touched", key + 10: b"untouched"}
    assert ledger.word_blocks(2) == {key + 20: b"newer"}
    ledger.forget([stored.number])
    assert ledger.word_blocks(1) == {key + 10: b"untouched"}


# Export


def test_an_export_shows_everything_as_it_was_when_it_began(ledger: Ledger) -> None:
    entries = [entry(f"fact {number}" * 1000) for number in range(50)]
    stored = put(ledger, *entries)
    export = ledger.export()
    first = next(export)
    put(ledger, entry("later"))
    ledger.forget([stored[30].number])
    ledger.update(stored[40].number, Changes(context="later"))

    assert [first, *export] == [(each.memory, each.identity) for each in entries]


# Side by side


def test_a_commit_is_seen_at_once_while_another_reader_is_in_the_middle_of_a_long_read(ledger: Ledger) -> None:
    put(ledger, *(entry(f"fact {number}") for number in range(5)))
    reading, go = threading.Event(), threading.Event()

    def slow(metadata: JsonObject) -> bool:
        reading.set()
        return go.wait(BOUND)

    with ThreadPoolExecutor(1) as pool:
        asked = partial_page(ledger, Conditions(predicate=slow))
        long_read = pool.submit(asked)
        try:
            assert reading.wait(BOUND)
            for number in range(3):
                new = entry(f"new {number}")
                put(ledger, new)

                assert ledger.find(new.memory.id) is not None
                assert len(ledger.select(ALL)) == 6 + number
                assert ledger.known([new.identity])
        finally:
            go.set()
        assert len(long_read.result(BOUND)) == 5


def partial_page(ledger: Ledger, conditions: Conditions) -> Callable[[], list[tuple[int, Memory]]]:
    return lambda: ledger.page(conditions, newest=False, beyond=None, most=99)


def test_a_page_that_stops_half_way_holds_no_view_of_the_past(ledger: Ledger) -> None:
    for number in range(5):
        put(ledger, entry(f"fact {number}"))
        ledger.page(ALL, newest=True, beyond=None, most=1)

        assert len(ledger.select(ALL)) == number + 1


def test_readers_and_writers_in_many_threads_neither_fail_nor_lose_anything(ledger: Ledger) -> None:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(12) as pool:
            writes = [pool.submit(put, ledger, entry(f"fact {number}")) for number in range(100)]
            reads = [pool.submit(ledger.select, ALL) for _ in range(400)]
            stored = [write.result(BOUND)[0] for write in writes]
            sizes = [len(read.result(BOUND)) for read in reads]
    finally:
        sys.setswitchinterval(interval)

    assert sorted(ledger.select(ALL).tolist()) == sorted(each.number for each in stored)
    assert max(sizes) <= 100


def test_two_that_supersede_the_same_memory_at_once_are_told_apart(ledger: Ledger) -> None:
    put(ledger, entry("old", id="old"))
    with ThreadPoolExecutor(8) as pool:
        tries = [pool.submit(ledger.retain, [entry(f"n{n}", id=f"n{n}", supersedes="old")], MARK) for n in range(8)]
        outcomes = [each.result(BOUND)[0] for each in tries]

    [winner] = [outcome for outcome in outcomes if isinstance(outcome, Stored)]
    assert [type(outcome) for outcome in outcomes].count(AlreadySuperseded) == 7
    assert links(ledger, "old", winner.memory.id) == [(None, winner.memory.id), ("old", None)]
    assert len(ledger.select(ALL)) == 2


# On disk


def test_everything_is_there_after_reopening(opener: Callable[[Path], Ledger], tmp_path: Path) -> None:
    with closing(opener(tmp_path)) as ledger:
        chain(ledger, "a", "b")
        [late] = put(ledger, entry("late", embedded=False, tags=("t",)))
        ledger.keep_word_block(0, 9, 1, b"block")
        ledger.forget([late.number])
        before = everything(ledger)
    with closing(opener(tmp_path)) as ledger:
        assert everything(ledger) == before
        assert ledger.embedder() == MARK


def everything(ledger: Ledger) -> list[object]:
    return [
        list(ledger.export()),
        [array.tolist() for array in (*ledger.passages(), *ledger.vectors_from(0), ledger.gone(99))],
        ledger.word_blocks(1),
        dataclasses.replace(ledger.stats(), bytes=0),
    ]


def test_a_closed_ledger_says_so_in_our_own_words(opener: Callable[[Path], Ledger], tmp_path: Path) -> None:
    ledger = opener(tmp_path)
    put(ledger, entry())
    ledger.close()

    with pytest.raises(LedgerUnavailable):
        ledger.retain([entry()], MARK)


def test_sqlite_writes_ahead_and_waits_for_the_disk(tmp_path: Path) -> None:
    ledger = open_sqlite(tmp_path / "ledger.db", "Team A")
    with closing(ledger), closing(sqlite3.connect(tmp_path / "ledger.db")) as database:
        kept = database.execute("PRAGMA journal_mode").fetchone()
        for connection in (ledger._writer, *ledger._readers):
            assert connection.execute("PRAGMA synchronous").fetchone() == (2,)  # FULL
            assert connection.execute("PRAGMA secure_delete").fetchone() == (1,)

    assert kept == ("wal",)


def test_nothing_of_a_forgotten_memory_is_left_in_the_files_of_sqlite(tmp_path: Path) -> None:
    secret = entry(
        "the CANARY sings " * 400,
        context="CANARY context",
        tags=("CANARY tag",),
        metadata={"CANARY": "CANARY"},
        session_id="CANARY session",
        document_id="CANARY document",
    )
    changed = entry("changed", id="changed", context="CANARY before", metadata={"CANARY": 1})
    assert secret.vectors is not None
    ledger = open_sqlite(tmp_path / "ledger.db", "Team A")
    stored, other = put(ledger, *(entry(f"neighbour {n} " * 50) for n in range(40)), secret, changed)[-2:]
    ledger.keep_word_block(0, 4095, 1, b"hashes of CANARY words" * 100)
    ledger.select(ALL)
    assert found_in_files(tmp_path, b"CANARY", secret.vectors.tobytes()) == [True, True]
    ledger.update(other.number, Changes(context="after", metadata={}))
    ledger.forget([stored.number])
    ledger.close()
    with closing(sqlite3.connect(tmp_path / "ledger.db")) as database:
        database.execute("VACUUM")

    assert found_in_files(tmp_path, b"CANARY", secret.vectors.tobytes(), secret.identity) == [False, False, False]


def found_in_files(folder: Path, *needles: bytes) -> list[bool]:
    contents = [path.read_bytes() for path in folder.iterdir()]
    return [any(needle in content for content in contents) for needle in needles]


def test_a_ledger_from_before_sentences_were_kept_goes_on_with_them(tmp_path: Path) -> None:
    before = open_sqlite(tmp_path / "ledger.db", "Team A")
    [old] = put(before, entry("old"))
    before.close()
    with closing(sqlite3.connect(tmp_path / "ledger.db")) as database:
        database.executescript("DROP TABLE sentences; PRAGMA user_version = 1")
    ledger = open_sqlite(tmp_path / "ledger.db", "Team A")
    [new] = put(ledger, dataclasses.replace(entry("One. Two."), sentences=b"1 2"))

    assert ledger.sentences([*old.keys, *new.keys]) == {new.keys[0]: b"1 2"}
    assert ledger.vectors(old.keys)[0].tolist() == list(old.keys)
    ledger.close()


def test_a_bank_is_named_in_its_file(tmp_path: Path) -> None:
    for name in itertools.repeat("Team A", 2):
        open_sqlite(tmp_path / "ledger.db", name).close()
    with closing(sqlite3.connect(tmp_path / "ledger.db")) as database:
        names = database.execute("SELECT value FROM bank WHERE name = 'id'").fetchall()

    assert names == [("Team A",)]
