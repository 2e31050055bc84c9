"""Cuts a text into the pieces that get vectors of their own, at the end of a line or a sentence where it can.

A vector says what a text is about as a whole, and less of each thing in it the longer the text is. So a longer text has
one for its start, as much as a vector holds, and one for each passage of a few sentences.
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Callable
from dataclasses import dataclass

END = re.compile(r"\n+|(?<=[.!?。！？])\s+")
# In tokens. A text up to SHORT has one vector only; passages are a sentence or two, longer ones in a very long text.
SHORT, SHORTEST, LONGEST = 96, 32, 200
_ENOUGH = 128  # passages, from which on they grow longer instead of more
_MOST = 2_000  # characters of a piece: what has no blanks is one token, however long


@dataclass(frozen=True, slots=True)
class Pieces:
    """Bounds in characters: of the whole, as far as one vector holds it, and of the passages, without gap or overlap.

    A short text has no passages.
    """

    whole: tuple[int, int]
    passages: tuple[tuple[int, int], ...] = ()


def pieces(text: str, limit: int, token_ends: Callable[[str], list[int]]) -> Pieces:
    """The pieces of a text; `limit` is how many tokens a vector holds, `token_ends` the offset where each one ends."""
    if len(text) <= SHORT:  # no tokenizer makes more tokens than characters
        return Pieces((0, len(text)))
    ends = token_ends(text)
    if len(ends) <= SHORT and len(text) <= _MOST:
        return Pieces((0, len(text)))
    whole = min(len(text) if len(ends) <= limit else ends[limit - 1], 4 * _MOST)
    stops = [match.end() for match in END.finditer(text)]
    size = min(LONGEST, limit, max(SHORTEST, len(ends) // _ENOUGH))
    bounds, start = [], 0
    while (token := bisect.bisect_right(ends, start)) + size < len(ends):
        stop = min(start + _MOST, _stop(stops, ends[token + size // 2], ends[token + size - 1]))
        bounds.append((start, stop))
        start = stop
    rest = range(start, len(text), _MOST)
    return Pieces((0, whole), (*bounds, *((at, min(at + _MOST, len(text))) for at in rest)))


def _stop(stops: list[int], least: int, most: int) -> int:
    """The last natural end in (least, most], else `most`."""
    at = bisect.bisect_right(stops, most) - 1
    return stops[at] if at >= 0 and stops[at] > least else most
