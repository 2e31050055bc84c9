"""Which terms a text holds: what must be found by its meaning is stemmed, what must be found literally is kept whole.

    "Ann's GB/s of the pre-edit run"  ->  ann, gb, s, pre, edit, run, gb/s, pre-edit

Words lose case, accents, possessive s and English endings. A run of characters between spaces that has more in it than
letters, digits and apostrophes (`GB/s`, `--flag`, `a@b.org`) also counts as one term of its own, so that it is found
exactly. Scripts written without spaces give single characters and pairs.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

import Stemmer

# Raised whenever `terms` gives another answer for some text: stored word blocks are then made again.
VERSION = 1

# Function words of English. Words that merely frame a question ("kind", "mention") were tried too: no gain. `don't`
# and its like are not among them, so they are found.
_STOP_WORDS = frozenset(
    """a about after again all also am an and any are as at be because been before being both but by can could did do
    does doing down during each few for from further had has have having he her here hers herself him himself his how i
    if in into is it its itself just let me more most my myself no nor not of off on once only or other our ours out
    over own same she should so some such than that the their theirs them themselves then there these they this those
    through to too under until up us very was we were what when where which while who whom why will with would you your
    yours yourself yourselves im ive id ill youre youve hes shes its were theyre thats whats lets""".split()
)
_UNSPACED = "\u0e00-\u0e7f\u1780-\u17ff\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff"
_WORD = re.compile(rf"[{_UNSPACED}]+|[^\W_{_UNSPACED}]+(?:'[^\W_{_UNSPACED}]+)*")
_IS_UNSPACED = re.compile(rf"[{_UNSPACED}]")
_OPENING, _CLOSING = "([{<\"'`«“‘„¿¡", ")]}>\"'`»”’.,;:!?…"
_LONGEST_LITERAL = 200
_HYPHENED = re.compile(r"[^\W\d_]+(?:-[^\W\d_]+)+")


def terms(text: str) -> list[str]:
    """The terms of a text in order, with repeats; empty for one of stop words only."""
    folded = unicodedata.normalize("NFKC", text).casefold().replace("\u2019", "'")
    found: list[str] = []
    for word in _WORD.findall(folded):
        if _IS_UNSPACED.match(word):
            found += word
            found += (word[at : at + 2] for at in range(len(word) - 1))
        elif (stem := _stem(word)) is not None:
            found.append(stem)
    return found + _literals(folded)


def is_literal(term: str) -> bool:
    """Whether a term is meant to the letter: an identifier, a path, a version, not a word or a number of a language."""
    return not term.isalpha() and not term.isdigit() and not _HYPHENED.fullmatch(term)


def _literals(folded: str) -> list[str]:
    chunks = (chunk.lstrip(_OPENING).rstrip(_CLOSING) for chunk in folded.split() if not chunk.isalnum())
    return [chunk for chunk in chunks if 1 < len(chunk) <= _LONGEST_LITERAL and not chunk.replace("'", "").isalnum()]


@lru_cache(maxsize=1 << 16)
def _stem(word: str) -> str | None:
    bare = word.removesuffix("'s").replace("'", "")
    plain = "".join(c for c in unicodedata.normalize("NFD", bare) if not unicodedata.combining(c))
    if not plain or plain in _STOP_WORDS:
        return None
    # A Stemmer is not safe to share between threads; the C object costs a microsecond.
    return Stemmer.Stemmer("english", 0).stemWord(plain) if plain.isalpha() else plain
