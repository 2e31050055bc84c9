"""Dates that a caller gives: any ISO 8601 form, and those that Python's and JavaScript's libraries print.

A day is a day of the given zone; every datetime that leaves is aware and in UTC. The host's zone is never asked.
"""

from __future__ import annotations

import email.utils
import re
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, timezone, tzinfo

DAY = timedelta(days=1)
_FIRST = datetime.min.replace(tzinfo=UTC)
_LAST = datetime.max.replace(tzinfo=UTC)
_ALLOWED = "an ISO 8601 date or date-time of the years 1 to 9999, such as 2024-05-03 or 2024-05-03T10:15:00Z"


@dataclass(frozen=True, slots=True)
class When:
    """A date or an instant, as it was meant.

    `text` is the stored form: '2024-05-03' for a date, '2024-05-03T10:15:00Z' for a date-time, in UTC, with a fraction
    (1 to 9 digits, no trailing zeros) only where one was given. `start` and `end` are the span [start, end) in UTC: the
    whole day in the zone for a date, twice the instant (cut to microseconds) for a date-time.
    """

    text: str
    start: datetime
    end: datetime


_OFFSET = r"(?P<offset>[Zz]|[+\-\u2212][0-9]{2}(?::?[0-9]{2}(?::?[0-9]{2})?)?)"
ISO = re.compile(
    r"(?P<year>[+]00[0-9]{4}|[0-9]{4})"
    r"(?:-(?P<month>[0-9]{2})-(?P<day>[0-9]{2})|(?P<month_>[0-9]{2})(?P<day_>[0-9]{2})"
    r"|-?W(?P<week>[0-9]{2})-?(?P<weekday>[1-7])|-?(?P<ordinal>[0-9]{3}))"
    r"(?:(?:[Tt]| {1,2})(?P<hour>[0-9]{2})(?::?(?P<minute>[0-9]{2})(?::?(?P<second>[0-9]{2})"
    rf"(?:[.,](?P<fraction>[0-9]{{1,9}}))?)?)?(?: ?(?:{_OFFSET}|(?P<utc>UTC|GMT)))?(?:\[[A-Za-z0-9_+/:=-]+\])?)?"
)
_COARSE = re.compile(r"[0-9]{4}(?:-?(?:[0-9]{2}|W[0-9]{2}))?")
_MAIL = re.compile(
    r"(?:(?P<named>[A-Z][a-z]{2}),? )?[0-9]{1,2}[ -][A-Z][a-z]{2}[ -][0-9]{4} [0-9]{2}:[0-9]{2}(?::[0-9]{2})?"
    r"(?: (?:[+-][0-9]{4}|[A-Z]{1,4}))?(?: \([^()]*\))?"
)
# JavaScript's Date.toString and toDateString, C's and Python's ctime.
_CTIME = re.compile(
    r"(?P<named>[A-Z][a-z]{2}) (?P<month>[A-Z][a-z]{2}) {1,2}(?P<day>[0-9]{1,2})"
    r"(?: (?P<time>[0-9]{2}:[0-9]{2}:[0-9]{2}))? (?P<year>[0-9]{4})"
    r"(?: (?P<time_>[0-9]{2}:[0-9]{2}:[0-9]{2}) (?:GMT|UTC)(?P<offset>[+-][0-9]{4})?)?(?: \([^()]*\))?"
)
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")


def parse_when(value: str, zone: tzinfo) -> When:
    """A date given by a caller: any form that Python's and JavaScript's libraries print; without an offset, in `zone`.

    Raises ValueError, with what is allowed, for everything else: also for a month or a year alone, and for an instant
    that UTC puts outside the years 1 to 9999.
    """
    try:
        return _read(value.strip(), zone)
    except OverflowError as error:
        raise ValueError(_ALLOWED) from error


def _read(value: str, zone: tzinfo) -> When:
    if found := ISO.fullmatch(value):
        return _from_iso(found, zone)
    if _COARSE.fullmatch(value):
        raise ValueError(f"a day is needed, not a month, week or year alone: {_ALLOWED}")
    if found := _CTIME.fullmatch(value):
        return _from_ctime(found, zone)
    if found := _MAIL.fullmatch(value):
        return _from_mail(found, value, zone)
    raise ValueError(_ALLOWED)


def _from_iso(found: re.Match[str], zone: tzinfo) -> When:
    day = _iso_day(found)
    if found["hour"] is None:
        return whole_day(day, zone)
    clock = _clock(found["hour"], found["minute"] or "0", found["second"] or "0")
    offset = "Z" if found["utc"] else found["offset"]
    local = datetime(day.year, day.month, day.day) + clock
    return _instant(local, _offset(offset) if offset else zone, found["fraction"] or "")


