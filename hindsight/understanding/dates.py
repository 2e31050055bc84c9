"""Time in plain text: the date that a memory names, and the window of days that a query speaks of.

Everything here is a pure function of its arguments: the reference instant and the zone come in, the host's clock and
zone are never asked.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta, tzinfo
from typing import TYPE_CHECKING

from hindsight.understanding.when import DAY, ISO, When, parse_when, span_of_days, whole_day

if TYPE_CHECKING:
    from date_wrangler import DateMatch

_READ = 2_000  # characters; date-wrangler takes a second for 100 kB

_NAMES = "january|february|april|june|july|august|september|october|november|december"
_SHORT = r"(?:jan|feb|mar|apr|jun|jul|aug|sept?|oct|nov|dec|may|march)\.?"
_WEEKDAY = "(?:mon|tues|wednes|thurs|fri|satur|sun)day"
_WEEKDAY_SHORT = "(?:mon|tues?|wed|thurs?|thu|fri|sat|sun)"
_SEASON = "(?:spring|summer|autumn|fall|winter)"
_COUNT = (
    r"(?:[0-9]{1,4}|an?|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|(?:a )?couple(?: of)?|"
    r"the|fifteen|twenty|thirty)"
)
_UNIT = "(?:day|week|fortnight|month|year)"

# Whether it is worth to look closer. Reads lower case and looks for the edge of a word once: five times as fast so.
_TIME = re.compile(
    rf"\b(?:(?:yesterday|today|tonight|tomorrow|ago|weekend|{_NAMES}|{_WEEKDAY})\b"
    rf"|(?:in|of|since|until|till|by|last|this|next|early|mid|late|during|from|to|and|between|before|after|end of)"
    rf"[ -]{_SHORT}(?![\w-])|{_SHORT},? ?'?[0-9]"
    rf"|(?:last|past|this|next|previous|coming|same) (?:{_COUNT} |few |several )?"
    rf"(?:hours?|minutes?|{_UNIT}s?|quarter|night|morning|afternoon|evening|{_SEASON})\b"
    rf"|in {_COUNT} {_UNIT}s?\b|{_UNIT}s? from (?:now|today)\b"
    rf"|(?:in|during|over|since|until|by) (?:the )?(?:(?:early|late) )?{_SEASON}\b"
    rf"|{_SEASON} (?:of )?[12][0-9]{{3}}\b"
    rf"|(?:in|on|by|since|this|next|last) {_WEEKDAY_SHORT}\b|{_WEEKDAY_SHORT},? [0-9]"
    r"|on the [0-9]{1,2}(?:st|nd|rd|th)\b"
    r"|[0-9]{4}-(?:[0-9]{2}|w[0-9]{2}|q[1-4])|[0-9]{4}/[0-9]{1,2}/|[0-9]{1,2}([/.-])[0-9]{1,2}\1[0-9]{2,4}\b"
    r"|(?:in|since|until|till|before|after|by|year|from|early|late|mid|during|of|summer|and|to)[ -](?:the year )?"
    r"(?:1[89]|20)[0-9]{2}s?\b|(?:q[1-4]|h[12])\b)"
    rf"|[0-9](?:st|nd|rd|th)?[ -](?:of )?{_SHORT}(?!\w)"
)


def date_in(text: str, now: datetime, zone: tzinfo) -> When | None:
    """The date that a memory's text names, relative to `now`, if it names one only; None when it doesn't.

    A span stands as its first day ("in March" is the 1st, "last week" its Monday), "two weeks ago" as that very day,
    and a date-time in ISO form as itself. A date without its year or week is the latest not after `now`, or the next
    one when the sentence speaks of what is to come. Of dates that hold one another ("in May 2024, on the 3rd") the
    narrowest counts; others that differ are ambiguous. A range, a duration, a habit ("every Friday"), a birthday and
    03/04/2024 are no date. Reads 2,000 characters. Raises ValueError only, for a naive `now`.
    """
    mentions = [mention for mention in _mentions(text, now, zone) if mention.day]
    if not mentions:
        return None
    narrowest = min(mentions, key=_Mention.width)
    if not all(mention.holds(narrowest) for mention in mentions):
        return None
    moments = {mention.moment for mention in mentions if mention.moment}
    return moments.pop() if len(moments) == 1 else whole_day(narrowest.day or date.min, zone)


def span_in(query: str, now: datetime, zone: tzinfo) -> tuple[datetime, datetime] | None:
    """The window [start, end) in UTC that a query speaks of, relative to `now`; None when it speaks of none.

    "last week" is Monday to Monday, "the last two weeks" runs up to the end of today, "since May" is open at its end
    (the last instant there is), "before 2020" at its start. A month without a year is the latest one not after `now`;
    seasons are the northern ones. Several dates named together are one window, other dates that differ are none.
    Reads 2,000 characters. Raises ValueError only, for a naive `now`.
    """
    mentions = _mentions(query, now, zone)
    if not mentions:
        return None
    chosen = min(mentions, key=_Mention.width)
    if len({mention.group for mention in mentions}) == 1:
        chosen = _hull(mentions)
    elif not all(mention.holds(chosen) for mention in mentions):
        return None
    return span_of_days(chosen.start, chosen.last, zone)


@dataclass(frozen=True, slots=True)
class _Mention:
    """Time named in a text: local days `start` to `last`, None where open; `day` stands for it, None if none can."""

    start: date | None
    last: date | None
    day: date | None = None
    moment: When | None = None
    group: int = -1

    def width(self) -> timedelta:
        return (self.last or date.max) - (self.start or date.min)

    def holds(self, other: _Mention) -> bool:
        point = other.day or other.start or other.last or date.min
        return (self.start or date.min) <= point <= (self.last or date.max)


def _hull(mentions: list[_Mention]) -> _Mention:
    starts, lasts = [mention.start for mention in mentions], [mention.last for mention in mentions]
    return _Mention(
        None if None in starts else min(day for day in starts if day),
        None if None in lasts else max(day for day in lasts if day),
    )


def _mentions(text: str, now: datetime, zone: tzinfo) -> list[_Mention]:
    if now.tzinfo is None:
        raise ValueError("now must be an aware datetime")
    text = text[:_READ]
    if not _TIME.search(text.lower()):
        return []
    try:
        return _Reader(now.astimezone(zone), zone).read(text)
    except (OverflowError, ValueError):  # only near the ends of the calendar: "5000 years ago"
        return []


# What is no date though date-wrangler reads one, or would not see as the habit or the name that it is.
_NO_DATE = re.compile(
    r"\b(?:(?<!on )(?<!last )(?<!this )(?<!next )(?-i:sat|sun|wed|mon)\b(?! ?[0-9,])"
    rf"|(?:every|each|most|any)\s+(?:other\s+|single\s+|second\s+)?\S+(?:\s+and\s+{_WEEKDAY})?"
    r"|(?:black|good|holy|casual|throwback) (?:fri|thurs|satur)day\b|cyber monday\b|(?:ash|palm|easter) \w+day\b"
    rf"|{_COUNT} {_UNIT}s? (?:later|earlier|(?:before|after)(?! (?:yesterday|tomorrow|last))|from (?!now|today)\w+)\b"
    r"|(?:i|you|he|she|it|we|they|who|that|which|there|one|this) (?:may|march)\b"
    r"|may [0-9]+ (?:people|times|users)\b"
    r"|(?:version|release|build|v|tag|commit|order|ticket|issue|invoice|id|ref|room|model|phone|tel)[ .:#]{0,2}[#+v]?"
    rf"(?![0-9]{{1,2}}(?:st|nd|rd|th)?[ -](?:of )?(?:{_SHORT}|{_NAMES}|{_UNIT}|hour|min))[0-9][\w./-]*"
    r"|(?<!this )(?<!last )(?<!next )(?<!past )(?<!coming )weekend\b|within \w+ \w+)",
    re.IGNORECASE,
)
# Parts of a day and clock times, which date-wrangler does not read: the day stays.
_PART_OF_DAY = re.compile(
    r"(?:(?<=day)|(?<=tomorrow)) (?:early |late )?(?:morning|afternoon|evening|night)\b|(?<=ago) today\b"
    r"|\b(?:at |around |by |before |after |from )?"
    r"(?:[0-9]{1,2}:[0-9]{2}(?::[0-9]{2})?(?: ?[ap]\.?m\b)?|[0-9]{1,2} ?[ap]m\b|noon\b|midnight\b)",
    re.IGNORECASE,
)
_MET = "went|met|saw|had|did|got|arrived|left|came|finished|started|shipped|called|see you|spoke|talked|happened"
_SAME = (
    (re.compile(r"\blast night\b", re.IGNORECASE), "yesterday"),
    (re.compile(r"\btonight\b|\b(?:this|earlier this|later this) (?:morning|afternoon|evening)\b", re.I), "today"),
    (re.compile(r"\bhalf a year(?= ago)", re.IGNORECASE), "6 months"),
    (re.compile(rf"(?:^|(?<=[.!?:] ))({_WEEKDAY}) (?=(?:i|we|he|she|they|the|my|our)\b)", re.I), r"on \1 "),
    (re.compile(rf"\b((?:{_MET})(?: [\w']+){{0,3}}?) ({_WEEKDAY})(?=[.,!?]|$)", re.I), r"\1 on \2"),
    (re.compile(r"\bthe previous (?=day|week|month|year)", re.IGNORECASE), "last "),
)
_STAMP = re.compile(
    r"(?<![\w/.#:+-])(?=[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9]{2}:)" + ISO.pattern + r"(?![\w/:-])(?!\.\w)"
)
_HOURS = re.compile(rf"\b({_COUNT})(?: or so)? (hour|minute|min|hr)s? ago\b", re.IGNORECASE)
_AGO = re.compile(rf"\b({_COUNT}) ({_UNIT})s? ago\b", re.IGNORECASE)
_HENCE = re.compile(
    rf"\b(?:in ({_COUNT}) ({_UNIT})s?(?! ago| before| after)|({_COUNT}) ({_UNIT})s? from (?:now|today))\b",
    re.IGNORECASE,
)
_ROLLING = re.compile(
    rf"\b(?:(?:over|for|in|during|within) the (?:last|past|previous)|(?:last|past|previous)(?= {_COUNT} ))"
    rf"(?: ({_COUNT}))? ({_UNIT}|hour|minute)s?\b",
    re.IGNORECASE,
)
_IN_SEASON = re.compile(
    rf"\b(?:(last|this|next|past) |(?:in |during |over |since )?(?:the )?)({_SEASON})"
    r"(?:,? (?:of )?([12][0-9]{3}))?\b",
    re.IGNORECASE,
)
_OVER_WEEKEND = re.compile(r"\b(?:over|at|on|during) the weekend\b", re.IGNORECASE)
_LEAP_DAY = re.compile(
    r"\b(?:(?:the )?29(?:th)?(?: of)? feb(?:ruary)?|feb(?:ruary)? (?:the )?29(?:th)?)\b(?!,? [12][0-9]{3})",
    re.IGNORECASE,
)
_AHEAD = re.compile(
    r"\b(?:will|won't|shall|going to|due(?! to)|deadline|upcoming|scheduled|planned|plan(?:s|ning)? to|appointment|"
    r"expires?|starts|begins|(?:is|are)(?: \w+ing)?(?: \w+)? on|see you|book(?:ed)? for|set for|needs? to|must|"
    r"remind|'m \w+ing|am \w+ing)\b|'ll\b",
    re.IGNORECASE,
)
_HABIT = re.compile(
    r"\b(?:always|usually|often|never|birthdays?|anniversary|annual|annually|yearly|weekly|monthly|daily|regularly|"
    r"typically|normally|generally|every|each|was born|whenever)\b",
    re.IGNORECASE,
)
_BARE_WEEKDAY = re.compile(rf"(?:\w+ )?(?:{_WEEKDAY}|{_WEEKDAY_SHORT}\.?)", re.IGNORECASE)
_BARE_DAY = re.compile(r"(?:.* )?the [0-9]{1,2}(?:st|nd|rd|th)", re.IGNORECASE)
_NUMBERS = {
    "one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9, "ten": 10,
    "eleven": 11, "twelve": 12, "fifteen": 15, "twenty": 20, "thirty": 30, "a": 1, "an": 1, "the": 1,
}  # fmt: skip
_SEASONS = {"spring": 3, "summer": 6, "autumn": 9, "fall": 9, "winter": 12}


class _Reader:
    """Reads one text: our own rules take what date-wrangler refuses or gets wrong out of it, and it reads the rest."""

    def __init__(self, now: datetime, zone: tzinfo) -> None:
        self._now, self._zone, self._today = now, zone, now.date()
        self._found: list[_Mention] = []

    def read(self, text: str) -> list[_Mention]:
        for pattern, reader in self._rules():
            text = pattern.sub(reader, text)
        return self._found + [mention for match in _wrangled(text, self._today) for mention in self._match(match, text)]

    def _rules(self) -> list[tuple[re.Pattern[str], Callable[[re.Match[str]], str]]]:
        same = [(pattern, lambda found, words=words: found.expand(words)) for pattern, words in _SAME]
        return [
            (_STAMP, self._stamp),
            (_OVER_WEEKEND, self._weekend),
            (_NO_DATE, lambda _: " | "),
            (_PART_OF_DAY, lambda _: " "),
            *same,
            (_HOURS, self._hours_ago),
            (_AGO, self._ago),
            (_HENCE, self._hence),
            (_ROLLING, self._rolling),
            (_IN_SEASON, self._season),
            (_LEAP_DAY, self._leap_day),
        ]

    def _note(self, mention: _Mention) -> str:
        # A group of its own: nothing joins it to another date.
        self._found.append(replace(mention, group=-1 - len(self._found)))
        return " | "

    def _stamp(self, found: re.Match[str]) -> str:
        try:
            moment = parse_when(found[0], self._zone)
        except ValueError:
            return " | "
        day = moment.start.astimezone(self._zone).date()
        return self._note(_Mention(day, day, day, moment))

    def _weekend(self, found: re.Match[str]) -> str:
        if _AHEAD.search(_sentence(found.string, found.start())) or self._today.weekday() > 4:
            return "this weekend"
        return "last weekend"

    def _hours_ago(self, found: re.Match[str]) -> str:
        day = (self._now - _hours(found)).date()
        return self._note(_Mention(day, day, day))

    def _ago(self, found: re.Match[str]) -> str:
        day = _back(self._today, _number(found[1]), found[2])
        return self._note(_Mention(*_unit_of(day, found[2].lower()), day))

    def _hence(self, found: re.Match[str]) -> str:
        if found[1] and not _AHEAD.search(_sentence(found.string, found.start())):  # "done in two weeks"
            return " | "
        number, unit = found[1] or found[3], (found[2] or found[4]).lower()
        day = _back(self._today, -_number(number), unit)
        return self._note(_Mention(*_unit_of(day, unit), day))

    def _rolling(self, found: re.Match[str]) -> str:
        unit = found[2].lower()
        hours = unit in ("hour", "minute")
        first = (self._now - _hours(found)).date() if hours else _back(self._today, _number(found[1] or "one"), unit)
        return self._note(_Mention(first, self._today))

    def _season(self, found: re.Match[str]) -> str:
        which, season, year = (part and part.lower() for part in found.groups())
        if not (
            which or year or re.match(r"(?:in|during|over|since) the\b", found[0], re.IGNORECASE)
        ):  # "in autumn" is any
            return found[0]
        month = _SEASONS[season or ""]
        start = date(int(year), month, 1) if year else self._season_start(month, which, found)
        return self._note(_Mention(start, _back(start, -3, "month") - DAY, start))

    def _season_start(self, month: int, which: str | None, found: re.Match[str]) -> date:
        """The first day of the season that `which` ("last", "this", "next" or None) names, seen from today."""
        begun = date(self._today.year, month, 1)
        if begun > self._today:
            begun = _back(begun, 1, "year")
        following, over = _back(begun, -1, "year"), _back(begun, -3, "month")
        if which == "next" or (not which and _AHEAD.search(_sentence(found.string, found.start()))):
            return following
        if self._today < over:
            return _back(begun, 1, "year") if which in ("last", "past") else begun
        nearer = which == "this" and following - self._today < self._today - over
        return following if nearer else begun

    def _leap_day(self, found: re.Match[str]) -> str:
        ahead = _AHEAD.search(_sentence(found.string, found.start())) is not None
        years = range(self._today.year, self._today.year + 9) if ahead else range(self._today.year, 0, -1)
        leap = (date(year, 2, 29) for year in years if year % 4 == 0 and (year % 100 or year % 400 == 0))
        return f"29 February {next(day.year for day in leap if ahead or day <= self._today)}"

    def _match(self, match: DateMatch, text: str) -> list[_Mention]:
        """What date-wrangler read, put right; empty for what is no date after all."""
        sentence = _sentence(text, match.span[0])
        loose = match.confidence < 0.9 and not re.search(r"[0-9]{4}", match.text)
        if _glued(match, text) or (loose and _HABIT.search(sentence)) or not self._plausible(match, sentence):
            return []
        if loose:
            ahead = _mod(match) == "until" or _AHEAD.search(sentence) is not None
            match = self._nearest(match, ahead)
        period = match.range
        last = period.end and period.end - DAY
        if match.text.lower().startswith("from ") and not last:  # "the notes from Tuesday" are that day's
            last = period.start
        return [_Mention(period.start, last, _day_of(match), group=match.group)]

    def _plausible(self, match: DateMatch, sentence: str) -> bool:
        if re.match(r"[0-9]{4}\.", match.text):  # 2024.1.3 is a version as often
            return False
        if match.confidence <= 0.5:  # "two weeks from Friday": only a part was read
            return False
        if match.confidence == 0.9 and "." not in match.text:  # 03/04/2024
            return False
        if re.fullmatch(r"[A-Za-z]+\.? [0-9]{2}", match.text) and match.range.grain.value == "month":  # "May 32"
            return False
        year = re.fullmatch(r"(?:\w+ )?([0-9]{4})", match.text)
        return year is None or 1800 <= int(year[1]) <= self._today.year + 10

    def _nearest(self, match: DateMatch, ahead: bool) -> DateMatch:
        """The same words read as of another week, month or year, where date-wrangler took the one on the wrong side."""
        unit = "week" if _BARE_WEEKDAY.fullmatch(match.text) else "month" if _BARE_DAY.fullmatch(match.text) else "year"
        edge = match.start or (match.end or self._today) - DAY
        # "on Wednesday", said on a Wednesday, is not today.
        if not ahead and (edge > self._today or (unit == "week" and edge == self._today)):
            return _reread(match, _back(self._today, 1, unit))
        if ahead and (match.end or date.max) <= self._today + (DAY if unit == "week" else 0 * DAY):
            return _reread(match, _back(self._today, -1, unit))
        return match


def _wrangled(text: str, today: date) -> list[DateMatch]:
    # Late on purpose: it compiles its rules for half a second, which no start should wait for.
    from date_wrangler import parse

    try:
        return parse(text, today=today)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):  # it promises not to; text is hostile
        return []


def _reread(match: DateMatch, today: date) -> DateMatch:
    again = _wrangled(f"on {match.text}" if _BARE_DAY.fullmatch(match.text) else match.text, today)
    return again[0] if len(again) == 1 else match


def _day_of(match: DateMatch) -> date | None:
    """The day that stands for it as an event's date: its first, a deadline's last; none for a range or an open side."""
    if match.endpoints or _mod(match) in ("before", "after"):
        return None
    if _mod(match) == "until":
        return match.end and match.end - DAY if match.range.grain.value == "day" else None
    wide = match.start and match.end and (match.end - match.start).days > 366
    return None if wide else match.start


def _mod(match: DateMatch) -> str:
    return match.range.mod.value if match.range.mod else ""


def _glued(match: DateMatch, text: str) -> bool:
    """Whether it is a piece of a longer token: a file's name, an order number, a path."""
    start, end = match.span
    before, after = text[max(0, start - 1) : start], text[end : end + 2]
    numbered = match.text[0].isalpha() and re.search(r"[0-9] $", text[max(0, start - 2) : start])
    if numbered and re.match(rf"{_SHORT}|{_NAMES}", match.text, re.IGNORECASE):  # "32 May 2024"
        return True
    return bool(re.match(r"[\w#/._+-]", before) or re.match(r"[\w/_]|[.-]\w", after))


