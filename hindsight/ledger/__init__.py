"""The contract of a ledger: one bank's memories on disk, with all that recall needs to know of them.

The ledger is the memory: what it has acknowledged survives kill -9 and a power cut. Everything else can be made again
from it. A memory's `number` is its place in the order of retaining, a passage's `key` names its vector; neither is ever
used twice in one ledger.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from hindsight.embedding import Vectors
from hindsight.errors import HindsightError
from hindsight.record import Memory

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Span:
    """Time in microseconds since 1970 UTC, from `start` up to but not including `end`; an instant has both equal."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Cut:
    """Where a passage stands in its memory's text, in characters: text[start:end]."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Entry:
    """A memory to be retained.

    `identity` is the digest of what makes two retains the same one. `vectors` are float32 [len(cuts), dimension], or
    None while the embedder is down; `follow_up` then finds the passages that lack theirs.
    """

    memory: Memory
    identity: bytes
    time: Span
    cuts: tuple[Cut, ...]
    vectors: Vectors | None


@dataclass(frozen=True, slots=True)
class Stored:
    """What became of an entry.

    `known` tells that its identity was there before; then nothing was written. Else `number` and `keys` are its own and
    its passages', and `superseded` the number of the memory that it replaces.
    """

    memory: Memory
    known: bool
    number: int = 0
    keys: tuple[int, ...] = ()
    superseded: int | None = None


@dataclass(frozen=True, slots=True)
class PassageRow:
    """A passage as it is loaded when a bank opens."""

    key: int
    number: int
    superseded: bool


@dataclass(frozen=True, slots=True)
class EmbedderMark:
    """Which embedder a bank's vectors come from."""

    name: str
    dimension: int


class Ledger(Protocol):
    """All calls block, so they belong in a thread; one call writes at a time, reads may run beside it.

    Every write is one commit, on disk when the call returns. Raises StorageFull when the disk is, and leaves what was
    there as it was.
    """

    def embedder(self) -> EmbedderMark | None:
        """The embedder whose vectors the bank holds; None before the first."""
        ...

    def retain(self, entries: Sequence[Entry], embedder: EmbedderMark) -> list[Stored | HindsightError]:
        """Store all entries in one commit, in their order, and answer for each.

        One whose `supersedes` can't be followed is answered MemoryNotFound or AlreadySuperseded and leaves the others
        as they are.
        """
        ...

    def known(self, identities: Collection[bytes]) -> dict[bytes, Memory]:
        """The memories already there, by identity."""
        ...

    def memories(self, numbers: Sequence[int]) -> dict[int, Memory]:
        """Memories by number; one that is gone is left out."""
        ...

    def cuts(self, keys: Sequence[int]) -> dict[int, Cut]:
        """Where passages stand, by key; one that is gone is left out."""
        ...

    def vectors(self, keys: Sequence[int]) -> tuple[Numbers, Vectors]:
        """The vectors of those passages that have one: their keys, ascending, and float32 [n, dimension]."""
        ...

    def passages(self, above: int) -> list[PassageRow]:
        """All passages with a key above `above`, ascending."""
        ...

    def passage_texts(self, first: int, last: int) -> Iterator[tuple[int, str]]:
        """Key and text of the passages with first <= key <= last, ascending."""
        ...

    def unembedded(self, most: int) -> list[tuple[int, str]]:
        """Key and text of up to `most` passages without a vector, oldest first."""
        ...

    def embed(self, keys: Sequence[int], vectors: Vectors) -> None:
        """Give passages their vectors."""
        ...

    def unindexed(self, most: int) -> tuple[Numbers, Vectors]:
        """Up to `most` passages with a vector that the index lacks, oldest first."""
        ...

    def indexed(self, keys: Sequence[int]) -> None:
        """Note that the index holds these passages."""
        ...

    def unindex(self) -> None:
        """Note that the index holds nothing."""
        ...

    def word_blocks(self, version: int) -> dict[int, bytes]:
        """The stored blocks of the word index that this version wrote, by number."""
        ...

    def keep_word_block(self, number: int, version: int, block: bytes) -> None:
        """Store a block of the word index."""
        ...

    def close(self) -> None:
        """Let go of the files."""
        ...
