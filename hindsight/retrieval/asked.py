"""A query taken apart: whom it names, what else it asks, and for which time."""

from __future__ import annotations

import re
from collections.abc import Container, Iterator
from dataclasses import dataclass
from datetime import date

import numpy as np
import numpy.typing as npt

from hindsight.retrieval.terms import terms

Days = npt.NDArray[np.int64]
Scores = npt.NDArray[np.float32]

_WHEN = re.compile(r"\s*(when|how long|what (?:date|day|year|month|time))\b", re.IGNORECASE)
_WORD = re.compile(r"[^\W_]+(?:[.'\u2019-][^\W_]+)*")
_POSSESSIVE = re.compile(r"['\u2019]s?\b|['\u2019](?=\s|$)")
_LONGEST_LABEL = 3  # words
_EPOCH = date(1970, 1, 1)
# A window's days, and what lying in it says: a year says too little to turn the order round.
_GRADES = ((2, 1.0), (92, 0.5), (366, 0.15))


@dataclass(frozen=True, slots=True)
class PartialDate:
    """A date as a query gives it: a month, perhaps a day in it, perhaps without the year."""

    year: int | None
    month: int
    day: int | None


@dataclass(frozen=True, slots=True)
class Asked:
    """`text` is the query without the labels it names, for embedding; `terms` are those of the whole query, once each.

    `labels` are those of the bank's that it names.
    """

    text: str
    terms: tuple[str, ...]
    labels: frozenset[str]
    when: bool
    dates: tuple[PartialDate, ...]


def asked(query: str, labels: Container[str]) -> Asked:
    """Take a query apart for a bank whose memories carry `labels`, in lower case.

    The labels leave the text: a name pulls the vector to all that its bearer ever said, and drowns the topic. What they
    say is given back by the speaker's weight (retrieval/mix.py).
    """
    spans = list(_named(query, labels))
    rest = query
    for start, end in reversed(spans):
        possessive = _POSSESSIVE.match(rest, end)
        rest = rest[:start] + rest[possessive.end() if possessive else end :]
    rest = re.sub(r"\s+", " ", re.sub(r"\s+([?,.!])", r"\1", rest)).strip()
    return Asked(
        # Nothing but names: then they are the topic.
        text=rest if spans and re.search(r"\w", rest) else query,
        terms=tuple(dict.fromkeys(terms(query))),
        labels=frozenset(query[start:end].casefold() for start, end in spans),
        when=_WHEN.match(query) is not None,
        dates=tuple(_dates(query)),
    )


def _named(query: str, labels: Container[str]) -> Iterator[tuple[int, int]]:
    """Where the query names labels, the longest first at each place."""
    words = [(m.start(), m.end()) for m in _WORD.finditer(query)]
    at = 0
    while at < len(words):
        for size in range(min(_LONGEST_LABEL, len(words) - at), 0, -1):
            start, end = words[at][0], words[at + size - 1][1]
            bare = re.sub(r"['\u2019]s?$", "", query[start:end])
            if bare.casefold() in labels:
                yield start, start + len(bare)
                at += size - 1
                break
        at += 1


_MONTHS = "january february march april may june july august september october november december".split()
_MONTH = {name[:size]: i + 1 for i, name in enumerate(_MONTHS) for size in (3, len(name))} | {"sept": 9}
_MONTH_NAMES = "|".join(sorted(_MONTH, key=len, reverse=True))
_D, _Y, _M = r"(?P<day>\d\d?)(?:st|nd|rd|th)?", r"(?P<year>\d{4})", rf"(?P<month>{_MONTH_NAMES})"
_DATES = [
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        r"\b(?P<year>\d{4})-(?P<number>\d\d?)-(?P<day>\d\d?)\b",
        r"\b(?P<day>\d\d?)\.(?P<number>\d\d?)\.(?P<year>\d{4})\b",
        rf"\b{_D}(?: of)? {_M}\b\.?,?(?: {_Y}\b)?",
        rf"\b{_M}\b\.? {_D}\b(?!:)(?:,? {_Y}\b)?",
        rf"\b{_M}\b\.?,?(?: of)? {_Y}\b",
        rf"\b(?P<month>{'|'.join(m for m in _MONTHS if m not in ('may', 'march'))})\b",
        r"\b(?:in|of|during|by|since|early|late) (?P<month>may|march)\b",  # elsewhere both are verbs
    )
]


def _dates(query: str) -> Iterator[PartialDate]:
    """The dates that the query names outright; relative ones belong to whoever knows the day."""
    rest = query
    for pattern in _DATES:
        for match in pattern.finditer(rest):
            part = match.groupdict()
            month = int(part["number"]) if part.get("number") else _MONTH[part["month"].lower()]
            year, day = part.get("year"), part.get("day")
            if 1 <= month <= 12:
                yield PartialDate(int(year) if year else None, month, int(day) if day else None)
        rest = pattern.sub(" ", rest)


def nearness(wanted: PartialDate, days: Days) -> Scores:
    """How near memories are to a date, float32 [n]: 1 on the day, .6 the day after, .3 within the week; .5 in a month.

    People tell of yesterday, hence the days after. `days` count from 1970.
    """
    stamps = days.astype("datetime64[D]")
    years = stamps.astype("datetime64[Y]").astype(np.int64) + 1970
    if wanted.day is None:
        months = stamps.astype("datetime64[M]").astype(np.int64) % 12 + 1
        meant = (months == wanted.month) & (True if wanted.year is None else years == wanted.year)
        return np.where(meant, np.float32(0.5), np.float32(0))
    near = np.zeros(len(days), np.float32)
    for year in [wanted.year] if wanted.year else np.unique(years).tolist():
        near = np.maximum(near, _after(days, year, wanted.month, wanted.day))
    return near


def _after(days: Days, year: int, month: int, day: int) -> Scores:
    try:
        off = days - (date(year, month, day) - _EPOCH).days
    except ValueError:  # 31 June, or 29 February of this year
        return np.zeros(len(days), np.float32)
    return np.select([off == 0, off == 1, (off >= 2) & (off <= 7)], [1.0, 0.6, 0.3], 0.0).astype(np.float32)


def within(first: date, last: date, days: Days) -> Scores:
    """How near memories are to a window of days, both included: float32 [n], less inside a wide one, 0 outside."""
    width = (last - first).days + 1
    grade = next((grade for most, grade in _GRADES if width <= most), 0.0)
    inside = (days >= (first - _EPOCH).days) & (days <= (last - _EPOCH).days)
    return np.where(inside, np.float32(grade), np.float32(0))
