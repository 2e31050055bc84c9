"""What recall keeps in memory of a bank: its memories' traits and places in their sessions, its passages, its words.

Memories are arrays indexed by number, passages arrays indexed by key, so a recall looks at the whole bank at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from hindsight.record import Traits
from hindsight.retrieval.words import Keys, Mask, Scores, WordIndex

ArrayT = TypeVar("ArrayT", bound=npt.NDArray[np.generic])
Flags = npt.NDArray[np.int8]

# A label counts as a name of the bank's from here on: one "Reminder: ..." among statements must not make it one.
_NAME_AFTER = 3
_ASKS, _ONLY_ASKS, _TELLS_TIME = 1, 2, 4


@dataclass(frozen=True, slots=True)
class Outline:
    """A memory as the roster takes it in; `day`, of its date or else of its retaining, counts from 1970."""

    number: int
    traits: Traits
    session_id: str | None
    day: int
    superseded: bool = False


class Roster:
    """One bank's memories and passages. One thread changes it at a time; readers may work beside it."""

    def __init__(self) -> None:
        self.words = WordIndex()
        self.top = 0  # the highest passage key
        self._owner: Keys = np.zeros(64, np.int64)  # memory number of each passage, 0 for none
        self._first: Keys = np.zeros(64, np.int64)  # a memory's first passage, 0 when the memory is gone
        self._superseded: Mask = np.zeros(64, np.bool_)
        self._flags: Flags = np.zeros(64, np.int8)
        self._label: Keys = np.zeros(64, np.int64)  # code of the label, 0 for none
        self._session: Keys = np.full(64, -1, np.int64)
        self._previous: Keys = np.zeros(64, np.int64)
        self._following: Keys = np.zeros(64, np.int64)
        self._day: Keys = np.zeros(64, np.int64)
        self._labels: dict[str, int] = {"": 0}
        self._label_counts: Counter[int] = Counter()
        self._sessions: dict[str, int] = {}
        self._last_of: dict[int, int] = {}

    def add(self, outlines: Sequence[Outline], keys: Keys, owners: Keys) -> None:
        """Take in memories, numbers ascending, with all of their passages: keys int64 [n] ascending, owners [n]."""
        if not outlines or not len(keys):
            return
        self._make_room(outlines[-1].number, int(keys[-1]))
        self._note(outlines)
        firsts, places = np.unique(owners, return_index=True)
        self._first[firsts] = keys[places]
        self._owner[keys] = owners
        self.top = int(keys[-1])

    def supersede(self, number: int, *, superseded: bool = True) -> None:
        """From now on the memory counts only for those who ask for superseded ones; or, again, for all."""
        self._superseded[number] = superseded

    def redate(self, number: int, day: int) -> None:
        """The memory has another date, in days since 1970."""
        self._day[number] = day

    def remove(self, numbers: Sequence[int], keys: Sequence[int]) -> None:
        """These memories and all of their passages are gone; their neighbours are now each other's."""
        for number in numbers:
            if not self._first[number]:  # gone already
                continue
            before, after = int(self._previous[number]), int(self._following[number])
            self._following[before], self._previous[after] = after, before
            if self._last_of.get(int(self._session[number])) == number:
                self._last_of[int(self._session[number])] = before
            self._label_counts[int(self._label[number])] -= 1
            self._first[number] = 0
        self._following[0] = self._previous[0] = 0
        self._owner[list(keys)] = 0

    def names(self) -> frozenset[str]:
        """The labels by which the bank's memories name who speaks."""
        return frozenset(
            text for text, code in list(self._labels.items()) if code and self._label_counts[code] >= _NAME_AFTER
        )

    def counting(self, *, superseded: bool) -> Mask:
        """Which memories there are, bool by number, with the superseded ones if `superseded`."""
        counts = self._first > 0
        if not superseded:
            counts &= ~self._superseded[: len(counts)]
        return counts

    def passages(self, counting: Mask) -> Mask:
        """Which passages belong to memories that count, bool [top + 1] by key; an array of the caller's own."""
        return counting[self.owners_before(len(counting))]

    def count(self) -> int:
        """How many passages there are."""
        return int(np.count_nonzero(self.owners()))

    def owners(self) -> Keys:
        """The memory of each passage, int64 [top + 1] by key; 0, which never counts, where there is none."""
        return self._owner[: self.top + 1]

    def owners_before(self, number: int) -> Keys:
        """A copy of `owners` without the memories from `number` on: those that have come since a mask was made."""
        owners = self.owners().copy()
        owners[owners >= number] = 0
        return owners

    def around(self, numbers: Keys) -> Keys:
        """These memories and those before and after them in their sessions, ascending."""
        found = distinct(np.concatenate([numbers, self._previous[numbers], self._following[numbers]]))
        return found[found > 0]

    def first_keys(self, numbers: Keys) -> Keys:
        """The first passage of each memory."""
        return self._first[numbers]

    def alone(self, keys: Keys) -> Mask:
        """Which of these passages are all that their memory has."""
        owners = np.append(self.owners(), 0)
        alone: Mask = (self._first[owners[keys]] == keys) & (owners[keys + 1] != owners[keys])
        return alone

    def neighbours(self, numbers: Keys) -> tuple[Keys, Keys]:
        """The memories before and after each one in its session, 0 for none."""
        return self._previous[numbers], self._following[numbers]

    def sessions(self, numbers: Keys) -> Keys:
        """A number for each memory's session, -1 for none."""
        return self._session[numbers]

    def days(self, numbers: Keys) -> Keys:
        """Each memory's day since 1970."""
        return self._day[numbers]

    def labelled(self, numbers: Keys, labels: Iterable[str]) -> tuple[Mask, Mask]:
        """Of each memory: whether it carries one of these labels, and whether it carries any."""
        codes = [self._labels[label] for label in labels if label in self._labels]
        return np.isin(self._label[numbers], codes), self._label[numbers] > 0

    def traits(self, numbers: Keys) -> tuple[Mask, Mask, Mask]:
        """Of each memory: whether it asks, only asks, tells a time."""
        flags = self._flags[numbers]
        return (flags & _ASKS) > 0, (flags & _ONLY_ASKS) > 0, (flags & _TELLS_TIME) > 0

    def _note(self, outlines: Sequence[Outline]) -> None:
        numbers = np.array([outline.number for outline in outlines], np.int64)
        labels = [self._labels.setdefault(outline.traits.label, len(self._labels)) for outline in outlines]
        self._superseded[numbers] = [outline.superseded for outline in outlines]
        self._flags[numbers] = [_flags_of(outline.traits) for outline in outlines]
        self._day[numbers] = [outline.day for outline in outlines]
        self._label[numbers] = labels
        self._label_counts.update(labels)
        for outline in outlines:
            if outline.session_id is not None:
                self._note_session(outline.number, outline.session_id)

    def _note_session(self, number: int, session_id: str) -> None:
        session = self._sessions.setdefault(session_id, len(self._sessions))
        before = self._last_of.get(session, 0)
        self._session[number], self._previous[number], self._last_of[session] = session, before, number
        if before:
            self._following[before] = number

    def _make_room(self, number: int, key: int) -> None:
        if key >= len(self._owner):
            self._owner = _grown(self._owner, key, 0)
        if number < len(self._first):
            return
        self._superseded = _grown(self._superseded, number, False)
        self._flags = _grown(self._flags, number, 0)
        self._label = _grown(self._label, number, 0)
        self._session = _grown(self._session, number, -1)
        self._previous = _grown(self._previous, number, 0)
        self._following = _grown(self._following, number, 0)
        self._day = _grown(self._day, number, 0)
        # Last: a reader sizes everything else by it.
        self._first = _grown(self._first, number, 0)


@lru_cache(maxsize=4096)
def _flags_of(traits: Traits) -> int:
    return traits.asks * _ASKS + traits.only_asks * _ONLY_ASKS + traits.tells_time * _TELLS_TIME


def _grown(array: ArrayT, least: int, blank: int) -> ArrayT:
    larger = np.full(max(least + 1, 2 * len(array)), blank, array.dtype)
    larger[: len(array)] = array
    return larger  # type: ignore[return-value]  # same dtype and rank as `array`


def distinct(keys: Keys) -> Keys:
    """The keys ascending, once each: for the thousands that a recall has, four times as fast as np.unique."""
    ordered = np.sort(keys)
    return ordered[np.diff(ordered, prepend=-1) > 0]


def top_keys(scores: Scores, most: int) -> Keys:
    """The keys of the `most` highest scores above 0, in no order."""
    some = np.flatnonzero(scores > 0)
    return some[np.argpartition(-scores[some], most)[:most]] if len(some) > most else some
