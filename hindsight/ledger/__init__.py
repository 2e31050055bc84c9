"""The contract of a ledger: one bank's memories on disk, with all that recall needs to know of them.

The ledger is the memory: what it has acknowledged survives kill -9 and a power cut. Everything else can be made again
from it. A memory's `number` is its place in the order of retaining, a passage's `key` names its vector; neither is ever
used twice in one ledger.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Protocol

import numpy as np
import numpy.typing as npt

from hindsight.embedding import Vectors
from hindsight.errors import HindsightError
from hindsight.record import JsonObject, Memory, MemoryType, Traits

Numbers = npt.NDArray[np.int64]
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Span:
    """Time in microseconds since 1970 UTC, from `start` up to but not including `end`; an instant has both equal."""

    start: int
    end: int

    @classmethod
    def between(cls, start: datetime, end: datetime) -> Span:
        """The span between two moments, which know their zones."""
        return cls(*((moment - _EPOCH) // timedelta(microseconds=1) for moment in (start, end)))


@dataclass(frozen=True, slots=True)
class Cut:
    """A piece of a memory's text that has a vector of its own: text[start:end], in characters.

    `worded` pieces are those whose words are searched; together they are the whole text.
    """

    start: int
    end: int
    worded: bool = True


@dataclass(frozen=True, slots=True)
class Entry:
    """A memory to be retained.

    `traits` are its text's. `identity` is the digest of what makes two retains the same one. `vectors` are float32
    [n, dimension], of the first n cuts: none while the embedder is down, and not all of a long text's. `unembedded`
    then finds the passages that lack theirs. `sentences` are kept with the first cut; what is in them is its writer's.
    """

    memory: Memory
    traits: Traits
    identity: bytes
    time: Span
    cuts: tuple[Cut, ...]
    vectors: Vectors | None
    sentences: bytes = b""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """Which memories count: all that is given must hold, and what is None or empty asks for nothing.

    `tags` asks for any of them, with `all_tags` for every one. `since` and `until` are microseconds as in Span: a
    memory counts when its time meets [since, until). `predicate` is asked about its metadata.
    """

    types: tuple[MemoryType, ...] = ()
    contexts: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    all_tags: bool = False
    since: int | None = None
    until: int | None = None
    session_id: str | None = None
    superseded: bool = False
    predicate: Callable[[JsonObject], bool] | None = None


@dataclass(frozen=True, slots=True)
class Facet:
    """What conditions ask of a memory, but whether it is superseded."""

    type: MemoryType
    context: str
    session_id: str | None
    tags: tuple[str, ...]
    metadata: JsonObject
    time: Span


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """New categories of a memory; None leaves one as it is. `time` goes with `event_date`."""

    context: str | None = None
    type: MemoryType | None = None
    event_date: str | None = None
    time: Span | None = None
    tags: tuple[str, ...] | None = None
    metadata: JsonObject | None = None


@dataclass(frozen=True, slots=True)
class Forgotten:
    """What forgetting took away: how many memories, their passages' keys, and whose successor, by number, is gone."""

    count: int
    keys: tuple[int, ...]
    revived: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Stats:
    """What a ledger holds. Counts are by value; dates are the first and the last `event_date`; `bytes` is on disk."""

    memories: int
    superseded: int
    types: dict[str, int]
    contexts: dict[str, int]
    tags: dict[str, int]
    first_date: str | None
    last_date: str | None
    bytes: int


@dataclass(frozen=True, slots=True)
class Glance:
    """A bank as seen without opening it; `bytes` is what its ledger takes on disk.

    Of a bank whose ledger can't be read, which is `damaged`, nothing but its id is known. One that is not `begun` never
    held a memory: its first retain was refused or cut off, and nothing need be known of it.
    """

    bank_id: str
    memories: int
    bytes: int
    damaged: bool = False
    begun: bool = True


@dataclass(frozen=True, slots=True)
class EmbedderMark:
    """Which embedder a bank's vectors come from."""

    name: str
    dimension: int


@dataclass(frozen=True, slots=True)
class Tie:
    """What ties a ledger to its collection on a server: the ledger's `uid`, and the eras of the collection.

    Each opening begins another era, a random word that the ledger and the collection write down. A collection of an era
    that the ledger does not know was used by a copy of it: the ledger was put back from a backup, or has a twin.
    """

    uid: str
    eras: tuple[str, ...] = ()


