"""What a ledger holds that is made from its texts: vectors, sentences, words, and notes of what the index has.

What is wrong there costs nothing but time: it is dropped and made again. The connection hands texts out as bytes.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hindsight.embedding import Vectors
from hindsight.ledger import EmbedderMark, Numbers
from hindsight.ledger.schema import SINCE_SENTENCES, version_of
from hindsight.retrieval.terms import VERSION, terms
from hindsight.retrieval.words import BLOCK, Growing

_AT_ONCE = 2_000  # vectors looked at together
_OFF = 1e-3  # how far a unit vector's length may be from 1
_STEP = 4  # bytes behind the numbers of a sentence's vector
_NEXT = "at the bank's next use"


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong, how it is mended, in words that follow "by", and what mends it within a transaction.

    `loss` tells that something is lost that nothing brings back.
    """

    what: str
    remedy: str
    mend: Callable[[sqlite3.Connection], None]
    loss: bool = False


def derived_faults(database: sqlite3.Connection) -> Iterator[Fault]:
    """What is wrong with vectors, sentences and words. Raises sqlite3.Error where the file can't be read."""
    mark = embedder_mark(database)
    if mark is None:
        nameless = _keys(database, "SELECT key FROM passage WHERE vector IS NOT NULL").tolist()
        if nameless or database.execute("SELECT 1 FROM bank WHERE name = 'embedder'").fetchone():
            yield Fault(
                f"no embedder is named for the vectors of {many(len(nameless), 'passage')}",
                f"dropping them; what has none is embedded again {_NEXT}",
                lambda database: _drop_all_vectors(database, nameless),
            )
    elif bad := [*_bad_vectors(database, mark.dimension), *_bad_sentences(database, mark.dimension)]:
        yield Fault(
            f"{many(len(set(bad)), 'passage')} with damaged vectors",
            f"dropping them; what has none is embedded again {_NEXT}",
            lambda database: _drop_vectors(database, bad),
        )
    if (row := database.execute("SELECT value FROM bank WHERE name = 'tie'").fetchone()) and not uid_of(row[0]):
        yield Fault(
            "it is not known which collection on a Chroma server is its own",
            f"forgetting that one; another is made {_NEXT}",
            _untie,
        )
    if idle := _keys(database, "SELECT key FROM passage WHERE vector IS NULL AND indexed").tolist():
        yield Fault(
            f"{many(len(idle), 'passage')} without a vector, but taken for embedded",
            f"having them embedded {_NEXT}",
            lambda database: _drop_vectors(database, idle),
        )
    if blocks := _bad_blocks(database):
        yield Fault(
            f"{many(len(blocks), 'block')} of the word index not in agreement with the texts",
            f"dropping them; they are made again {_NEXT}",
            lambda database: _drop_blocks(database, blocks),
        )


def many(count: int, noun: str) -> str:
    """So many of something, for people to read."""
    several = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{count:,} {noun if count == 1 else several}"


def indexed(database: sqlite3.Connection) -> Numbers:
    """The keys of the passages that the index has, by what was noted."""
    return _keys(database, "SELECT key FROM passage WHERE indexed")


def index_faults(database: sqlite3.Connection, held: Numbers) -> Iterator[Fault]:
    """What an index that holds these keys lacks, and what it should not have."""
    lacking = np.setdiff1d(indexed(database), held)
    if len(lacking):
        yield Fault(
            f"the index lacks {many(len(lacking), 'passage')}",
            f"having them indexed again {_NEXT}",
            lambda database: _unindex(database, lacking),
        )
    known = np.union1d(_keys(database, "SELECT key FROM passage"), _keys(database, "SELECT key FROM gone"))
    strange = np.setdiff1d(held, known)
    if len(strange):
        yield Fault(
            f"the index holds {many(len(strange), 'passage')} too many",
            f"having them removed from it {_NEXT}",
            lambda database: _note_gone(database, strange),
        )


def embedder_mark(database: sqlite3.Connection) -> EmbedderMark | None:
    """The embedder of the vectors; None when there is none, or none that can be read."""
    row = database.execute("SELECT value FROM bank WHERE name = 'embedder'").fetchone()
    try:
        mark = EmbedderMark(**json.loads(row[0])) if row else None
    except (ValueError, TypeError):
        return None
    good = mark is not None and isinstance(mark.name, str) and isinstance(mark.dimension, int) and mark.dimension > 0
    return mark if good else None


