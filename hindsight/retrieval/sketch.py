"""All vectors of a large bank at a byte a number: what it takes to score candidates without reading them from disk.

A cosine is off by a few thousandths, less than any weight of the score. 100,000 vectors of 384 numbers take 39 MB.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hindsight.retrieval.words import Keys, Mask, Scores

Vectors = npt.NDArray[np.float32]


class Sketch:
    """Vectors by passage key. One thread changes it at a time; readers may work beside it."""

    def __init__(self) -> None:
        self._view: tuple[npt.NDArray[np.int8], Scores] = np.empty((0, 0), np.int8), np.empty(0, np.float32)

    def add(self, keys: Keys, vectors: Vectors) -> None:
        """Keep vectors, float32 [n, dimension]."""
        if not len(keys):
            return
        self._make_room(int(keys.max()), vectors.shape[1])
        rows, steps = self._view
        rows[keys], step = rounded(vectors)
        steps[keys] = step  # last: a reader takes a row for known when it has its step

    def cosines(self, keys: Keys, vector: Vectors) -> tuple[Scores, Mask]:
        """The cosine of each with `vector`, and whether it is known."""
        rows, steps = self._view
        known = keys < len(steps)
        known[known] = steps[keys[known]] > 0
        cosines = np.zeros(len(keys), np.float32)
        there = keys[known]
        cosines[known] = (rows[there].astype(np.float32) @ vector) * steps[there] if len(there) else 0
        return cosines, known

    def _make_room(self, key: int, dimension: int) -> None:
        rows, steps = self._view
        if key < len(steps):
            return
        size = max(key + 1, 2 * len(steps))
        larger, more = np.zeros((size, dimension), np.int8), np.zeros(size, np.float32)
        if len(steps):
            larger[: len(rows)], more[: len(steps)] = rows, steps
        self._view = larger, more


def rounded(vectors: Vectors) -> tuple[npt.NDArray[np.int8], Scores]:
    """Vectors, float32 [n, dimension], as integers in ±127, and for each the step that brings it back."""
    steps: Scores = np.abs(vectors).max(axis=1) / np.float32(127)
    return np.rint(vectors / steps[:, np.newaxis]).astype(np.int8), steps
