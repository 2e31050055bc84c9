"""Meaning and words on one scale: what each passage scores, and each memory by its best passage.

    H = cosine + words        cosine in -1..1, words in 0..1 (retrieval/words.py)

Both parts mean the same for every query and bank, so they add up without being ranked or stretched first; rank fusion
loses eight points of recall to it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hindsight.retrieval.words import Keys, Scores


def hybrid(cosines: Scores, words: Scores) -> Scores:
    """H of passages, each float32 [n]."""
    return cosines + words


def best_memories(keys: Keys, numbers: Keys, scores: Scores, most: int) -> list[tuple[int, int]]:
    """The `most` best memories as (number, key of the best passage), best first; of equals the one retained first.

    `keys`, `numbers` and `scores` are [n]: passages, their memories, and what they score.
    """
    order: npt.NDArray[np.int64] = np.lexsort((keys, -scores))
    best: dict[int, int] = {}
    for at in order:
        best.setdefault(int(numbers[at]), int(keys[at]))
        if len(best) == most:
            break
    return list(best.items())
