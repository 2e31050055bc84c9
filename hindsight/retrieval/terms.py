"""Which terms a text holds: what must be found by its meaning is stemmed, what must be found literally is kept whole.

    "The GB/s of don't_care.py"  ->  gb, s, gb/s, don, t, don't_care.py, care, py

Words lose case, accents and English endings. A run of characters between spaces that has more in it than letters and
digits (`GB/s`, `--flag`, `a@b.org`) also counts as one term of its own, so that it is found exactly. Scripts written
without spaces give single characters and pairs.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

import Stemmer

# Raised whenever `terms` gives another answer for some text: stored word blocks are then made again.
VERSION = 1

_STOP_WORDS = frozenset(
    [
        "a",
        "about",
        "after",
        "again",
        "all",
        "also",
        "am",
        "an",
        "and",
        "any",
        "are",
        "as",
        "at",
        "be",
        "because",
        "been",
        "before",
        "being",
        "both",
        "but",
        "by",
        "can",
        "could",
        "did",
        "do",
        "does",
        "doing",
        "don",
        "done",
        "down",
        "during",
        "each",
        "few",
        "for",
        "from",
        "further",
        "get",
        "got",
        "had",
        "has",
        "have",
        "having",
        "he",
        "her",
        "here",
        "hers",
        "him",
        "his",
        "how",
        "i",
        "if",
        "in",
        "into",
        "is",
        "it",
        "its",
        "itself",
        "just",
        "know",
        "let",
        "like",
        "ll",
        "m",
        "me",
        "more",
        "most",
        "my",
        "myself",
        "no",
        "nor",
        "not",
        "now",
        "of",
        "off",
        "on",
        "once",
        "only",
        "or",
        "other",
        "our",
        "ours",
        "out",
        "over",
        "own",
        "re",
        "really",
        "s",
        "same",
        "she",
        "should",
        "so",
        "some",
        "such",
        "t",
        "than",
        "that",
        "the",
        "their",
        "theirs",
        "them",
        "then",
        "there",
        "these",
        "they",
        "this",
        "those",
        "through",
        "to",
        "too",
        "under",
        "until",
        "up",
        "ve",
        "very",
        "was",
        "we",
        "well",
        "were",
        "what",
        "when",
        "where",
        "which",
        "while",
        "who",
        "whom",
        "why",
        "will",
        "with",
        "would",
        "yeah",
        "yes",
        "you",
        "your",
        "yours",
    ]
)
_UNSPACED = "\u0e00-\u0e7f\u1780-\u17ff\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff"
_WORD = re.compile(rf"[{_UNSPACED}]+|[^\W_{_UNSPACED}]+")
_IS_UNSPACED = re.compile(rf"[{_UNSPACED}]")
_OPENING, _CLOSING = "([{<\"'`«“‘„¿¡", ")]}>\"'`»”’.,;:!?…"
_LONGEST_LITERAL = 200


def terms(text: str) -> list[str]:
    """The terms of a text in order, with repeats; empty for one of stop words only."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    found: list[str] = []
    for word in _WORD.findall(folded):
        if _IS_UNSPACED.match(word):
            found += word
            found += (word[at : at + 2] for at in range(len(word) - 1))
        elif (stem := _stem(word)) is not None:
            found.append(stem)
    return found + _literals(folded)


def _literals(folded: str) -> list[str]:
    chunks = (chunk.lstrip(_OPENING).rstrip(_CLOSING) for chunk in folded.split() if not chunk.isalnum())
    return [chunk for chunk in chunks if 1 < len(chunk) <= _LONGEST_LITERAL and not chunk.isalnum()]


@lru_cache(maxsize=1 << 16)
def _stem(word: str) -> str | None:
    plain = "".join(c for c in unicodedata.normalize("NFD", word) if not unicodedata.combining(c))
    if plain in _STOP_WORDS:
        return None
    # A Stemmer is not safe to share between threads; the C object costs a microsecond.
    return Stemmer.Stemmer("english", 0).stemWord(plain) if plain.isalpha() else plain
