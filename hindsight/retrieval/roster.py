"""What recall keeps in memory of a bank: whose each passage is, whether it counts, its words, and vectors on their way.

Everything is an array indexed by passage key, so that a recall looks at the whole bank at once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from hindsight.retrieval.words import Keys, Mask, WordIndex

Vectors = npt.NDArray[np.float32]
ArrayT = TypeVar("ArrayT", bound=npt.NDArray[np.generic])


class Roster:
    """One bank's passages by key. A reader in another thread sees each change whole or not at all."""

    def __init__(self) -> None:
        self.words = WordIndex()
        self._numbers: Keys = np.zeros(1, np.int64)
        self._superseded: Mask = np.zeros(1, np.bool_)
        self._top = 0
        self._loose: dict[int, Vectors] = {}

    @property
    def top(self) -> int:
        """The highest key so far."""
        return self._top

    def add(self, keys: Sequence[int], numbers: Sequence[int], superseded: Sequence[bool]) -> None:
        """Take in passages, keys ascending, each with its memory's number."""
        if not keys:
            return
        top = keys[-1]
        if top >= len(self._numbers):
            size = max(top + 1, len(self._numbers) * 2)
            self._numbers = _grown(self._numbers, size)
            self._superseded = _grown(self._superseded, size)
        self._numbers[list(keys)] = numbers
        self._superseded[list(keys)] = superseded
        self._top = top

    def supersede(self, number: int) -> None:
        """From now on the memory counts only for those who ask for superseded ones."""
        self._superseded[: self._top + 1][self._numbers[: self._top + 1] == number] = True

    def numbers(self) -> Keys:
        """The memory's number for each key, int64 [top + 1]; 0 where there is none."""
        return self._numbers[: self._top + 1]

    def alive(self, *, superseded: bool) -> Mask:
        """Which keys count, bool [top + 1]; `superseded` counts superseded memories too."""
        there = self.numbers() > 0
        return there if superseded else there & ~self._superseded[: len(there)]

    def hold(self, keys: Iterable[int], vectors: Vectors) -> None:
        """Keep vectors that the index does not have yet."""
        self._loose.update(zip(keys, vectors, strict=True))

    def release(self, keys: Iterable[int]) -> None:
        """Drop held vectors that the index has now."""
        for key in keys:
            self._loose.pop(key, None)

    def held(self) -> tuple[Keys, Vectors]:
        """The held vectors: keys int64 [n] and float32 [n, dimension]."""
        loose = self._loose.copy()
        if not loose:
            return np.empty(0, np.int64), np.empty((0, 0), np.float32)
        return np.fromiter(loose, np.int64, len(loose)), np.stack(list(loose.values()))


def _grown(array: ArrayT, size: int) -> ArrayT:
    larger = np.zeros(size, array.dtype)
    larger[: len(array)] = array
    return larger  # type: ignore[return-value]  # same dtype and rank as `array`


def top_keys(scores: npt.NDArray[np.float32], most: int) -> Keys:
    """The keys of the `most` highest scores above 0, best first."""
    some = np.argpartition(-scores, most)[:most] if len(scores) > most else np.arange(len(scores))
    some = some[scores[some] > 0]
    return some[np.lexsort((some, -scores[some]))].astype(np.int64)


def union(*parts: Collection[int] | Keys) -> Keys:
    """All keys of the parts once, ascending."""
    return np.unique(np.concatenate([np.asarray(part, np.int64) for part in parts]))
