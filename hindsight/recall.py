"""One recall: from a query to the memories that answer it best, over one bank's open store.

Each arm (vectors, words, dates) names candidates; with their neighbours they are scored together (retrieval/mix.py).
Of a bank whose vectors are all in memory every memory is a candidate, so nothing is missed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import date

import numpy as np

from hindsight.embedding import Vectors
from hindsight.ledger import Cut
from hindsight.record import Memory, RecallAnswer, Result
from hindsight.retrieval.asked import Asked, nearness, within
from hindsight.retrieval.budget import fitting
from hindsight.retrieval.mix import Columns, covered, promise, score
from hindsight.retrieval.roster import Roster, distinct, top_keys
from hindsight.retrieval.sentences import best_cosines
from hindsight.retrieval.terms import is_literal, terms
from hindsight.retrieval.words import Hits, Keys, Mask, Scores, coverage
from hindsight.store import Store

# Candidates of each arm, and how many of the best of them bring their neighbours along: with these the ten best agree
# with those of scoring everything in 98 of 100 places.
CANDIDATES, WORDED, ACCOMPANIED = 200, 800, 100
# Candidates whose sentences are looked at: with half or twice as many no figure moves by more than .003.
LOOKED_INTO = 70


@dataclass(frozen=True, slots=True)
class Question:
    """A query made ready.

    `window` are the days, both included, that it speaks of relative to now; `counting` says which memories may answer,
    bool by number; `vector` is the query's, None when only words count; `held` are the keys and vectors of the passages
    that the store held when it began.
    """

    asked: Asked
    window: tuple[date, date] | None
    counting: Mask
    vector: Vectors | None
    held: tuple[Keys, Vectors]


@dataclass(slots=True)
class _Passages:
    """What is known of passages, by key: `cosines` and `covered` float32, `known` and `alive` bool, all [top + 1].

    `owners` are their memories as they were when the recall began: others come and go while it works.
    """

    owners: Keys
    cosines: Scores
    known: Mask
    alive: Mask
    covered: Scores
    hits: list[Hits]


def answer(
    store: Store,
    question: Question,
    near: tuple[Keys, Scores],
    *,
    max_results: int,
    max_tokens: int,
    count_tokens: Callable[[str], int],
) -> RecallAnswer:
    """The memories that answer best, best first. Blocking.

    `near` are keys and cosines of the passages that the index finds nearest, beside those that are held.
    """
    passages = _passages(store, question)
    keys = _candidates(store, question, passages, near)
    rows = distinct(passages.owners[keys])
    columns = _columns(store.roster, question, passages, keys, rows)
    if question.vector is not None:
        columns = _looked_into(store, question.vector, columns, rows)
    scores = score(columns, when=question.asked.when)
    best = rows[np.lexsort((rows, -scores))[:max_results]]
    results = _results(store, best, _shown(passages, keys, best))
    fit = fitting(results, max_tokens, count_tokens)
    given = RecallAnswer(results=results[:fit])
    if fit < len(rows):
        given["more"] = True
    return given


def _passages(store: Store, question: Question) -> _Passages:
    owners = store.roster.owners_before(len(question.counting))
    alive = question.counting[owners]
    hits = store.roster.words.look_up(question.asked.terms, alive)
    size = len(alive)
    passages = _Passages(
        owners, np.zeros(size, np.float32), np.zeros(size, np.bool_), alive, coverage(hits, size), hits
    )
    if question.vector is not None:
        now = store.held.view()
        # Those held when the index was asked were not looked for there, and some may have been taken in since.
        for held, vectors in (now,) if now is question.held else (question.held, now):
            if len(held):
                there = held < size
                passages.cosines[held[there]] = (vectors @ question.vector)[there]
                passages.known[held[there]] = True
    return passages


def _candidates(store: Store, question: Question, passages: _Passages, near: tuple[Keys, Scores]) -> Keys:
    """The keys of the passages to be scored, ascending; their cosines are known then."""
    worded = top_keys(passages.covered, WORDED)
    if question.vector is None:
        return np.sort(worded)
    if not (passages.alive & ~passages.known).any():
        return np.flatnonzero(passages.alive)
    held = np.flatnonzero(passages.known & passages.alive)
    held = held[top_keys(passages.cosines[held] + 2, CANDIDATES)]
    passages.cosines[near[0]], passages.known[near[0]] = near[1], True
    found = np.concatenate([worded, held, near[0]])
    roster = store.roster
    numbers = np.concatenate([passages.owners[found], _of_that_time(roster, question)])
    keys = _known(store, question.vector, passages, np.concatenate([found, roster.first_keys(numbers)]))
    best = keys[top_keys(passages.cosines[keys] + passages.covered[keys] + 2, ACCOMPANIED)]
    rows = roster.around(passages.owners[best])
    rows = rows[rows < len(question.counting)]
    beside = roster.first_keys(rows[question.counting[rows]])
    return _known(store, question.vector, passages, np.concatenate([keys, beside]))


def _known(store: Store, vector: Vectors, passages: _Passages, keys: Keys) -> Keys:
    """Those of the passages that are alive, ascending, once each; their cosines are known then."""
    keys = distinct(keys)
    keys = keys[passages.alive[keys]]
    unknown = keys[~passages.known[keys]]
    passages.known[unknown] = True
    passages.cosines[unknown], sketched = store.sketch.cosines(unknown, vector)
    unknown = unknown[~sketched]
    missing, vectors = store.ledger.vectors(unknown.tolist())
    if len(missing):
        passages.cosines[missing] = vectors @ vector
    return keys


def _of_that_time(roster: Roster, question: Question) -> Keys:
    """Memories of the time that the query speaks of."""
    if not question.asked.dates and question.window is None:
        return np.empty(0, np.int64)
    numbers: Keys = np.flatnonzero(question.counting)
    best = top_keys(_near_date(roster, question, numbers), CANDIDATES)
    return np.asarray(numbers[best], np.int64)


def _near_date(roster: Roster, question: Question, rows: Keys) -> Scores:
    days, near = roster.days(rows), np.zeros(len(rows), np.float32)
    for wanted in question.asked.dates:
        near = np.maximum(near, nearness(wanted, days))
    return near if question.window is None else np.maximum(near, within(*question.window, days))


def _columns(roster: Roster, question: Question, passages: _Passages, keys: Keys, rows: Keys) -> Columns:
    previous, following = roster.neighbours(rows)
    place = np.full(max(len(question.counting), int(following.max(initial=0)) + 1), -1, np.int64)
    place[rows] = np.arange(len(rows))
    of_key = place[passages.owners[keys]]
    best = np.full(len(rows), -1, np.float32)
    np.maximum.at(best, of_key, passages.cosines[keys])
    words = _words(passages, place, len(rows))
    rarity = np.array([hit.rarity for hit in passages.hits], np.float32)
    literal = np.array([is_literal(term) for term in question.asked.terms], np.bool_)
    asks, only_asks, tells_time = roster.traits(rows)
    return Columns(
        first=passages.cosines[roster.first_keys(rows)],
        best=best,
        words=words,
        rarity=rarity,
        previous=place[previous],
        following=place[following],
        session=roster.sessions(rows),
        asks=asks,
        only_asks=only_asks,
        tells_time=tells_time,
        literal=covered((words[literal] > 0).astype(np.float32), rarity[literal]),
        named=_named(roster, question.asked, words, rows),
        near_date=_near_date(roster, question, rows),
    )


def _looked_into(store: Store, vector: Vectors, columns: Columns, rows: Keys) -> Columns:
    """The columns, where the most promising memories have the cosine of their best sentence if it is known."""
    likely = top_keys(promise(columns) + 2, LOOKED_INTO)  # + 2: it leaves out what is not above 0, as a promise may be
    keys = store.roster.first_keys(rows[likely]).tolist()
    sentences = store.ledger.sentences(keys)
    there = [place for place, key in zip(likely.tolist(), keys, strict=True) if key in sentences]
    best = columns.best.copy()
    best[there] = best_cosines([sentences[key] for key in keys if key in sentences], vector)
    return replace(columns, best=best)


def _words(passages: _Passages, place: Keys, size: int) -> Scores:
    """How much each term says in each row: float32 [terms, size], of a memory's passages the one that says most."""
    words = np.zeros((len(passages.hits), size), np.float32)
    for line, hit in zip(words, passages.hits, strict=True):
        at = place[passages.owners[hit.keys]]
        np.maximum.at(line, at[at >= 0], hit.scores[at >= 0])
    return words


