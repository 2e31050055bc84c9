"""Recall's parts as pure functions: terms, pieces, queries taken apart, the score, and what is kept in memory."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from datetime import date
from itertools import pairwise

import numpy as np
import pytest

from hindsight.embedding import Vectors
from hindsight.record import Traits
from hindsight.retrieval.asked import PartialDate, asked, nearness, within
from hindsight.retrieval.held import Held
from hindsight.retrieval.mix import Columns, promise, score
from hindsight.retrieval.passages import SHORT, pieces
from hindsight.retrieval.roster import Outline, Roster, top_keys
from hindsight.retrieval.sentences import MOST, best_cosines, packed, stops
from hindsight.retrieval.sketch import Sketch
from hindsight.retrieval.terms import terms
from hindsight.retrieval.traits import traits_of
from hindsight.retrieval.words import BLOCK, Block, WordIndex, coverage

EPOCH = date(1970, 1, 1)


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("ERR_CONN_RESET", "The log says ERR_CONN_RESET again."),
        ("err_conn_reset", "The log says ERR_CONN_RESET again."),
        ("E1234-5", "Code (E1234-5) came up."),
        ("don't", "We don’t ship on Fridays."),
        ("GB/s", "It reads 3 GB/s."),
        ("pre-edit", "The pre-edit run."),
        ("a:b", "The key is a:b, always."),
        ("x*", "It matches x* only."),
        ("--flag", 'Start it with "--flag".'),
        ("/etc/hosts", "Look into /etc/hosts."),
        ("C:\\temp\\a.txt", "It is in C:\\temp\\a.txt."),
        ("ann@example.org", "Write to <ann@example.org>."),
        ("天気", "今日は天気がいいです"),
        ("気", "今日は天気がいいです"),
        ("cafe", "The CAFÉ opens."),
        ("CAFÉ", "the cafe\u0301 opens"),
        ("straße", "STRASSE"),
        ("running", "She runs."),
        ("Ann's", "Ann keeps bees."),
        ("v1.2.3", "Since v1.2.3, all is well."),
    ],
)
def test_what_is_asked_for_literally_or_by_another_form_of_it_has_a_term_in_common(query: str, text: str) -> None:
    assert set(terms(query)) & set(terms(text))


@pytest.mark.parametrize(
    ("one", "other"), [("GB/s", "GB-s"), ("pre-edit", "pre/edit"), ("x*", "x+"), ("--flag", "-flag"), ("a:b", "a.b")]
)
def test_what_differs_by_a_sign_differs_by_a_term(one: str, other: str) -> None:
    assert set(terms(one)) != set(terms(other))


@pytest.mark.parametrize("text", ["", "   ", "the of and to", "?!", "\0"])
def test_a_text_without_content_words_has_no_terms(text: str) -> None:
    assert [term for term in terms(text) if term.isalnum()] == []


def word_ends(text: str) -> list[int]:
    return [place + 1 for place in range(len(text)) if text[place] != " " and text[place + 1 : place + 2] in ("", " ")]


def test_a_short_text_is_one_piece() -> None:
    assert pieces("word " * SHORT, 256, word_ends).passages == ()


def test_the_passages_of_a_long_text_are_all_of_it_and_end_with_sentences() -> None:
    text = "".join(f"Sentence number {number} has seven words. " for number in range(400))
    found = pieces(text, 256, word_ends)

    assert text[: found.whole[1]].count(" ") == 255
    assert "".join(text[start:end] for start, end in found.passages) == text
    assert all(text[:end].endswith(". ") for _, end in found.passages)


def sentences(text: str) -> list[str]:
    return [text[start:stop] for start, stop in pairwise((0, *stops(text)))]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Ann: I moved to Graz. Bo did not!\nWhy?", ["Ann: I moved to Graz. ", "Bo did not!\n", "Why?"]),
        ("It costs 3.50 at example.org. ", []),
        ("One sentence without an end", []),
        ("", []),
        ("No. " * 20 + "Yes.", ["No. "] * (MOST - 1) + ["No. " * (21 - MOST) + "Yes."]),
    ],
)
def test_a_text_of_several_sentences_is_parted_into_them(text: str, found: list[str]) -> None:
    assert sentences(text) == found


def unit_rows(count: int) -> Vectors:
    rows = np.random.default_rng(1).standard_normal((count, 64)).astype(np.float32)
    unit: Vectors = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return unit


def test_the_best_sentence_of_each_text_is_told_to_a_hundredth() -> None:
    rows = unit_rows(9)
    kept = [packed(rows[:2]), packed(rows[2:3]), packed(rows[3:])]
    cosines = rows @ rows[5]

    assert best_cosines(kept, rows[5]) == pytest.approx([cosines[:2].max(), cosines[2], 1], abs=0.01)
    assert best_cosines([], rows[5]).tolist() == []


def test_the_names_of_a_bank_leave_the_query_but_not_its_terms() -> None:
    taken = asked("What did Ann Lee's brother tell Bob?", {"ann lee", "bob"})

    assert taken.text == "What did brother tell?"
    assert taken.labels == {"ann lee", "bob"}
    assert {"ann", "lee", "bob", "brother", "tell"} <= set(taken.terms)


def test_a_query_of_nothing_but_names_keeps_them() -> None:
    assert asked("Ann?", {"ann"}).text == "Ann?"


@pytest.mark.parametrize(
    ("query", "dates"),
    [
        ("on 2023-05-07", [PartialDate(2023, 5, 7)]),
        ("on 7 May 2023", [PartialDate(2023, 5, 7)]),
        ("on May 7th", [PartialDate(None, 5, 7)]),
        ("in May 2023", [PartialDate(2023, 5, None)]),
        ("in March", [PartialDate(None, 3, None)]),
        ("may I march on?", []),
        ("in 2023", []),
    ],
)
def test_the_dates_that_a_query_names_are_read(query: str, dates: list[PartialDate]) -> None:
    assert list(asked(query, ()).dates) == dates


@pytest.mark.parametrize("query", ["When did she move?", "What year was it?", "how long did it take"])
def test_a_question_for_a_time_is_known(query: str) -> None:
    assert asked(query, ()).when
    assert not asked("What did she do when it rained?", ()).when


def days(*each: date) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array([(day - EPOCH).days for day in each], np.int64)


def test_a_memory_is_near_a_date_on_the_day_less_so_the_days_after_and_not_before() -> None:
    told = days(date(2023, 5, 7), date(2023, 5, 8), date(2023, 5, 12), date(2023, 5, 6), date(2022, 5, 7))

    assert nearness(PartialDate(2023, 5, 7), told).tolist() == pytest.approx([1, 0.6, 0.3, 0, 0])
    assert nearness(PartialDate(None, 5, 7), told).tolist() == pytest.approx([1, 0.6, 0.3, 0, 1])
    assert nearness(PartialDate(2023, 5, None), told).tolist() == pytest.approx([0.5, 0.5, 0.5, 0.5, 0])
    assert nearness(PartialDate(2023, 2, 29), told).tolist() == [0] * 5


def test_a_wider_window_says_less() -> None:
    told = days(date(2023, 5, 7), date(2021, 1, 1))
    windows = [
        (date(2023, 5, 7), date(2023, 5, 7)),
        (date(2023, 5, 1), date(2023, 5, 31)),
        (date(2023, 1, 1), date(2023, 12, 31)),
        (date(2001, 1, 1), date(2023, 12, 31)),
    ]
    graded = [within(first, last, told) for first, last in windows]

    assert [grades.tolist()[0] for grades in graded] == pytest.approx([1, 0.5, 0.15, 0])
    assert [grades.tolist()[1] for grades in graded] == [0] * 4


def columns(count: int, **given: object) -> Columns:
    """Memories about which nothing is known but what is given."""
    none, never = np.full(count, -1, np.int64), np.zeros(count, np.bool_)
    blank = Columns(
        first=np.zeros(count, np.float32),
        best=np.zeros(count, np.float32),
        words=np.zeros((1, count), np.float32),
        rarity=np.ones(1, np.float32),
        previous=none,
        following=none,
        session=none,
        asks=never,
        only_asks=never,
        tells_time=never,
        named=never,
        near_date=np.zeros(count, np.float32),
        literal=np.zeros(count, np.float32),
    )
    arrays = {name: np.array(value, getattr(blank, name).dtype) for name, value in given.items()}
    return dataclasses.replace(blank, **arrays)


def ranking(of: Columns, *, when: bool = False) -> list[int]:
    return [int(row) for row in np.argsort(-score(of, when=when), kind="stable")]


@pytest.mark.parametrize(
    ("given", "when"),
    [
        ({"first": [0.2, 0.4], "best": [0.2, 0.4]}, False),
        ({"best": [0.2, 0.4]}, False),
        ({"words": [[0.0, 1.0]]}, False),
        ({"named": [False, True]}, False),
        ({"near_date": [0, 1]}, False),
        ({"asks": [True, False]}, False),
        ({"tells_time": [False, True]}, True),
        ({"first": [0.9, 0.0], "literal": [0, 1]}, False),
    ],
    ids=["meaning", "best passage", "words", "speaker", "date", "no question", "time told", "identifier"],
)
def test_each_part_brings_the_memory_that_has_it_to_the_top(given: dict[str, object], when: bool) -> None:
    assert ranking(columns(2, **given), when=when) == [1, 0]


def test_what_promises_most_by_itself_is_looked_into_first() -> None:
    given = columns(3, first=[0.6, 0.5, 0.2], best=[0.6, 0.5, 0.2], named=[False, True, False], near_date=[0, 0, 1])

    assert np.argsort(-promise(given)).tolist() == [1, 0, 2]


def test_the_answer_after_a_question_that_fits_rises_above_a_stranger() -> None:
    asking = columns(3, first=[0.6, 0.2, 0.25], best=[0.6, 0.2, 0.25], asks=[True, False, False], previous=[-1, 0, -1])

    assert ranking(asking).index(1) < ranking(asking).index(2)


def test_a_time_that_is_told_counts_only_for_those_who_ask_for_one() -> None:
    tells = columns(2, tells_time=[False, True])

    assert score(tells, when=False).tolist() == [0, 0]


def test_nothing_scores_nothing() -> None:
    assert score(columns(0), when=False).tolist() == []


def held(count: int, most: int) -> Held:
    made = Held(most)
    made.add(np.arange(1, count + 1), np.eye(count, dtype=np.float32))
    return made


def test_vectors_are_held_until_the_index_has_them_and_the_newest_longer() -> None:
    kept = held(20, most=5)
    kept.settle(range(1, 19))

    assert sorted(kept.view()[0].tolist()) == [16, 17, 18, 19, 20]
    kept.shrink()
    assert sorted(kept.view()[0].tolist()) == [19, 20]
    kept.settle([19, 20])
    assert kept.view()[0].tolist() == []


def test_a_vector_that_is_dropped_is_held_no_more_and_the_others_keep_theirs() -> None:
    kept = held(4, most=10)
    kept.drop(np.array([2]))
    keys, vectors = kept.view()

    assert [int(row.argmax()) + 1 for row in vectors] == keys.tolist() == [1, 3, 4]


def test_what_the_index_has_lost_is_held_until_it_has_it_again() -> None:
    kept = held(20, most=5)
    kept.settle(range(1, 21))
    others = kept.lose(np.array([3, 18]))
    kept.add(others, np.eye(20, dtype=np.float32)[others - 1])
    waiting = kept.waiting
    kept.shrink()
    keys, vectors = kept.view()

    assert (others.tolist(), waiting) == ([3], 2)
    assert {int(key): int(row.argmax()) + 1 for key, row in zip(keys, vectors, strict=True)} == {3: 3, 18: 18}


def test_a_sketch_gives_cosines_to_a_hundredth_and_says_what_it_does_not_know() -> None:
    rows = unit_rows(500)
    sketch = Sketch()
    sketch.add(np.arange(1, 301), rows[:300])
    sketch.add(np.arange(400, 601), rows[299:])
    cosines, known = sketch.cosines(np.array([1, 300, 350, 600, 9999]), rows[0])

    assert known.tolist() == [True, True, False, True, False]
    assert cosines[known] == pytest.approx((rows[[0, 299, 499]] @ rows[0]).tolist(), abs=0.01)


def outline(number: int, session: str | None = None, label: str = "") -> Outline:
    return Outline(number, Traits(label, False, False, False), session, 0)


def roster(*outlines: Outline) -> Roster:
    """Memories with one passage each, whose key is their number."""
    made = Roster()
    numbers = np.array([each.number for each in outlines], np.int64)
    made.add(outlines, numbers, numbers)
    return made


def test_neighbours_are_those_of_the_same_session_and_close_ranks_when_one_is_forgotten() -> None:
    made = roster(outline(1, "a"), outline(2, "b"), outline(3, "a"), outline(4), outline(5, "a"))
    numbers = np.arange(1, 6)

    assert [each.tolist() for each in made.neighbours(numbers)] == [[0, 0, 1, 0, 3], [3, 0, 5, 0, 0]]
    made.remove([3], [3])
    assert [each.tolist() for each in made.neighbours(np.array([1, 5]))] == [[0, 1], [5, 0]]
    assert made.around(np.array([1])).tolist() == [1, 5]
    assert made.count() == 4


def test_a_passage_is_alone_when_its_memory_has_no_other_one() -> None:
    made = Roster()
    made.add([outline(1), outline(2), outline(3)], np.arange(1, 6), np.array([1, 2, 2, 2, 3]))

    assert made.alone(np.arange(1, 6)).tolist() == [True, False, False, False, True]
    made.remove([3], [5])
    assert made.alone(np.array([1, 5])).tolist() == [True, False]


def test_a_superseded_or_forgotten_memory_does_not_count() -> None:
    made = roster(outline(1), outline(2), outline(3))
    made.supersede(1)
    made.remove([2], [2])

    assert np.flatnonzero(made.counting(superseded=False)).tolist() == [3]
    assert np.flatnonzero(made.counting(superseded=True)).tolist() == [1, 3]


def test_a_label_is_a_name_once_three_memories_carry_it() -> None:
    made = roster(*(outline(number, label="ann") for number in (1, 2)))
    before = made.names()
    made.add([outline(3, label="ann")], np.array([3]), np.array([3]))

    assert (before, made.names()) == (frozenset(), frozenset({"ann"}))
    made.remove([1], [1])
    assert made.names() == frozenset()


def test_the_best_keys_are_those_with_the_highest_scores_above_nothing() -> None:
    scores = np.array([0, 3, 1, 0, 2, -1], np.float32)

    assert sorted(top_keys(scores, 2).tolist()) == [1, 4]
    assert sorted(top_keys(scores, 9).tolist()) == [1, 2, 4]


def index(texts: Sequence[str], first: int = 1) -> WordIndex:
    made = WordIndex()
    made.add(enumerate(texts, first))
    return made


def found(words: WordIndex, query: str, size: int) -> list[dict[int, float]]:
    """For each term of the query what it says in each passage."""
    hits = words.look_up(terms(query), np.ones(size, np.bool_))
    return [dict(zip(hit.keys.tolist(), hit.scores.round(5).tolist(), strict=True)) for hit in hits]


def test_rare_words_of_short_passages_say_most() -> None:
    words = index(["red apple", "red apple and a long tail of other matters", "red red pear", "red"])
    hits = words.look_up(["appl", "red", "absent"], np.ones(5, np.bool_))

    assert hits[0].keys.tolist() == [1, 2]
    assert hits[0].scores[0] > hits[0].scores[1]
    assert hits[2].rarity > hits[0].rarity > hits[1].rarity
    assert (coverage(hits, 5) <= 1).all()


def test_passages_that_do_not_count_are_not_found() -> None:
    alive = np.array([True, True, False])

    assert index(["apple", "apple"]).look_up(["appl"], alive)[0].keys.tolist() == [1]


def test_blocks_answer_the_same_while_they_grow_when_they_are_frozen_stored_and_joined() -> None:
    texts = [f"item {number} of lot{number % 97} and box{number % 1009}" for number in range(3 * BLOCK + 50)]
    size = len(texts) + 1
    queries = ["lot5 box7", "item 4095", "item 4096", f"item {len(texts) - 1}", "nothing"]
    grown = index(texts)
    before = [found(grown, query, size) for query in queries]
    frozen = grown.freeze(size - 1)
    after = [found(grown, query, size) for query in queries]
    again = WordIndex()
    for number, block in frozen:
        again.put(number, Block.from_bytes(block.as_bytes()))
    again.add((key, text) for key, text in enumerate(texts, 1) if key >= 3 * BLOCK)
    stored = [found(again, query, size) for query in queries]
    again.join()

    assert [number for number, _ in frozen] == [0, 1, 2]
    assert before == after == stored == [found(again, query, size) for query in queries]
    assert list(found(again, "item 4096", size)[1]) == [4097]


def test_what_is_added_after_blocks_are_joined_is_found_too() -> None:
    words = index(["apple"] * 2 * BLOCK, first=1)
    words.freeze(2 * BLOCK)
    words.join()
    words.add([(2 * BLOCK + 1, "apple")])

    assert len(found(words, "apple", 2 * BLOCK + 2)[0]) == 2 * BLOCK + 1


def test_a_block_without_some_passages_holds_no_word_of_theirs() -> None:
    [(_, block)] = index(["apple", "pear"] + ["plum"] * BLOCK).freeze(BLOCK)
    left = WordIndex()
    left.put(0, Block.from_bytes(block.without(np.array([1])).as_bytes()))

    assert list(found(left, "apple", BLOCK)[0]) == []
    assert list(found(left, "pear", BLOCK)[0]) == [2]


@pytest.mark.parametrize(
    ("text", "traits"),
    [
        ("Ann: Where were you?", Traits("ann", True, True, False)),
        ("Ann Lee: I was home. And you?", Traits("ann lee", True, False, False)),
        ("We met last week.", Traits("", False, False, True)),
        ("http://example.org is down", Traits("", False, False, False)),
    ],
)
def test_a_text_says_who_speaks_whether_it_asks_and_whether_it_tells_a_time(text: str, traits: Traits) -> None:
    assert traits_of(text) == traits