def _sentence(text: str, at: int) -> str:
    start = max(text.rfind(mark, 0, at) for mark in (". ", "! ", "? ", "\n", "; "))
    ends = [end for mark in (". ", "! ", "? ", "\n", "; ") if (end := text.find(mark, at)) >= 0]
    return text[start + 1 : min(ends, default=len(text))]


def _number(word: str) -> int:
    word = word.lower()
    return 2 if "couple" in word else _NUMBERS.get(word) or int(word)


def _hours(found: re.Match[str]) -> timedelta:
    number = _number(found[1] or "one")
    return timedelta(hours=number) if found[2].lower() in ("hour", "hr") else timedelta(minutes=number)


def _back(day: date, number: int, unit: str) -> date:
    """`day` moved back by whole units, to the last day of a month that is too short. OverflowError, ValueError."""
    unit = unit.lower()
    if unit in ("day", "week", "fortnight"):
        return day - number * {"day": 1, "week": 7, "fortnight": 14}[unit] * DAY
    months = day.year * 12 + day.month - 1 - number * (12 if unit == "year" else 1)
    first = date(months // 12, months % 12 + 1, 1)
    return min(first + (day.day - 1) * DAY, _month_end(first))


def _month_end(day: date) -> date:
    return (day.replace(day=28) + 4 * DAY).replace(day=1) - DAY


def _unit_of(day: date, unit: str) -> tuple[date, date]:
    """First and last day of the calendar unit that `day` lies in."""
    if unit == "day":
        return day, day
    if unit in ("week", "fortnight"):
        monday = day - day.weekday() * DAY
        return monday, monday + 6 * DAY
    if unit == "month":
        return day.replace(day=1), _month_end(day)
    return day.replace(month=1, day=1), day.replace(month=12, day=31)
