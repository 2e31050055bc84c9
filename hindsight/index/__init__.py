"""The contract of a vector index: the passages nearest to a vector, in one bank.

An index follows the ledger and may be thrown away at any time: whatever it lost is upserted again from there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from hindsight.embedding import Vectors

Keys = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Nearest:
    """The passages nearest to a vector, best first.

    `keys` is int64 [n]; `similarities` float32 [n], the cosine of each with the vector, 1 at best.
    """

    keys: Keys
    similarities: npt.NDArray[np.float32]


class VectorIndex(Protocol):
    """One bank's vectors by the number of their passage in the ledger. Every method raises IndexUnavailable.

    `rebuilt` says that it was empty when it was opened, whatever was upserted before: all of it must be upserted
    again. An index that is closed without having been filled says so again.
    `stale` says that a call has failed in such a way that nobody knows any more what it holds: close it, and open it
    anew. A write that is cancelled may still take effect.
    """

    @property
    def rebuilt(self) -> bool: ...

    @property
    def stale(self) -> bool: ...

    async def upsert(self, keys: Keys, vectors: Vectors) -> None:
        """Hold `vectors`, float32 [n, dimension], unit rows, under `keys`, int64 [n], no key twice; any n.

        Keys already held get their new vector. Works in small steps and lets the event loop run between them; when
        a step fails those before it stay.
        """
        ...

    async def delete(self, keys: Keys) -> None:
        """Hold nothing under `keys`, int64 [n], any more; keys not held are no error. In steps, like `upsert`."""
        ...

    async def nearest(self, vector: npt.NDArray[np.float32], count: int) -> Nearest:
        """The at most `count` (>= 1) keys whose vectors are nearest to `vector`, float32 [dimension]."""
        ...

    async def keys(self) -> Keys:
        """All keys held, ascending, as long as nobody writes meanwhile."""
        ...

    async def count(self) -> int:
        """How many keys are held."""
        ...

    async def aclose(self) -> None:
        """Let go of memory, threads and descriptors. Waits for calls under way that use them; twice does no harm."""
        ...
