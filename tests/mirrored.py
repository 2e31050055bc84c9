"""An embedder inside the server that takes no time and to which a word means the same when it is read backwards.

So a text can be asked for by its meaning without one word in common: by `mirror` of it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from hindsight.embedding import Vectors
from hindsight.settings import Settings

FIRST, SECOND = "tests.mirrored:first", "tests.mirrored:second"  # for HINDSIGHT_EMBEDDER
DIMENSION = 256
_WORD = re.compile(r"\w+")


class Mirrored:
    """Texts are as near as they share words. Another name is another model: its vectors have nothing in common."""

    dimension, max_tokens = DIMENSION, 512

    def __init__(self, name: str) -> None:
        self.name = name

    async def ready(self) -> None:
        pass

    async def embed(self, texts: Sequence[str]) -> Vectors:
        rows = np.stack([self._row(text) for text in texts])
        vectors: Vectors = rows / np.linalg.norm(rows, axis=1, keepdims=True)
        return vectors

    def token_ends(self, text: str) -> list[int]:
        return [word.end() for word in _WORD.finditer(text)]

    async def aclose(self) -> None:
        pass

    def _row(self, text: str) -> Vectors:
        row = np.ones(DIMENSION, np.float32)  # of a text without words too there is a direction
        for word in _WORD.findall(text.lower()):
            row += _of_word(self.name, min(word, word[::-1]))
        return row


def first(settings: Settings) -> Mirrored:
    """The embedder that a bank has first."""
    return Mirrored("mirrored-1")


def second(settings: Settings) -> Mirrored:
    """Another one, for the bank to be moved to."""
    return Mirrored("mirrored-2")


def mirror(text: str) -> str:
    """Each word of a text backwards."""
    return _WORD.sub(lambda word: word[0][::-1], text)


@lru_cache(maxsize=1 << 12)
def _of_word(name: str, word: str) -> Vectors:
    digest = hashlib.shake_128(f"{name} {word}".encode()).digest(DIMENSION)
    return np.frombuffer(digest, np.int8).astype(np.float32)
