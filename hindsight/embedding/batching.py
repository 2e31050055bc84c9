"""An embedder that joins concurrent calls of another one into single runs, and keeps queries out of long ones."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import cast

import numpy as np

from hindsight.embedding import Embedder, Vectors
from hindsight.errors import TextRefused
from hindsight.joining import Joiner

# Small enough that a query waits a few hundredths of a second at most behind a run, large enough to fill it.
RUN = 16


class BatchingEmbedder:
    """Fulfils Embedder over another one; `embed_query` does not wait for texts. A run has `most` texts."""

    def __init__(self, inner: Embedder, most: int = RUN) -> None:
        self._inner = inner
        self._most = most
        self._joined = Joiner[str, Vectors](self._embed, most)
        self._queries = Joiner[str, Vectors](self._embed, most)
        self.name, self.max_tokens = inner.name, inner.max_tokens
        self.token_ends = inner.token_ends
        self.ready = inner.ready

    @property
    def dimension(self) -> int:
        return self._inner.dimension

    async def embed(self, texts: Sequence[str]) -> Vectors:
        if not texts:
            return np.empty((0, self.dimension), np.float32)
        # A run's worth at a time: whoever comes meanwhile waits for one run of a long text, not for all of it.
        turns = [texts[start : start + self._most] for start in range(0, len(texts), self._most)]
        return np.stack([row for turn in turns for row in await asyncio.gather(*map(self._joined, turn))])

    async def embed_each(self, texts: Sequence[str]) -> list[Vectors | TextRefused]:
        """For each text its vector, float32 [dimension], or that it was refused. Raises EmbedderUnavailable."""
        found = await asyncio.gather(*map(self._joined, texts), return_exceptions=True)
        for each in found:
            if isinstance(each, BaseException) and not isinstance(each, TextRefused):
                raise each
        return cast("list[Vectors | TextRefused]", found)

    async def embed_query(self, text: str) -> Vectors:
        """One text as float32 [dimension], beside the texts under way. Raises EmbedderUnavailable."""
        return await self._queries(text)

    async def aclose(self) -> None:
        # First, or those that wait for a service that hangs would hold up the end.
        await self._inner.aclose()
        await self._joined.settle()
        await self._queries.settle()

    async def _embed(self, texts: Sequence[str]) -> list[Vectors | Exception]:
        try:
            return list(await self._inner.embed(texts))
        except TextRefused as refusal:
            if len(texts) == 1:
                return [refusal]
        # Which one it was is not told, and the others' callers must not pay for it.
        middle = len(texts) // 2
        return [*await self._embed(texts[:middle]), *await self._embed(texts[middle:])]