def uid_of(tie: object) -> str:
    """The uid in what ties a ledger to its collection on a server; empty when it can't be read."""
    try:
        words = json.loads(tie) if isinstance(tie, bytes) else []
    except ValueError:
        return ""
    good = isinstance(words, list) and words and all(isinstance(word, str) and word.isalnum() for word in words)
    return words[0] if good else ""


def _bad_vectors(database: sqlite3.Connection, dimension: int) -> Iterator[int]:
    """The keys of vectors that are not of this dimension, finite, and of length 1."""
    rows = database.execute("SELECT key, vector FROM passage WHERE vector IS NOT NULL ORDER BY key")
    while some := rows.fetchmany(_AT_ONCE):
        sized = [(key, vector) for key, vector in some if _has_size(vector, 4 * dimension)]
        keys = np.array([key for key, _ in sized], np.int64)
        vectors: Vectors = np.frombuffer(b"".join(vector for _, vector in sized), np.float32).reshape(-1, dimension)
        with np.errstate(over="ignore", invalid="ignore"):
            off = np.abs(np.linalg.norm(vectors, axis=1) - 1)
        good = set(keys[off < _OFF].tolist())  # false for what is not finite
        yield from (key for key, _ in some if key not in good)


def _bad_sentences(database: sqlite3.Connection, dimension: int) -> list[int]:
    """The keys of sentences that are not vectors of this dimension, or belong to no passage."""
    if version_of(database) < SINCE_SENTENCES:
        return []
    query = "SELECT key, vectors, key IN (SELECT key FROM passage) FROM sentences"
    line = dimension + _STEP
    return [key for key, vectors, there in database.execute(query) if not (there and _are_sentences(vectors, line))]


def _are_sentences(vectors: object, line: int) -> bool:
    if not isinstance(vectors, bytes) or not vectors or len(vectors) % line:
        return False
    steps = np.frombuffer(vectors, np.uint8).reshape(-1, line)[:, -_STEP:].copy().view("<f4")
    return bool(np.all((steps > 0) & (steps < 1)))


def _has_size(value: object, size: int) -> bool:
    return isinstance(value, bytes) and len(value) == size


def _bad_blocks(database: sqlite3.Connection) -> list[int]:
    """The first keys of those blocks of words that are not what the passages' texts make."""
    query = "SELECT first, last, postings FROM words WHERE version = ? ORDER BY first"
    return [
        first
        for first, last, postings in database.execute(query, (VERSION,)).fetchall()
        if first % BLOCK or last != first + BLOCK - 1 or postings != _block(database, first)
    ]


def _block(database: sqlite3.Connection, first: int) -> bytes:
    block = Growing()
    query = (
        "SELECT key, start, stop, text, memory.number FROM passage JOIN memory USING (number)"
        " WHERE worded AND key BETWEEN ? AND ? ORDER BY key"
    )
    known, text = 0, ""
    for key, start, stop, raw, number in database.execute(query, (first, first + BLOCK - 1)):
        if number != known:
            known, text = number, raw.decode(errors="replace")
        block.add(key - first, terms(text[start:stop]))
    return block.freeze().as_bytes()


def _drop_vectors(database: sqlite3.Connection, keys: Sequence[int]) -> None:
    each: list[Any] = [(key,) for key in keys]
    # The index may have them: what it holds under these keys is not to be trusted any more.
    database.executemany("INSERT OR IGNORE INTO gone SELECT key FROM passage WHERE key = ?", each)
    database.executemany("UPDATE passage SET vector = NULL, indexed = 0 WHERE key = ?", each)
    database.executemany("DELETE FROM sentences WHERE key = ?", each)


def _drop_all_vectors(database: sqlite3.Connection, keys: Sequence[int]) -> None:
    _drop_vectors(database, keys)
    database.execute("DELETE FROM sentences")
    database.execute("DELETE FROM bank WHERE name = 'embedder'")


def _untie(database: sqlite3.Connection) -> None:
    database.execute("DELETE FROM bank WHERE name = 'tie'")


def _drop_blocks(database: sqlite3.Connection, firsts: Sequence[int]) -> None:
    database.executemany("DELETE FROM words WHERE first = ?", [(first,) for first in firsts])


def _unindex(database: sqlite3.Connection, keys: Numbers) -> None:
    database.executemany("UPDATE passage SET indexed = 0 WHERE key = ?", [(key,) for key in keys.tolist()])


def _note_gone(database: sqlite3.Connection, keys: Numbers) -> None:
    database.executemany("INSERT OR IGNORE INTO gone VALUES (?)", [(key,) for key in keys.tolist()])


def _keys(database: sqlite3.Connection, query: str) -> Numbers:
    return np.array([key for (key,) in database.execute(query)], np.int64)
