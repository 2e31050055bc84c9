"""Recall's score: how well each memory answers a query, from vectors, words and what the memories say of themselves.

Pure: arrays in, arrays out. All rows (memories) of one call are one aligned set: the whole bank or any candidates of
it. docs/recall.md tells what each part is worth. Every number of `Weights` sits on a plateau: half or one and a half of
it moves recall by less than its standard error.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Rows = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Weights:
    """How much each part counts; 1.0 is a cosine of 1."""

    passage: float = 0.75  # share of the best passage's or sentence's cosine in the dense part; the rest is the first's
    words: float = 0.5  # a memory that covers all of the query's words
    neighbour_words: float = 0.4  # share of a word's score lent by the previous or next memory of the session
    answer: float = 0.4  # share of what the previous memory, when it asks, scores above `asked_above` of the best
    asked_above: float = 0.5  # without it every memory after a question gains, and plain statements fall behind
    session: float = 0.3  # share of the best score in the session: where one memory fits, its neighbours are about it
    literal: float = 1.0  # it holds what the query gives to the letter: an identifier's cosine is noise
    speaker: float = 0.3  # the query names the memory's label
    time_told: float = 0.1  # the query asks when, and the memory speaks of a time
    date: float = 0.3  # the query's date is the memory's
    asks: float = 0.06  # malus: the memory ends in a question
    only_asks: float = 0.1  # further malus: it is nothing but a short question


@dataclass(frozen=True, slots=True)
class Columns:
    """The memories to score; every array has one entry per row, `words` one line per term of the query.

    `previous` and `following` are rows of this same set, -1 for none; `session` is any number per session, -1 for none.
    """

    first: Floats  # cosine of the query with the first passage
    best: Floats  # with the best passage, or the best sentence of a short text
    words: Floats  # how much each term of the query says in the memory, in 0..1
    rarity: Floats  # the terms' idf over the bank
    previous: Rows
    following: Rows
    session: Rows
    asks: Bools
    only_asks: Bools
    tells_time: Bools
    literal: Floats  # what share of the query's identifiers, by rarity, stands in it
    named: Bools  # it is of or about somebody whom the query names
    near_date: Floats  # how near it is to the query's date


def score(columns: Columns, *, when: bool, weights: Weights = Weights()) -> Floats:
    """What each row scores for the query, float32 [n]; `when` says that it asks for a time."""
    w = weights
    if not len(columns.first):
        return np.zeros(0, np.float32)
    dense = _dense(columns, w)
    own = dense + w.words * covered(columns.words, columns.rarity)
    around = np.maximum(_lent(columns.words, columns.previous), _lent(columns.words, columns.following))
    total = dense + w.words * covered(np.maximum(columns.words, w.neighbour_words * around), columns.rarity)
    answers = _lent(columns.asks, columns.previous) > 0
    total += w.answer * answers * np.maximum(_lent(own, columns.previous) - w.asked_above * own.max(), 0)
    total += w.session * _best_of_session(own, columns.session)
    total += w.literal * columns.literal
    total += w.speaker * columns.named + w.date * columns.near_date
    if when:
        total += w.time_told * columns.tells_time
    final: Floats = (total - w.asks * columns.asks - w.only_asks * columns.only_asks).astype(np.float32)
    return final


def promise(columns: Columns, *, weights: Weights = Weights()) -> Floats:
    """What each row scores for itself, float32 [n]: enough to tell which ones are worth a closer look."""
    w = weights
    own = _dense(columns, w) + w.words * covered(columns.words, columns.rarity) + w.literal * columns.literal
    promising: Floats = own + w.speaker * columns.named + w.date * columns.near_date
    return promising


def covered(words: Floats, rarity: Floats) -> Floats:
    """What share of the query, by rarity, each row's words cover: float32 [n] in 0..1."""
    total = float(rarity.sum())
    share: Floats = rarity @ words / np.float32(total) if total else np.zeros(words.shape[1], np.float32)
    return share


def _dense(columns: Columns, w: Weights) -> Floats:
    dense: Floats = (1 - w.passage) * columns.first + w.passage * columns.best
    return dense


def _lent(values: npt.NDArray[np.generic], neighbour: Rows) -> Floats:
    """Each row's neighbour's value, 0 where there is none; along the last axis."""
    return np.where(neighbour >= 0, values[..., np.maximum(neighbour, 0)].astype(np.float32), np.float32(0))


def _best_of_session(own: Floats, session: Rows) -> Floats:
    """The best score in each row's session. A memory without one is a session of its own, so it lags nobody."""
    inside = session >= 0
    if not inside.any():
        return own
    _, places = np.unique(session, return_inverse=True)
    best = np.full(int(places.max()) + 1, -np.inf, np.float32)
    np.maximum.at(best, places, own)
    return np.where(inside, best[places], own)
