"""The sentences of a short text: where they end, and their vectors at a byte a number, as a ledger keeps them.

A vector of the whole says less of each thing in it, so a fact beside two others is found by its sentence. Longer texts
have pieces with vectors of their own for that (passages.py).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from hindsight.retrieval.passages import END
from hindsight.retrieval.sketch import rounded
from hindsight.retrieval.words import Scores

Vectors = npt.NDArray[np.float32]

# More of them in so short a text are shouts and greetings.
MOST = 8


def stops(text: str) -> tuple[int, ...]:
    """Where the sentences end, in characters, the last one with the text; nothing when there is only one.

    The last one has all that comes after the first MOST - 1.
    """
    inner = [match.end() for match in END.finditer(text) if match.end() < len(text)]
    return (*inner[: MOST - 1], len(text)) if inner else ()


def packed(vectors: Vectors) -> bytes:
    """Vectors, float32 [n, dimension], as bytes: each its numbers in a byte each, and the step between them."""
    rows, steps = rounded(vectors)
    lines = np.empty(len(rows), _line(rows.shape[1]))
    lines["row"], lines["step"] = rows, steps
    return lines.tobytes()


def best_cosines(texts: Sequence[bytes], vector: Vectors) -> Scores:
    """For each text, given as its packed vectors, the best cosine of one of them with `vector`: float32 [n]."""
    line = _line(len(vector))
    lines = np.frombuffer(b"".join(texts), line)
    cosines = (lines["row"].astype(np.float32) @ vector) * lines["step"]
    counts = [len(text) // line.itemsize for text in texts]
    best: Scores = np.maximum.reduceat(cosines, np.cumsum([0, *counts[:-1]])) if texts else cosines
    return best


def _line(dimension: int) -> np.dtype[np.void]:
    return np.dtype([("row", np.int8, (dimension,)), ("step", "<f4")])
