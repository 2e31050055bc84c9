"""What conditions ask of a bank's memories, as arrays in memory, so that a recall with a filter costs little more.

It answers as the ledger's `select` does. Built from the ledger at the first need, kept in step by the store.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from hindsight.ledger import Conditions, Facet, Span
from hindsight.record import JsonObject

Mask = npt.NDArray[np.bool_]
Column = npt.NDArray[np.int64]


class Facets:
    """By memory number. One thread changes it at a time; readers may work beside it."""

    def __init__(self) -> None:
        self._types, self._contexts, self._sessions, self._metadata = _Coded(), _Coded(), _Coded(), _Coded()
        self._start, self._end = np.zeros(64, np.int64), np.zeros(64, np.int64)
        self._tags = _Tags()

    def note(self, number: int, facet: Facet) -> None:
        """Take in a memory, or what it is now."""
        for coded, text in (
            (self._types, facet.type.value),
            (self._contexts, facet.context),
            (self._sessions, facet.session_id),
            (self._metadata, json.dumps(facet.metadata)),
        ):
            coded.note(number, text)
        self._tags.note(number, facet.tags)
        self._set_time(number, facet.time)

    def fitting(self, conditions: Conditions, size: int) -> Mask:
        """Which memories meet the conditions, but for being superseded: bool [size], by number."""
        fits = np.ones(size, np.bool_)
        if conditions.types:
            fits &= self._types.among([type.value for type in conditions.types], size)
        if conditions.contexts:
            fits &= self._contexts.among(conditions.contexts, size)
        if conditions.session_id is not None:
            fits &= self._sessions.among([conditions.session_id], size)
        if conditions.tags:
            fits &= self._tags.fitting(conditions.tags, size, all_of=conditions.all_tags)
        start, end = _sized(self._start, size), _sized(self._end, size)
        if conditions.since is not None:
            # An instant at `since` counts, a day that ends there does not.
            fits &= (end > conditions.since) | (start >= conditions.since)
        if conditions.until is not None:
            fits &= start < conditions.until
        if conditions.predicate is not None:
            judged = self._metadata.texts(np.unique(_sized(self._metadata.column, size, -1)[fits]))
            fits &= self._metadata.among([text for text in judged if conditions.predicate(_loaded(text))], size)
        return fits

    def time(self, number: int) -> Span:
        """The time of a memory."""
        return Span(int(self._start[number]), int(self._end[number]))

    def _set_time(self, number: int, time: Span) -> None:
        self._start, self._end = _roomy(self._start, number), _roomy(self._end, number)
        self._start[number], self._end[number] = time.start, time.end


class _Coded:
    """A column of texts, each kept once; -1 for none."""

    def __init__(self) -> None:
        self.column: Column = np.full(64, -1, np.int64)
        self._codes: dict[str, int] = {}
        self._texts: list[str] = []

    def note(self, number: int, text: str | None) -> None:
        self.column = _roomy(self.column, number, -1)
        self.column[number] = -1 if text is None else self._code(text)

    def among(self, texts: Sequence[str], size: int) -> Mask:
        wanted = [self._codes[text] for text in texts if text in self._codes]
        return np.isin(_sized(self.column, size, -1), wanted)

    def texts(self, codes: Column) -> list[str]:
        return [self._texts[code] for code in codes.tolist() if code >= 0]

    def _code(self, text: str) -> int:
        code = self._codes.get(text)
        if code is None:
            code = self._codes[text] = len(self._texts)
            self._texts.append(text)
        return code


class _Tags:
    """Pairs of a tag and a memory, -1 for a pair that is no more."""

    def __init__(self) -> None:
        self._codes: dict[str, int] = {}
        self._pairs: Column = np.full((2, 64), -1, np.int64)
        self._size = 0
        self._tagged: set[int] = set()

    def note(self, number: int, tags: Sequence[str]) -> None:
        if number in self._tagged:
            self._pairs[0, self._pairs[1] == number] = -1
        for tag in set(tags):
            if self._size == self._pairs.shape[1]:
                self._pairs = np.concatenate([self._pairs, np.full_like(self._pairs, -1)], axis=1)
            self._pairs[:, self._size] = self._codes.setdefault(tag, len(self._codes)), number
            self._size += 1
            self._tagged.add(number)

    def fitting(self, tags: Sequence[str], size: int, *, all_of: bool) -> Mask:
        wanted = [self._codes[tag] for tag in set(tags) if tag in self._codes]
        codes, numbers = self._pairs
        numbers = numbers[np.isin(codes, wanted)]
        least = len(set(tags)) if all_of else 1
        return np.bincount(numbers[numbers < size], minlength=size) >= least


def _roomy(column: Column, number: int, blank: int = 0) -> Column:
    """The column, or a larger copy that has a place for `number`."""
    if number < len(column):
        return column
    larger = np.full(max(number + 1, 2 * len(column)), blank, np.int64)
    larger[: len(column)] = column
    return larger


def _sized(column: Column, size: int, blank: int = 0) -> Column:
    return column[:size] if size <= len(column) else _roomy(column, size - 1, blank)[:size]


def _loaded(text: str) -> JsonObject:
    loaded: JsonObject = json.loads(text)
    return loaded
