"""An embedder that joins concurrent calls of another one into single runs, and lets a recall's query go first."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import numpy as np

from hindsight.embedding import Embedder, Vectors
from hindsight.joining import Joiner

# Small enough that a query waits a few hundredths of a second at most behind a run, large enough to fill it.
RUN = 16


class BatchingEmbedder:
    """Fulfils Embedder over another one; `embed_query` goes before the texts that wait."""

    def __init__(self, inner: Embedder) -> None:
        self._inner = inner
        self._joined = Joiner[str, Vectors](self._embed, RUN)
        self.name, self.dimension, self.max_tokens = inner.name, inner.dimension, inner.max_tokens
        self.token_ends = inner.token_ends
        self.ready = inner.ready

    async def embed(self, texts: Sequence[str]) -> Vectors:
        if not texts:
            return np.empty((0, self.dimension), np.float32)
        return np.stack(await asyncio.gather(*(self._joined(text) for text in texts)))

    async def embed_query(self, text: str) -> Vectors:
        """One text as float32 [dimension], before all texts that wait. Raises EmbedderUnavailable."""
        return await self._joined(text, first=True)

    async def aclose(self) -> None:
        await self._joined.settle()
        await self._inner.aclose()

    async def _embed(self, texts: Sequence[str]) -> list[Vectors | Exception]:
        return list(await self._inner.embed(texts))
