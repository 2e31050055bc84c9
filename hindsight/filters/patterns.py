"""LIKE and ILIKE: % is any text, _ any one character, a backslash makes the next character literal.

A pattern is the pieces between its %, each of a fixed length. The last is tied to the text's end, and every other is
taken where it first fits: an atomic group never undoes that choice, so there is no backtracking.
"""

from __future__ import annotations

import re
from collections.abc import Callable

_PART = re.compile(r"\\?(.)", re.DOTALL)


def like(pattern: str, ignore_case: bool) -> Callable[[str], bool]:
    """Whether a text is like the pattern, as a function."""
    flags = re.DOTALL | (re.IGNORECASE if ignore_case else 0)
    pieces = _pieces(pattern)
    tail, length = re.compile("".join(pieces[-1]), flags), len(pieces[-1])
    if len(pieces) == 1:
        return lambda text: tail.fullmatch(text) is not None
    first, *between = ["".join(piece) for piece in pieces[:-1]]
    body = re.compile(first + "".join(f"(?>.*?{piece})" for piece in between if piece), flags)

    def matches(text: str) -> bool:
        end = len(text) - length
        return body.match(text, 0, end) is not None and tail.match(text, end) is not None

    return matches


def _pieces(pattern: str) -> list[list[str]]:
    """For each piece its characters, as regular expressions."""
    pieces: list[list[str]] = [[]]
    for part in _PART.finditer(pattern):
        if part[0] == "%":
            pieces.append([])
        else:
            pieces[-1].append("." if part[0] == "_" else re.escape(part[1]))
    return pieces
