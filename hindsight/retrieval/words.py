"""The word index of one bank: which passages hold a term, and how much it says there.

Postings are kept in blocks of BLOCK passages by key. A full block is frozen into arrays, which a ledger may keep and
give back; the last one grows in memory. There up to RUN blocks are joined into one, so that fewer are searched. Scores
are BM25 (Robertson and Zaragoza, "The Probabilistic Relevance Framework", 2009) with the idf of Lucene, divided by the
best that a query could get: they mean the same for every query and bank.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain, pairwise

import numpy as np
import numpy.typing as npt

from hindsight.retrieval.terms import terms

BLOCK = 4096
RUN = 16  # no more: a passage's place in a block has 16 bits
# Short memories repeat few words, so counts saturate soon; full length normalisation keeps long ones from winning by
# sheer size.
_K1, _B = 0.9, 1.0
_MOST = 255

Keys = npt.NDArray[np.int64]
Scores = npt.NDArray[np.float32]
Mask = npt.NDArray[np.bool_]
Found = tuple[int, npt.NDArray[np.uint16], npt.NDArray[np.uint8]]
_NOWHERE: tuple[Keys, Scores] = np.empty(0, np.int64), np.empty(0, np.float32)


@dataclass(frozen=True, slots=True)
class Block:
    """A frozen block: for each of T terms, sorted by hash, the passages that hold it and how often.

    `lengths` uint16 [passages] terms per passage; `hashes` uint64 [T]; `starts` uint32 [T + 1] into `rows` uint16 [P],
    the passage's place in the block, and `counts` uint8 [P].
    """

    lengths: npt.NDArray[np.uint16]
    hashes: npt.NDArray[np.uint64]
    starts: npt.NDArray[np.uint32]
    rows: npt.NDArray[np.uint16]
    counts: npt.NDArray[np.uint8]

    def find(self, wanted: npt.NDArray[np.uint64]) -> Iterator[Found]:
        """For each of the terms that stands here: its place in `wanted`, the passages' places, and how often."""
        at = np.searchsorted(self.hashes, wanted)
        at[at == len(self.hashes)] = 0
        there = np.flatnonzero(self.hashes[at] == wanted) if len(self.hashes) else at[:0]
        for place, start, stop in zip(there.tolist(), self.starts[at[there]], self.starts[at[there] + 1], strict=True):
            yield place, self.rows[start:stop], self.counts[start:stop]

    def without(self, rows: Keys) -> Block:
        """The block as if it had never held the passages in these places."""
        left = ~np.isin(self.rows, rows)
        starts = self.starts.astype(np.int64)
        term = np.repeat(np.arange(len(self.hashes)), starts[1:] - starts[:-1])
        sizes = np.bincount(term[left], minlength=len(self.hashes))
        lengths = self.lengths.copy()
        lengths[rows] = 0
        ends = np.cumsum(sizes[sizes > 0])
        starts_left = np.concatenate(([0], ends)).astype(np.uint32)
        return Block(lengths, self.hashes[sizes > 0], starts_left, self.rows[left], self.counts[left])

    def as_bytes(self) -> bytes:
        sizes = np.array([len(self.hashes), len(self.rows)], np.uint32)
        parts = (sizes, self.lengths, self.hashes, self.starts, self.rows, self.counts)
        return b"".join(part.tobytes() for part in parts)

    @classmethod
    def from_bytes(cls, data: bytes) -> Block:
        """What `as_bytes` gave. Raises ValueError for what it can't have given."""
        distinct, postings = (int(size) for size in np.frombuffer(data, np.uint32, 2))
        ends = np.cumsum([8, BLOCK * 2, distinct * 8, (distinct + 1) * 4, postings * 2, postings])
        if ends[-1] != len(data):
            raise ValueError("not the bytes of a block")
        parts = [data[start:end] for start, end in pairwise(ends)]
        return cls(
            np.frombuffer(parts[0], np.uint16),
            np.frombuffer(parts[1], np.uint64),
            np.frombuffer(parts[2], np.uint32),
            np.frombuffer(parts[3], np.uint16),
            np.frombuffer(parts[4], np.uint8),
        )


@dataclass(slots=True)
class Growing:
    """The block that still grows.

    Its postings are arrays: lists the garbage collector would look at one by one, for a tenth of a second where a text
    has many different words.
    """

    lengths: npt.NDArray[np.uint16] = field(default_factory=lambda: np.zeros(BLOCK, np.uint16))
    postings: dict[int, array[int]] = field(default_factory=dict)

    def add(self, row: int, found: Sequence[str]) -> None:
        self.lengths[row] = min(len(found), 65_535)
        for term, count in Counter(found).items():
            self.postings.setdefault(_hash(term), array("I")).append(row << 8 | min(count, _MOST))

    def find(self, wanted: npt.NDArray[np.uint64]) -> Iterator[Found]:
        for place, term in enumerate(wanted.tolist()):
            if term in self.postings:
                # A copy in one step: an array can't grow while numpy looks at it.
                packed = np.frombuffer(self.postings[term].tobytes(), np.uint32)
                yield place, (packed >> 8).astype(np.uint16), (packed & _MOST).astype(np.uint8)

    def freeze(self) -> Block:
        hashes = np.array(sorted(self.postings), np.uint64)
        sizes = [len(self.postings[int(term)]) for term in hashes]
        packed = np.fromiter(chain.from_iterable(self.postings[int(term)] for term in hashes), np.uint32)
        starts = np.concatenate(([0], np.cumsum(sizes))).astype(np.uint32)
        return Block(self.lengths, hashes, starts, (packed >> 8).astype(np.uint16), (packed & _MOST).astype(np.uint8))


