"""Vectors that are kept in memory: those that the index does not have yet, and the newest ones, searched exactly."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from hindsight.retrieval.words import Keys

Vectors = npt.NDArray[np.float32]


class Held:
    """Vectors by passage key. Keeps all that are not `settled`, and of the settled ones about the newest `most`.

    One thread changes it at a time; readers in other threads see each change whole or not at all.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._waiting: set[int] = set()
        self._keys: Keys = np.empty(0, np.int64)
        self._vectors: Vectors = np.empty((0, 0), np.float32)
        self._view = (self._keys, self._vectors)

    def view(self) -> tuple[Keys, Vectors]:
        """What is held: keys int64 [n] in no order, and vectors float32 [n, dimension]; [0, 0] before the first."""
        return self._view

    @property
    def waiting(self) -> int:
        """How many of them the index does not have yet."""
        return len(self._waiting)

    def add(self, keys: Keys, vectors: Vectors, *, settled: bool = False) -> None:
        """Hold vectors that were not held before; `settled` when the index has them."""
        if not len(keys):
            return
        size = len(self._view[0])
        if size + len(keys) > len(self._keys):
            self._grow(size, size + len(keys), vectors.shape[1])
        self._keys[size : size + len(keys)] = keys
        self._vectors[size : size + len(keys)] = vectors
        self._view = (self._keys[: size + len(keys)], self._vectors[: size + len(keys)])
        if not settled:
            self._waiting.update(keys.tolist())

    def settle(self, keys: Iterable[int]) -> None:
        """The index has these now: from here on they are held only while they are among the newest."""
        self._waiting.difference_update(keys)
        held = self._view[0]
        if len(held) > self._most * 5 // 4 + len(self._waiting):
            floor = np.partition(held, -self._most)[-self._most] if self._most else held.max() + 1
            waiting = np.fromiter(self._waiting, np.int64, len(self._waiting))
            self._keep((held >= floor) | np.isin(held, waiting))

    def lose(self, keys: Keys) -> Keys:
        """The index does not have these any more. Those held stay until it has; returns the others."""
        held = np.isin(keys, self._view[0])
        self._waiting.update(keys[held].tolist())
        return keys[~held]

    def shrink(self) -> None:
        """From here on hold only what the index does not have."""
        self._most = 0
        self.settle(())

    def drop(self, keys: Keys) -> None:
        """Hold these no more."""
        self._waiting.difference_update(keys.tolist())
        self._keep(~np.isin(self._view[0], keys))

    def _keep(self, kept: npt.NDArray[np.bool_]) -> None:
        held, vectors = self._view
        self._keys, self._vectors = held[kept], vectors[kept]
        self._view = (self._keys, self._vectors)

    def _grow(self, size: int, least: int, dimension: int) -> None:
        keys, vectors = self._view
        room = max(least, 2 * size, 64)
        self._keys, self._vectors = np.empty(room, np.int64), np.empty((room, dimension), np.float32)
        if size:
            self._keys[:size], self._vectors[:size] = keys, vectors