def _named(roster: Roster, asked: Asked, words: Scores, rows: Keys) -> Mask:
    """Whether each row is of or about somebody the query names: by its label, or by its words where it has none.

    A statement about Ann must not rank below everything that Ann ever said because "Ann" has left the vector.
    """
    if not asked.labels:
        return np.zeros(len(rows), np.bool_)
    names = {term for label in asked.labels for term in terms(label)}
    mentioned = (words[[term in names for term in asked.terms]] > 0).any(axis=0)
    carries, labelled = roster.labelled(rows, asked.labels)
    return carries | (~labelled & mentioned)


def _shown(passages: _Passages, keys: Keys, best: Keys) -> dict[int, int]:
    """For each of the best memories the passage that answers best."""
    owners = passages.owners[keys]
    fits = passages.cosines[keys] + passages.covered[keys]
    return {number: int(keys[owners == number][fits[owners == number].argmax()]) for number in best.tolist()}


def _results(store: Store, best: Keys, shown: dict[int, int]) -> list[Result]:
    memories = store.ledger.memories(best.tolist())
    firsts = store.roster.first_keys(best).tolist()
    inside = {key for key in shown.values() if key not in firsts}
    beside = {key for each in inside for key in range(each - 1, each + 2)}
    cuts = store.ledger.cuts(sorted({*firsts, *beside}))
    return [
        _result(memories[number], _excerpt(memories[number].text, cuts, first, shown[number]))
        for number, first in zip(best.tolist(), firsts, strict=True)
        if number in memories and first in cuts
    ]


def _excerpt(text: str, cuts: dict[int, Cut], first: int, shown: int) -> str:
    """The whole text when one vector holds it; else its start, or the passage shown with those beside it."""
    if cuts[first].end == len(text) or shown == first or shown not in cuts:
        return text[: cuts[first].end]
    before, after = cuts.get(shown - 1), cuts.get(shown + 1)
    start = before.start if before and before.worded else cuts[shown].start
    # The piece after a memory's last one is the next memory's, and starts at 0.
    end = after.end if after and after.start == cuts[shown].end else cuts[shown].end
    return text[start:end]


def _result(memory: Memory, excerpt: str) -> Result:
    result = Result(
        id=memory.id,
        text=excerpt,
        type=memory.type.value,
        context=memory.context,
        event_date=memory.event_date,
    )
    if len(excerpt) < len(memory.text):
        result["truncated"] = True
    if memory.superseded_by is not None:
        result["superseded_by"] = memory.superseded_by
    return result