def _iso_day(found: re.Match[str]) -> date:
    year = int(found["year"])
    try:
        if found["week"]:
            return date.fromisocalendar(year, int(found["week"]), int(found["weekday"]))
        if found["ordinal"]:
            return _ordinal_day(year, int(found["ordinal"]))
        return date(year, int(found["month"] or found["month_"]), int(found["day"] or found["day_"]))
    except ValueError as error:
        raise ValueError(f"there is no such day ({error}); give {_ALLOWED}") from error


def _ordinal_day(year: int, number: int) -> date:
    day = date(year, 1, 1) + (number - 1) * DAY
    if day.year != year:
        raise ValueError("day of the year is out of range")
    return day


def _clock(hour: str, minute: str, second: str) -> timedelta:
    """The time since midnight; 24:00 is the next midnight, and a leap second, :60, is the next minute."""
    clock = timedelta(hours=int(hour), minutes=int(minute), seconds=int(second))
    if int(minute) > 59 or int(second) > 60 or (int(hour) > 23 and clock != DAY):
        raise ValueError(f"there is no such time of day; give {_ALLOWED}")
    return clock


def _offset(text: str) -> timezone:
    if text in "Zz":
        return UTC
    digits = re.sub(r"[^0-9]", "", text).ljust(6, "0")
    size = timedelta(hours=int(digits[:2]), minutes=int(digits[2:4]), seconds=int(digits[4:]))
    if size >= DAY or int(digits[2:4]) > 59:
        raise ValueError(f"there is no such offset from UTC; give {_ALLOWED}")
    return timezone(size if text[0] == "+" else -size)


def _from_ctime(found: re.Match[str], zone: tzinfo) -> When:
    if (found["time"] and found["time_"]) or found["month"] not in _MONTHS:
        raise ValueError(_ALLOWED)
    day = _checked(_named_day(found), found["named"])
    time = found["time"] or found["time_"]
    if time is None:
        return whole_day(day, zone)
    local = datetime(day.year, day.month, day.day) + _clock(*time.split(":"))
    return _instant(local, _offset(found["offset"] or "Z") if found["time_"] else zone)


def _named_day(found: re.Match[str]) -> date:
    try:
        return date(int(found["year"]), _MONTHS.index(found["month"]) + 1, int(found["day"]))
    except ValueError as error:
        raise ValueError(f"there is no such day ({error}); give {_ALLOWED}") from error


def _from_mail(found: re.Match[str], value: str, zone: tzinfo) -> When:
    try:
        moment = email.utils.parsedate_to_datetime(value)
    except (TypeError, IndexError, ValueError) as error:  # its answers to what is no date
        raise ValueError(_ALLOWED) from error
    if found["named"]:
        _checked(moment.date(), found["named"])
    # RFC 2822 writes UTC without a place as -0000; that comes back naive, as does a value without any offset.
    unplaced = UTC if "-0000" in value else zone
    return _instant(moment.replace(tzinfo=None), moment.tzinfo or unplaced)


def _checked(day: date, weekday: str) -> date:
    if weekday != _WEEKDAYS[day.weekday()]:
        raise ValueError(f"{day.isoformat()} is not a {weekday}; give {_ALLOWED}")
    return day


def whole_day(day: date, zone: tzinfo) -> When:
    return When(day.isoformat(), *span_of_days(day, day, zone))


def span_of_days(first: date | None, last: date | None, zone: tzinfo) -> tuple[datetime, datetime]:
    """[start of `first`, end of `last`) in UTC; None, or what UTC puts out of the years 1 to 9999, is open."""
    return _FIRST if first is None else _midnight(first, zone), _end_of(last, zone)


def _end_of(last: date | None, zone: tzinfo) -> datetime:
    return _LAST if last is None or last == date.max else _midnight(last + DAY, zone)


def _midnight(day: date, zone: tzinfo) -> datetime:
    try:
        return datetime(day.year, day.month, day.day, tzinfo=zone).astimezone(UTC)
    except OverflowError:
        return _FIRST if day.year == 1 else _LAST


def _instant(local: datetime, zone: tzinfo, fraction: str = "") -> When:
    whole = local.replace(tzinfo=zone).astimezone(UTC)
    digits = fraction.rstrip("0")
    moment = whole + timedelta(microseconds=int(digits.ljust(6, "0")[:6]))
    text = whole.replace(tzinfo=None, microsecond=0).isoformat()
    return When(f"{text}.{digits}Z" if digits else f"{text}Z", moment, moment)
