"""What a memory's text says of itself that recall wants to know, read once when it is retained."""

from __future__ import annotations

import re

from hindsight.record import Traits

_LABEL = re.compile(r"\s*([^\W\d_][\w.'\u2019-]{0,40}(?: [\w.'\u2019-]{1,40}){0,2}):\s")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+")
_TELLS_TIME = re.compile(
    r"\b(today|yesterday|tomorrow|tonight|last|next|ago|since|recently|soon|morning|evening|weekend"
    r"|(?:day|week|month|year)s?|(?:mon|tues|wednes|thurs|fri|satur|sun)day|\d{4}"
    r"|january|february|march|april|may|june|july|august|september|october|november|december)\b"
)
_SHORT_QUESTION = 15  # words


def traits_of(text: str) -> Traits:
    """The traits of a text."""
    found = _LABEL.match(text)
    label, body = (found[1].casefold(), text[found.end() :]) if found else ("", text)
    body = body.strip()
    asks = body.endswith("?")
    return Traits(
        label=label,
        asks=asks,
        only_asks=asks and _SENTENCE_END.search(body) is None and len(body.split()) <= _SHORT_QUESTION,
        tells_time=_TELLS_TIME.search(body.lower()) is not None,
    )
