"""An embedder that joins concurrent calls of another one into single runs, and keeps queries out of long ones."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import cast

import numpy as np

from hindsight.embedding import Embedder, Parted, PartsEmbedder, Vectors
from hindsight.errors import TextRefused
from hindsight.joining import Joiner

# Small enough that a query waits a few hundredths of a second at most behind a run, large enough to fill it.
RUN = 16


class BatchingEmbedder:
    """Fulfils PartsEmbedder over another one; `embed_query` does not wait for texts. A run has `most` texts.

    Where the other one knows no parts, each text has its own vector only.
    """

    def __init__(self, inner: Embedder, most: int = RUN) -> None:
        self._inner = inner
        self._most = most
        # Two at once: while the last texts of a run are embedded, the first ones of the next need not wait.
        self._joined = Joiner[Parted, Vectors](self._embed, most, at_once=2)
        self._queries = Joiner[Parted, Vectors](self._embed, most)
        self._long = asyncio.Semaphore(2)
        self.name, self.max_tokens = inner.name, inner.max_tokens
        self.token_ends = inner.token_ends
        self.ready = inner.ready

    @property
    def dimension(self) -> int:
        return self._inner.dimension

    @property
    def waiting(self) -> tuple[int, int]:
        """How many texts and how many queries wait for their turn."""
        return self._joined.waiting, self._queries.waiting

    async def embed(self, texts: Sequence[str]) -> Vectors:
        found = await self.embed_parts([Parted(text) for text in texts])
        return np.concatenate(found) if found else np.empty((0, self.dimension), np.float32)

    async def embed_parts(self, texts: Sequence[Parted]) -> list[Vectors]:
        if len(texts) <= self._most:
            return await asyncio.gather(*map(self._joined, texts))
        # A run's worth at a time: whoever comes meanwhile waits for one run of a long text, not for all of it. Two such
        # calls at a time: more of them would all end together, and then there would be nothing to embed.
        turns = [texts[start : start + self._most] for start in range(0, len(texts), self._most)]
        async with self._long:
            return [rows for turn in turns for rows in await asyncio.gather(*map(self._joined, turn))]

    async def embed_each(self, texts: Sequence[Parted]) -> list[Vectors | TextRefused]:
        """For each text what `embed_parts` gives, or that it was refused. Raises EmbedderUnavailable."""
        found = await asyncio.gather(*map(self._joined, texts), return_exceptions=True)
        for each in found:
            if isinstance(each, BaseException) and not isinstance(each, TextRefused):
                raise each
        return cast("list[Vectors | TextRefused]", found)

    async def embed_query(self, text: str) -> Vectors:
        """One text as float32 [dimension], beside the texts under way. Raises EmbedderUnavailable."""
        vector: Vectors = (await self._queries(Parted(text)))[0]
        return vector

    async def aclose(self) -> None:
        # First, or those that wait for a service that hangs would hold up the end.
        await self._inner.aclose()
        await self._joined.settle()
        await self._queries.settle()

    async def _embed(self, texts: Sequence[Parted]) -> list[Vectors | Exception]:
        try:
            return list(await self._run(texts))
        except TextRefused as refusal:
            if len(texts) == 1:
                return [refusal]
        # Which one it was is not told, and the others' callers must not pay for it.
        middle = len(texts) // 2
        return [*await self._embed(texts[:middle]), *await self._embed(texts[middle:])]

    async def _run(self, texts: Sequence[Parted]) -> list[Vectors]:
        if isinstance(self._inner, PartsEmbedder):
            return await self._inner.embed_parts(texts)
        return [row[np.newaxis] for row in await self._inner.embed([each.text for each in texts])]