class Ledger(Protocol):
    """All calls block, so they belong in a thread; one call writes at a time, reads may run beside it.

    Every write is one commit, on disk when the call returns. Raises StorageFull or LedgerUnavailable, and leaves what
    was there as it was.
    """

    @property
    def frozen(self) -> bool:
        """Whether it was opened to be read alone, since the files can't be written now: to write, open it anew."""
        ...

    def embedder(self) -> EmbedderMark | None:
        """The embedder whose vectors the bank holds; None before the first vector."""
        ...

    def retain(self, entries: Sequence[Entry], embedder: EmbedderMark) -> list[Stored | HindsightError]:
        """Store all entries in one commit, in their order, and answer for each; `embedder` made their vectors.

        One whose `supersedes` can't be followed is answered MemoryNotFound or AlreadySuperseded, one whose id is
        another memory's InvalidArgument; they leave the others as they are.
        """
        ...

    def known(self, identities: Sequence[bytes]) -> dict[bytes, Memory]:
        """The memories already there, by identity."""
        ...

    def find(self, id: str) -> tuple[int, Memory] | None:
        """A memory and its number by its id."""
        ...

    def select(self, conditions: Conditions) -> Numbers:
        """The numbers of the memories that meet the conditions, ascending."""
        ...

    def page(self, conditions: Conditions, *, newest: bool, beyond: int | None, most: int) -> list[tuple[int, Memory]]:
        """Up to `most` memories that meet the conditions with their numbers, in the order of retaining or against it.

        `beyond` is the number after which to go on.
        """
        ...

    def export(self) -> Generator[tuple[Memory, bytes], None, None]:
        """All memories with their identities, in the order of retaining, as they were when the first was asked for.

        What is written meanwhile does not show. Close it when it is not read to its end.
        """
        ...

    def update(self, number: int, changes: Changes) -> Memory | None:
        """Change a memory's categories and return it as it is then; None when there is no such memory."""
        ...

    def forget(self, numbers: Sequence[int]) -> Forgotten:
        """Remove memories for good, with their passages, words, vectors and the links to them."""
        ...

    def fill(self) -> tuple[int, int]:
        """How many memories there are, and how many bytes they take on disk."""
        ...

    def stats(self) -> Stats:
        """Count what is there."""
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

    def vectors_from(self, key: int) -> tuple[Numbers, Vectors]:
        """The vectors of the passages from `key` on: their keys, ascending, and float32 [n, dimension]."""
        ...

    def passages(self) -> tuple[Numbers, Numbers]:
        """The keys of all passages, ascending, and their memories' numbers; both [n]."""
        ...

    def outlines(self) -> Iterator[tuple[int, Traits, str | None, str, bool]]:
        """Of all memories, ascending: number, traits, session_id, day ('2024-05-03'), and whether it is superseded.

        The day is that of `event_date`, else that of retaining.
        """
        ...

    def facets(self) -> Iterator[tuple[int, Facet]]:
        """Of all memories, ascending, what conditions ask of them."""
        ...

    def passage_texts(self, first: int, last: int) -> list[tuple[int, str]]:
        """Key and text of the worded pieces with first <= key <= last, ascending."""
        ...

    def unembedded(self, most: int, beyond: int = 0) -> list[tuple[int, str]]:
        """Key and text of up to `most` passages without a vector and with key > `beyond`, oldest first."""
        ...

    def late(self) -> Numbers:
        """The keys of all passages without a vector, ascending."""
        ...

    def sentences(self, keys: Sequence[int]) -> dict[int, bytes]:
        """What is kept of the sentences of passages, by key; one without any is left out."""
        ...

    def embed(
        self,
        keys: Sequence[int],
        vectors: Vectors,
        embedder: EmbedderMark,
        sentences: Sequence[tuple[int, bytes]] = (),
    ) -> None:
        """Give passages their vectors, made by `embedder`, and some of them what is to be kept of their sentences."""
        ...

    def give_to(self, embedder: EmbedderMark) -> None:
        """Drop all vectors, also of sentences: from now on they come from `embedder`, and no passage has one or is in
        the index, which is another one from here on.
        """
        ...

    def unindexed(self, most: int) -> tuple[Numbers, Vectors]:
        """Up to `most` passages with a vector that the index lacks, oldest first: keys and vectors as above."""
        ...

    def indexed(self, keys: Sequence[int]) -> None:
        """Note that the index holds these passages."""
        ...

    def gone(self, most: int) -> Numbers:
        """Keys of up to `most` passages whose vector in the index, if it has one, is no longer theirs."""
        ...

    def dropped(self, keys: Sequence[int]) -> None:
        """Note that the index does not hold these any more."""
        ...

    def unindex(self) -> None:
        """Note that the index holds nothing; what is `gone` stays so, for a step may be on its way."""
        ...

    def carried(self) -> int:
        """How many passages the index holds, by what was noted."""
        ...

    def correct(self, held: Numbers) -> tuple[Numbers, Numbers]:
        """Note that the index holds these keys. What it lacks is unindexed again, what it has no business with is gone.

        Returns the keys of the former, and of the latter.
        """
        ...

    def tie(self) -> Tie | None:
        """What ties it to its collection on a server; None before the first."""
        ...

    def retie(self, tie: Tie) -> None:
        """Note another tie."""
        ...

    def word_blocks(self, version: int) -> dict[int, bytes]:
        """The stored blocks of the word index that this version wrote, by the first key they cover."""
        ...

    def keep_word_block(self, first: int, last: int, version: int, block: bytes) -> None:
        """Store a block of the word index over the keys from `first` to `last`; forgetting one of them drops it."""
        ...

    def close(self) -> None:
        """Let go of the files."""
        ...
