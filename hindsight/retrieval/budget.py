"""Keeps an answer within what the caller can take: a number of tokens."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

_LONGEST_TOKEN = 16  # characters


def fitting(results: Sequence[Mapping[str, Any]], most: int, count: Callable[[str], int]) -> int:
    """How many of the first results have at most `most` tokens together as JSON; one at least, if there is one.

    `count` gives the tokens of a text, never more than it has characters; a text without blanks may be one token to it,
    and counts as more.
    """
    texts = [json.dumps(result, ensure_ascii=False) for result in results]
    if sum(map(len, texts)) <= most:
        return len(texts)
    left = most
    for taken, text in enumerate(texts):
        left -= max(count(text), len(text) // _LONGEST_TOKEN)
        if left < 0:
            return max(1, taken)
    return len(texts)
