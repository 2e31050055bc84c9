"""The contract of an embedder: what turns texts into vectors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

Vectors = npt.NDArray[np.float32]


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
