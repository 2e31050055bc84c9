"""A filter expression as tokens, each with its place."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from hindsight.errors import InvalidFilter

Kind = Literal["text", "number", "word", "sign", "unknown", "end"]

MOST_CHARACTERS = 10_000
_SHOWN = 40

# Possessive: an unclosed text is an error where it starts, not a shorter text with something odd behind it.
_TOKEN = re.compile(
    r"""
      (?P<space> \s+ | --[^\n]* )
    | (?P<text> '(?: [^'\\] | \\. | '' )*+' )
    | (?P<number> [+-]?(?: [0-9]+(?:\.[0-9]*)? | \.[0-9]+ )(?: [eE][+-]?[0-9]+ )? )
    | (?P<word> [^\W\d]\w* )
    | (?P<sign> == | != | <> | <= | >= | [=<>(),\[\]] )
    | (?P<unknown> . )
    """,
    re.VERBOSE | re.DOTALL,
)
# Any other backslash stays, for LIKE has escapes of its own.
_ESCAPE = re.compile(r"''|\\['\\nrt]")
_ESCAPED = {"''": "'", r"\'": "'", "\\\\": "\\", r"\n": "\n", r"\r": "\r", r"\t": "\t"}


@dataclass(frozen=True, slots=True)
class Token:
    """`position` is a character's, counted from 1; `symbol` a sign or an upper-case word, else empty."""

    kind: Kind
    text: str
    position: int
    symbol: str = ""

    def shown(self) -> str:
        """What it is called in a message."""
        if self.kind == "end":
            return "the end"
        return repr(self.text if len(self.text) <= _SHOWN else self.text[:_SHOWN] + "…")


def refusal(position: int, expected: str, found: str) -> InvalidFilter:
    """The error of an expression that has something else at `position`."""
    message = f"at character {position}: expected {expected}, found {found}"
    return InvalidFilter(message, position=position, expected=expected)


def tokenize(expression: str) -> list[Token]:
    """The tokens, an "end" last. Raises InvalidFilter for an expression too long or a text without end."""
    if len(expression) > MOST_CHARACTERS:
        raise refusal(MOST_CHARACTERS + 1, f"at most {MOST_CHARACTERS:,} characters", f"{len(expression):,}")
    tokens = [_token(found) for found in _TOKEN.finditer(expression) if found.lastgroup != "space"]
    return [*tokens, Token("end", "", len(expression) + 1)]


def _token(found: re.Match[str]) -> Token:
    kind: Kind = found.lastgroup  # type: ignore[assignment]  # the groups of _TOKEN are the kinds
    text, position = found[0], found.start() + 1
    if text == "'":
        raise refusal(position, "a quote that closes this text", "the end")
    return Token(kind, text, position, text.upper() if kind in ("word", "sign") else "")


def content(text: str) -> str:
    """What a text token says, without its quotes and escapes."""
    return _ESCAPE.sub(lambda escape: _ESCAPED[escape[0]], text[1:-1])
