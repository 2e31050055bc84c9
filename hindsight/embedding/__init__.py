"""The contract of an embedder: what turns texts into vectors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

Vectors = npt.NDArray[np.float32]


@runtime_checkable
class Embedder(Protocol):
    """Turns texts into unit vectors, the same text always into the same one.

    `name` and `dimension` are stored with each bank: vectors of another embedder mean nothing beside its own. The
    dimension is 0 for as long as it is not known; whoever has got a vector has it.
    `max_tokens` is how much of a text its vector can hold; what follows is cut.
    """

    @property
    def name(self) -> str: ...

    @property
    def dimension(self) -> int: ...

    @property
    def max_tokens(self) -> int: ...

    async def ready(self) -> None:
        """Return once `embed` can answer at once, or may later only. Raises EmbedderUnavailable when it never will."""
        ...

    async def embed(self, texts: Sequence[str]) -> Vectors:
        """Embed all of `texts` or none: float32 [len(texts), dimension], in their order, each row of length 1.

        A text's vector does not depend on its neighbours. Never blocks the event loop. Raises EmbedderUnavailable,
        TextRefused when it works, but not on one of these texts.
        """
        ...

    def token_ends(self, text: str) -> list[int]:
        """For each token of `text`, uncut, the offset in characters at which it ends. Blocking, but fast."""
        ...

    async def aclose(self) -> None:
        """Let go of what it holds; calls under way may fail with EmbedderUnavailable."""
        ...


@dataclass(frozen=True, slots=True)
class Parted:
    """A text, and where its parts end, in characters, ascending; the last one ends with the text."""

    text: str
    stops: tuple[int, ...] = ()


@runtime_checkable
class PartsEmbedder(Embedder, Protocol):
    """An embedder that also has the vectors of a text's parts, at the cost of the text alone: it read them all anyway.

    One that has not is used without them.
    """

    async def embed_parts(self, texts: Sequence[Parted]) -> list[Vectors]:
        """Of each text its vector, the one that `embed` gives, then its parts': float32 [1 + parts, dimension].

        A part's vector tells what it says within its text, and is the text's own where the model read none of it.
        Otherwise as `embed`.
        """
        ...
