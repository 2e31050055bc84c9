"""What recall keeps in memory of a bank: whose each passage is, whether it counts, and its words.

Everything is an array indexed by passage key, so that a recall looks at the whole bank at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from hindsight.retrieval.words import Keys, Mask, Scores, WordIndex

ArrayT = TypeVar("ArrayT", bound=npt.NDArray[np.generic])


class Roster:
    """One bank's passages by key. One thread changes it at a time; readers may work beside it."""

    def __init__(self) -> None:
        self.words = WordIndex()
        self._numbers: Keys = np.zeros(1, np.int64)
        self._superseded: Mask = np.zeros(1, np.bool_)
        self._top = 0

    @property
    def top(self) -> int:
        """The highest key so far; 0 before the first."""
        return self._top

    def add(self, keys: Keys, numbers: Keys, superseded: Mask) -> None:
        """Take in passages, keys ascending and above `top`, each with its memory's number; all [n]."""
        if not len(keys):
            return
        top = int(keys[-1])
        if top >= len(self._numbers):
            size = max(top + 1, len(self._numbers) * 2)
            self._numbers, self._superseded = _grown(self._numbers, size), _grown(self._superseded, size)
        self._numbers[keys], self._superseded[keys] = numbers, superseded
        self._top = top

    def supersede(self, number: int, *, superseded: bool = True) -> None:
        """From now on the memory counts only for those who ask for superseded ones; or, again, for all."""
        self._superseded[self.keys_of([number])] = superseded

    def remove(self, keys: Iterable[int]) -> None:
        """These passages are gone."""
        self._numbers[list(keys)] = 0

    def numbers(self) -> Keys:
        """The memory's number for each key, int64 [top + 1]; 0 where there is none."""
        return self._numbers[: self._top + 1]

    def keys_of(self, numbers: Iterable[int]) -> Keys:
        """The keys of the passages of these memories."""
        return np.flatnonzero(np.isin(self.numbers(), list(numbers)))

    def counting(self, *, superseded: bool, among: Keys | None = None) -> Mask:
        """Which keys count, bool [top + 1]: of the memories `among` these numbers, or of all.

        `superseded` counts superseded memories too.
        """
        numbers = self.numbers()
        counts = numbers > 0
        if not superseded:
            counts &= ~self._superseded[: len(numbers)]
        if among is not None:
            wanted = np.zeros(int(max(numbers.max(), among.max(initial=0))) + 1, np.bool_)
            wanted[among] = True
            counts &= wanted[numbers]
        return counts


def _grown(array: ArrayT, size: int) -> ArrayT:
    larger = np.zeros(size, array.dtype)
    larger[: len(array)] = array
    return larger  # type: ignore[return-value]  # same dtype and rank as `array`


def top_keys(scores: Scores, most: int) -> Keys:
    """The keys of the `most` highest scores above 0, best first; of equals the lower key."""
    some = np.argpartition(-scores, most)[:most] if len(scores) > most else np.arange(len(scores))
    some = some[scores[some] > 0]
    return some[np.lexsort((some, -scores[some]))].astype(np.int64)