@dataclass(frozen=True, slots=True)
class Hits:
    """Where a term stands: keys int64 [n], how much it says there float32 [n] in 0..1, and its idf over the bank."""

    keys: Keys
    scores: Scores
    rarity: float


def coverage(hits: Sequence[Hits], size: int) -> Scores:
    """What share of the query, by rarity, each passage's words cover: float32 [size] in 0..1, by key.

    Words that no passage holds count in full: a query that is half unknown can't be covered.
    """
    covered = np.zeros(size, np.float32)
    total = sum(hit.rarity for hit in hits)
    for hit in hits:
        covered[hit.keys] += np.float32(hit.rarity / total) * hit.scores
    return covered


class WordIndex:
    """All blocks of a bank. `add` takes keys in ascending order."""

    def __init__(self) -> None:
        self._blocks: dict[int, Block | Growing] = {}  # by the first key that each covers
        self._lengths: Scores = np.zeros(BLOCK, np.float32)  # terms of each passage, by key

    def put(self, number: int, block: Block) -> None:
        """Take over a block that was frozen before."""
        self._make_room((number + 1) * BLOCK)
        self._lengths[number * BLOCK : (number + 1) * BLOCK] = block.lengths
        self._blocks[number * BLOCK] = block

    def add(self, passages: Iterable[tuple[int, str]]) -> None:
        """Index passages by key and text."""
        for key, text in passages:
            block = self._blocks.setdefault(key - key % BLOCK, Growing())
            assert isinstance(block, Growing)  # keys ascend, and only blocks behind the last are frozen
            self._make_room(key + 1)
            block.add(key % BLOCK, terms(text))
            self._lengths[key] = block.lengths[key % BLOCK]

    def freeze(self, top: int) -> list[tuple[int, Block]]:
        """Freeze the blocks that no key above `top` can change; returns them with their numbers."""
        blocks = list(self._blocks.items())  # another thread may start a new one meanwhile
        done = {first: b.freeze() for first, b in blocks if isinstance(b, Growing) and first + BLOCK <= top}
        self._blocks.update(done)
        return [(first // BLOCK, block) for first, block in done.items()]

    def join(self) -> None:
        """Join the frozen blocks of each run. The caller sees to it that nothing is added meanwhile."""
        runs: dict[int, list[tuple[int, Block]]] = {}
        for first, block in sorted(self._blocks.items()):
            if isinstance(block, Block):
                runs.setdefault(first // (BLOCK * RUN), []).append((first, block))
        blocks = dict(self._blocks)
        for parts in (parts for parts in runs.values() if len(parts) > 1):
            for first, _ in parts:
                del blocks[first]
            blocks[parts[0][0]] = _joined(parts)
        self._blocks = blocks

    def look_up(self, wanted: Sequence[str], alive: Mask) -> list[Hits]:
        """For each term the passages that hold it, of those that are `alive`, bool [top key + 1]."""
        lengths = self._lengths
        spoken = (
            lengths[: len(alive)] * alive[: len(lengths)]
        )  # passages without words may come after the last of these
        total = int(np.count_nonzero(spoken))
        mean = float(spoken.sum(dtype=np.float64)) / total if total else 1.0
        found = []
        for keys, counts in self._find(np.array([_hash(term) for term in wanted], np.uint64), alive):
            norm = _K1 * (1 - _B + _B * lengths[keys] / mean)
            rarity = float(np.log1p((total - len(keys) + 0.5) / (len(keys) + 0.5)))
            found.append(Hits(keys, (counts / (counts + norm)).astype(np.float32), rarity))
        return found

    def _find(self, wanted: npt.NDArray[np.uint64], alive: Mask) -> Iterator[tuple[Keys, Scores]]:
        """For each term the living passages that hold it, and how often."""
        found: list[list[tuple[Keys, Scores]]] = [[_NOWHERE] for _ in wanted]
        for first, block in list(self._blocks.items()):
            for place, rows, counts in block.find(wanted):
                found[place].append((rows.astype(np.int64) + first, counts.astype(np.float32)))
        for parts in found:
            keys = np.concatenate([keys for keys, _ in parts])
            often: Scores = np.concatenate([often for _, often in parts])
            living = keys < len(alive)  # what another thread has added since `alive` was taken
            living[living] = alive[keys[living]]
            yield keys[living], often[living]

    def _make_room(self, size: int) -> None:
        if size > len(self._lengths):
            lengths = np.zeros(max(size, 2 * len(self._lengths)), np.float32)
            lengths[: len(self._lengths)] = self._lengths
            self._lengths = lengths


def _joined(parts: Sequence[tuple[int, Block]]) -> Block:
    """One block for several, given with their first keys in ascending order."""
    start, blocks = parts[0][0], [block for _, block in parts]
    lengths = np.zeros(parts[-1][0] - start + len(blocks[-1].lengths), np.uint16)
    for first, block in parts:
        lengths[first - start : first - start + len(block.lengths)] = block.lengths
    hashes, terms_of = np.unique(np.concatenate([block.hashes for block in blocks]), return_inverse=True)
    term = np.repeat(terms_of, np.concatenate([np.diff(block.starts.astype(np.int64)) for block in blocks]))
    order = np.argsort(term, kind="stable")
    rows = np.concatenate([block.rows + np.uint16(first - start) for first, block in parts])[order]
    counts = np.concatenate([block.counts for block in blocks])[order]
    starts = np.concatenate(([0], np.cumsum(np.bincount(term, minlength=len(hashes))))).astype(np.uint32)
    return Block(lengths, hashes, starts, rows, counts)


@lru_cache(maxsize=1 << 16)
def _hash(term: str) -> int:
    return int.from_bytes(hashlib.blake2b(term.encode(), digest_size=8).digest(), "little")
