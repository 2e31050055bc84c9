"""Conditions judged in memory come to what the ledger's own `select` comes to, also after changes."""

from __future__ import annotations

import tempfile
import uuid
from contextlib import closing
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from hindsight.facets import Facets
from hindsight.ledger import Changes, Conditions, Cut, EmbedderMark, Entry, Facet, Span
from hindsight.ledger.sqlite import open_sqlite
from hindsight.record import JsonObject, Memory, MemoryType
from hindsight.retrieval.traits import traits_of

WORDS = ("a", "b", "ç")
TAGS = st.lists(st.sampled_from(WORDS), max_size=3).map(tuple)
SPANS = st.tuples(st.integers(0, 5), st.integers(0, 2)).map(lambda pair: Span(pair[0], sum(pair)))
FACETS = st.builds(
    Facet,
    type=st.sampled_from(MemoryType),
    context=st.sampled_from(WORDS),
    session_id=st.sampled_from((None, *WORDS)),
    tags=TAGS,
    metadata=st.sampled_from([{}, {"n": 1}, {"n": "ç", "m": [2.5]}]),
    time=SPANS,
)


def has_n(metadata: JsonObject) -> bool:
    return "n" in metadata


CONDITIONS = st.builds(
    Conditions,
    types=st.lists(st.sampled_from(MemoryType), max_size=2).map(tuple),
    contexts=TAGS,
    tags=TAGS.map(lambda tags: tuple(dict.fromkeys(tags))),
    all_tags=st.booleans(),
    since=st.none() | st.integers(0, 7),
    until=st.none() | st.integers(0, 7),
    session_id=st.sampled_from((None, *WORDS)),
    superseded=st.just(True),
    predicate=st.sampled_from((None, has_n)),
)


def entry(facet: Facet) -> Entry:
    memory = Memory(
        id=str(uuid.uuid4()),
        text="a fact",
        type=facet.type,
        context=facet.context,
        retained_at="2024-05-03T10:15:00.000000Z",
        session_id=facet.session_id,
        tags=facet.tags,
        metadata=facet.metadata,
    )
    return Entry(memory, traits_of("a fact"), memory.id.encode(), facet.time, (Cut(0, 6),), None)


@settings(max_examples=60, deadline=None)
@given(st.lists(FACETS, max_size=8), st.lists(FACETS, max_size=3), st.lists(CONDITIONS, min_size=1, max_size=6))
def test_memory_and_ledger_agree_on_which_memories_meet_conditions(
    first: list[Facet], then: list[Facet], asked: list[Conditions]
) -> None:
    with tempfile.TemporaryDirectory() as folder, closing(open_sqlite(Path(folder) / "ledger.db", "team")) as ledger:
        ledger.retain([entry(facet) for facet in first], EmbedderMark("none", 1))
        facets = Facets()
        for number, facet in ledger.facets():
            facets.note(number, facet)
        for number, facet in enumerate(then[: len(first)], 1):  # the first ones become what `then` says
            changed = Changes(context=facet.context, type=facet.type, tags=facet.tags, metadata=facet.metadata)
            memory = ledger.update(number, changed)
            assert memory is not None
            kept = Facet(facet.type, facet.context, memory.session_id, facet.tags, facet.metadata, facets.time(number))
            facets.note(number, kept)
        size = len(first) + 1
        agreed = [
            np.flatnonzero(facets.fitting(each, size)[1:]) + 1 == ledger.select(each)
            if facets.fitting(each, size)[1:].sum() == len(ledger.select(each))
            else np.array([False])
            for each in asked
        ]

    assert all(each.all() for each in agreed)
