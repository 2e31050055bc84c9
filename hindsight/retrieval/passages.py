"""Cuts a long text into passages, each small enough for one vector, at the end of a line or a sentence where it can."""

from __future__ import annotations

import bisect
import re
from collections.abc import Callable

_END = re.compile(r"\n+|(?<=[.!?。！？])\s+")
# A vector of fewer tokens says more exactly what they mean; of too many short ones, none holds a whole thought.
_TARGET = 200


def passages(text: str, limit: int, token_ends: Callable[[str], list[int]]) -> list[tuple[int, int]]:
    """Bounds of the passages of `text` in characters, without gap or overlap; one passage when `limit` tokens hold it.

    `token_ends` gives the offset at which each token ends.
    """
    if len(text) <= limit:  # no tokenizer makes more tokens than characters
        return [(0, len(text))]
    ends = token_ends(text)
    if len(ends) <= limit:
        return [(0, len(text))]
    stops = [match.end() for match in _END.finditer(text)]
    bounds, start, most = [], 0, min(_TARGET, limit)
    while (token := bisect.bisect_right(ends, start)) + most < len(ends):
        stop = _stop(stops, ends[token + most // 2], ends[token + most - 1])
        bounds.append((start, stop))
        start = stop
    return [*bounds, (start, len(text))]


def _stop(stops: list[int], least: int, most: int) -> int:
    """The last natural end in (least, most], else `most`."""
    at = bisect.bisect_right(stops, most) - 1
    return stops[at] if at >= 0 and stops[at] > least else most
