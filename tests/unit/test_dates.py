"""Dates as callers give them, as memories name them, and as queries mean them: the same on every host."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hindsight.understanding.dates import date_in, span_in
from hindsight.understanding.when import When, parse_when

NOW = datetime(2024, 5, 15, 9, 30, tzinfo=UTC)  # a Wednesday
BERLIN = ZoneInfo("Europe/Berlin")
FIXED_ZONES = st.integers(-1439, 1439).map(lambda minutes: timezone(timedelta(minutes=minutes)))
ZONES = st.one_of(st.sampled_from([UTC, BERLIN, ZoneInfo("Pacific/Apia"), ZoneInfo("America/St_Johns")]), FIXED_ZONES)
WORDS = """on in by since until last next this every two 3 29 31 may May March february Friday monday sat weekend week
weeks days year ago yesterday tomorrow summer 2024 2024-05-03 9999-12-31 0001-01-01 00:00 5000 9999 will from to and
the hours past 24:00 2024-05-03T10:15:00Z 12/31/9999 Q3 a , . | - ( ٣ é"""
SPEECH = st.lists(st.sampled_from(WORDS.split()), max_size=12).map(" ".join)


def read(text: str, now: datetime = NOW, zone: tzinfo = UTC) -> str | None:
    found = date_in(text, now, zone)
    return found.text if found else None


def window(query: str, now: datetime = NOW) -> tuple[str, str] | None:
    span = span_in(query, now, UTC)
    return (f"{span[0]:%Y-%m-%d}", f"{span[1]:%Y-%m-%d}") if span else None


# --- given by a caller -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("2024-05-03", "2024-05-03"),
        (" 2024-05-03\n", "2024-05-03"),
        ("20240503", "2024-05-03"),
        ("2024-W18-5", "2024-05-03"),
        ("2024W185", "2024-05-03"),
        ("2024-124", "2024-05-03"),
        ("2024366", "2024-12-31"),
        ("+002024-05-03", "2024-05-03"),
        ("9999-12-31", "9999-12-31"),
        ("0001-01-01", "0001-01-01"),
        ("Fri May 03 2024", "2024-05-03"),
        ("2024-05-03T10:15:00Z", "2024-05-03T10:15:00Z"),
        ("2024-05-03t10:15:00z", "2024-05-03T10:15:00Z"),
        ("2024-05-03 10:15:00", "2024-05-03T08:15:00Z"),
        ("2024-05-03T10:15", "2024-05-03T08:15:00Z"),
        ("2024-05-03T10", "2024-05-03T08:00:00Z"),
        ("2024-05-03T10:15Z", "2024-05-03T10:15:00Z"),
        ("20240503T101500Z", "2024-05-03T10:15:00Z"),
        ("20240503T1015+0200", "2024-05-03T08:15:00Z"),
        ("2024-05-03T10:15:00+02:00", "2024-05-03T08:15:00Z"),
        ("2024-05-03T10:15:00-0330", "2024-05-03T13:45:00Z"),
        ("2024-05-03T10:15:00+02", "2024-05-03T08:15:00Z"),
        ("2024-05-03T10:15:00\u221202:00", "2024-05-03T12:15:00Z"),
        ("2024-05-03 10:15:00 UTC", "2024-05-03T10:15:00Z"),
        ("2024-05-03 10:15:00.5+00:00", "2024-05-03T10:15:00.5Z"),
        ("2024-05-03T10:15:00.000Z", "2024-05-03T10:15:00Z"),
        ("2024-05-03T10:15:00,250Z", "2024-05-03T10:15:00.25Z"),
        ("2024-05-03T10:15:00.123456789Z", "2024-05-03T10:15:00.123456789Z"),
        ("2024-05-03T24:00:00Z", "2024-05-04T00:00:00Z"),
        ("2016-12-31T23:59:60Z", "2017-01-01T00:00:00Z"),
        ("+002024-05-03T10:15:00.000Z", "2024-05-03T10:15:00Z"),
        ("2024-05-03T10:15:00+02:00[Europe/Berlin]", "2024-05-03T08:15:00Z"),
        ("Fri, 03 May 2024 10:15:00 GMT", "2024-05-03T10:15:00Z"),
        ("Fri, 3 May 2024 10:15:00 -0700", "2024-05-03T17:15:00Z"),
        ("03 May 2024 10:15 EST", "2024-05-03T15:15:00Z"),
        ("Fri, 03 May 2024 10:15:00 -0000", "2024-05-03T10:15:00Z"),
        ("Fri May 03 2024 10:15:00 GMT+0200 (Central European Summer Time)", "2024-05-03T08:15:00Z"),
        ("Fri May  3 10:15:00 2024", "2024-05-03T08:15:00Z"),
    ],
)
def test_what_libraries_print_is_read(value: str, text: str) -> None:
    assert parse_when(value, BERLIN).text == text


@pytest.mark.parametrize(
    "value",
    [
        "", " ", "2024", "2024-05", "202405", "2024-W18", "2024-13-01", "2024-02-30", "2023-02-29", "2023-366",
        "2024-000",
        "2024-W53-1", "0000-01-01", "-000001-01-01", "10000-01-01", "+012024-05-03", "2024-05-03T25:00Z",
        "2024-05-03T24:01Z", "2024-05-03T10:60Z", "2024-05-03T10:15:61Z", "2024-05-03T10:15:00+24:00",
        "2024-05-03T10:15:00+02:75", "2024-05-03T10:15:00.1234567890Z", "0001-01-01T00:00+14:00",
        "9999-12-31T23:59:59-01:00", "9999-12-31T24:00Z", "yesterday", "3 May 2024", "05/03/2024", "1714731300",
        "2024-05-03T", "2024-05-03Z", "Mon, 03 May 2024 10:15:00 GMT", "Fri Foo 03 2024",
        "Fri, 99 May 2024 10:15:00 GMT", "Fri May 99 2024",
        "Mon May 03 2024", "\u0662\u0660\u0662\u0664-05-03", "2024-05-03\x00", "null",
    ],
)  # fmt: skip
def test_what_is_no_date_says_what_is_allowed(value: str) -> None:
    with pytest.raises(ValueError, match="2024-05-03T10:15:00Z"):
        parse_when(value, BERLIN)


@pytest.mark.parametrize(
    ("value", "hours"), [("2024-03-31", 23), ("2024-10-27", 25), ("2024-05-03", 24), ("2024-02-29", 24)]
)
def test_a_date_covers_its_whole_day_in_the_zone(value: str, hours: int) -> None:
    when = parse_when(value, BERLIN)

    assert when.start.astimezone(BERLIN).strftime("%Y-%m-%d %H:%M") == f"{value} 00:00"
    assert when.end - when.start == timedelta(hours=hours)


def test_a_date_time_is_an_instant() -> None:
    moment = datetime(2024, 5, 3, 10, 15, 0, 123456, tzinfo=UTC)

    assert parse_when("2024-05-03T12:15:00.1234569+02:00", UTC) == When("2024-05-03T10:15:00.1234569Z", moment, moment)


@given(st.datetimes(), ZONES, st.sampled_from(["T", " "]))
def test_what_python_prints_comes_back(moment: datetime, zone: tzinfo, between: str) -> None:
    try:
        utc = moment.replace(tzinfo=zone).astimezone(UTC)
        printed = moment.replace(tzinfo=zone).isoformat(between)
    except OverflowError:
        return

    when = parse_when(printed, UTC)

    assert when.start == when.end == utc
    assert parse_when(when.text, BERLIN) == when


@given(st.dates(), ZONES)
def test_every_date_is_kept(day: date, zone: tzinfo) -> None:
    when = parse_when(day.isoformat(), zone)

    assert when.text == day.isoformat()
    assert when.start < when.end


@given(
    st.one_of(
        st.text(),
        st.text("0123456789-+:.,TtZzW /", max_size=32),
        st.from_regex(
            r"[0-9]{4}-?[0-9]{2}-?[0-9]{2}[T ][0-9]{2}:?[0-9]{2}(:[0-9]{2})?([.][0-9]+)?([+-][0-9:]{2,8}|Z)?"
        ),
        st.from_regex(
            r"(Fri, )?[0-9]{1,2} (May|Foo) [0-9]{4} [0-9]{2}:[0-9]{2}(:[0-9]{2})?( [+-][0-9]{4}| [A-Z]{1,4})?"
        ),
        st.from_regex(r"Fri May [0-9]{1,2}( [0-9:]{8})? [0-9]{4}( [0-9:]{8} GMT([+-][0-9]{4})?)?"),
    ),
    ZONES,
)
@settings(max_examples=400)
def test_anything_else_is_a_value_error(value: str, zone: tzinfo) -> None:
    try:
        when = parse_when(value, zone)
    except ValueError:
        return

    assert parse_when(when.text, zone) == when


# --- named in a memory -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "day"),
    [
        ("I met Ana yesterday.", "2024-05-14"),
        ("Yesterday's meeting was about prices", "2024-05-14"),
        ("The day before yesterday it rained", "2024-05-13"),
        ("See you tomorrow", "2024-05-16"),
        ("Today we opened the shop", "2024-05-15"),
        ("I was at the dentist this morning", "2024-05-15"),
        ("Last night the server crashed", "2024-05-14"),
        ("The alarm rang an hour ago", "2024-05-15"),
        ("Rebooted it 12 hours ago", "2024-05-14"),
        ("He called yesterday at 2pm", "2024-05-14"),
        ("Last Friday we shipped 3.2", "2024-05-10"),
        ("On Friday I told her", "2024-05-10"),
        ("On Monday I went to the gym", "2024-05-13"),
        ("We met on Wednesday", "2024-05-08"),
        ("We went hiking Sunday.", "2024-05-12"),
        ("Sunday we went hiking", "2024-05-12"),
        ("On Monday morning the disk was full", "2024-05-13"),
        ("The review is on Friday", "2024-05-17"),
        ("I'll see her on Wednesday", "2024-05-22"),
        ("The report is due by Friday", "2024-05-17"),
        ("I have an appointment on the 20th", "2024-05-20"),
        ("I paid on the 20th", "2024-04-20"),
        ("next Tuesday we fly", "2024-05-21"),
        ("On 3 May 2024 the deploy failed", "2024-05-03"),
        ("May 3rd, 2024: kickoff", "2024-05-03"),
        ("Caroline: 1:56 pm on 8 May, 2023 I joined", "2023-05-08"),
        ("Fri, 3 May 2024, long walk", "2024-05-03"),
        ("She was born on 3 May 1990", "1990-05-03"),
        ("The 3rd of May was sunny", "2024-05-03"),
        ("On December 31 we danced", "2023-12-31"),
        ("The lease ends, it will expire on 3 March", "2025-03-03"),
        ("In March I moved to Berlin", "2024-03-01"),
        ("I adopted a cat in October", "2023-10-01"),
        ("In May 2023 she left", "2023-05-01"),
        ("I visited Peru in 2022", "2022-01-01"),
        ("He turned 40 last month", "2024-04-01"),
        ("Last week we painted the kitchen", "2024-05-06"),
        ("Over the weekend we painted", "2024-05-11"),
        ("Two weeks ago Nina moved", "2024-05-01"),
        ("I quit three months ago", "2024-02-15"),
        ("A year ago I could not swim", "2023-05-15"),
        ("We will fly in two weeks", "2024-05-29"),
        ("Last summer we sailed", "2023-06-01"),
        ("In the winter of 2022 it snowed", "2022-12-01"),
        ("I have lived here since 2019", "2019-01-01"),
        ("[2024-05-03] user asked for help", "2024-05-03"),
        ("Started the job 13/05/2024", "2024-05-13"),
        ("2024-05-03T10:15:00Z backup done", "2024-05-03T10:15:00Z"),
        ("2024-05-03 10:15 start, 2024-05-03 11:15 end", "2024-05-03"),
        ("On 3 May 2024 (2024-05-03) it broke", "2024-05-03"),
        ("In May 2024, on 3 May, it broke", "2024-05-03"),
        ("The release of 3 May 2024 was fine", "2024-05-03"),
    ],
)
def test_the_date_in_a_memory(text: str, day: str) -> None:
    assert read(text) == day


NO_DATE = """May I have the salt?|She may call.|It may be late.|Give me a second.|The second floor is empty.|March on!
They march for peace.|April likes cats.|June said it is fine.|August is her name.|Version 3.5.2 was released.
Upgrade to 2024.1.3 please.|It costs $20.24 per seat.|Price: 1,999 euros.|Call 555-2024.|Phone +1 555 0134.
Order #2024-05-03 is open.|See ticket 20240503.|Order 2024 is late.|Meet in room 2019.|Model 2023 has a bigger screen.
Friday deploys are risky.|The Monday meeting is boring.|My favourite day is Friday.|I like Sundays.
Black Friday was busy.
We trained for two weeks.|It took three days.|She slept for the last 3 days.|The work was done in two weeks.
Every Friday we order pizza.|We rest on Mondays.|Each May we plant tomatoes.|He usually calls on Friday.
Her birthday is on 3 May.|The office is open from Monday to Friday.|Summer is her favourite season.
Fall back to defaults.
The beach is nicer in autumn.|For the past month she slept badly.
The sun is out.|He sat down.|She wed a sailor.|Mon ami Pierre.|I recently moved.|We talked the other day.
On 3 May and on 7 June it rained.|Yesterday was bad, in 2019 it was good.|It was 03/04/2024.|Use RFC 2822.
Keys of 2048 bits.
The file is backup-2024-05-03.tar.gz.|Read HTTP-2023-05-03.log.|Host 192.168.20.24 is down.|Open 24/7.|A 50/50 split.
Half past nine.|The score was 3-2.|She is 29 years old.|Before 2020 nobody cared.|2024-13-45 is no day.|32 May 2024
The 1990s were fun.|5000 years ago there was ice.|The meeting is at 10:15.|Now is good.|Nowadays all is well.
Ich war gestern da.|我昨天去了北京。|The year ends well.|A week from Friday.|Two days later he left.|Weekend plans?"""


@pytest.mark.parametrize("text", [text for line in NO_DATE.splitlines() for text in line.split("|")])
def test_ordinary_sentences_hold_no_date(text: str) -> None:
    assert read(text) is None


@pytest.mark.parametrize(
    ("now", "text", "day"),
    [
        (datetime(2024, 1, 1, 12, tzinfo=UTC), "I left yesterday", "2023-12-31"),
        (datetime(2024, 1, 1, 12, tzinfo=UTC), "I left last Sunday", "2023-12-31"),
        (datetime(2024, 1, 1, 12, tzinfo=UTC), "I left last month", "2023-12-01"),
        (datetime(2024, 12, 31, 12, tzinfo=UTC), "I leave tomorrow", "2025-01-01"),
        (datetime(2024, 3, 1, 12, tzinfo=UTC), "I left yesterday", "2024-02-29"),
        (datetime(2023, 3, 1, 12, tzinfo=UTC), "I left yesterday", "2023-02-28"),
        (datetime(2023, 3, 1, 12, tzinfo=UTC), "I left on 29 February", "2020-02-29"),
        (datetime(2024, 2, 29, 12, tzinfo=UTC), "I left a year ago", "2023-02-28"),
        (datetime(2024, 3, 31, 12, tzinfo=UTC), "I left a month ago", "2024-02-29"),
        (datetime(2024, 1, 10, 12, tzinfo=UTC), "I left last winter", "2022-12-01"),
        (datetime(2024, 5, 19, 12, tzinfo=UTC), "We sailed over the weekend", "2024-05-18"),
    ],
)
def test_turns_of_month_and_year(now: datetime, text: str, day: str) -> None:
    assert read(text, now) == day


@pytest.mark.parametrize(
    ("zone", "day"), [("Pacific/Kiritimati", "2024-05-14"), ("UTC", "2024-05-14"), ("Pacific/Midway", "2024-05-13")]
)
def test_yesterday_is_the_zones(zone: str, day: str) -> None:
    found = date_in("I left yesterday", datetime(2024, 5, 15, 9, 30, tzinfo=UTC), ZoneInfo(zone))

    assert found == parse_when(day, ZoneInfo(zone))


@given(st.dates(date(1900, 1, 15), date(2100, 1, 1)), st.sampled_from(range(7)))
@settings(max_examples=60, deadline=None)
def test_a_weekday_is_within_the_last_seven_days(today: date, weekday: int) -> None:
    name = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")[weekday]
    now = datetime(today.year, today.month, today.day, 12, tzinfo=UTC)

    day = date.fromisoformat(read(f"We met on {name}", now) or "")

    assert day.weekday() == weekday
    assert 1 <= (today - day).days <= 7


def test_only_the_opening_of_a_long_text_is_read() -> None:
    assert read("x " * 1_000 + "I left yesterday") is None


# --- meant by a query ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("query", "span"),
    [
        ("what happened last week", ("2024-05-06", "2024-05-13")),
        ("what did I do in May 2023?", ("2023-05-01", "2023-06-01")),
        ("May 2023", ("2023-05-01", "2023-06-01")),
        ("what did we decide yesterday", ("2024-05-14", "2024-05-15")),
        ("where was I on 3 May", ("2024-05-03", "2024-05-04")),
        ("where was I on 3 June", ("2023-06-03", "2023-06-04")),
        ("two days ago", ("2024-05-13", "2024-05-14")),
        ("two weeks ago", ("2024-04-29", "2024-05-06")),
        ("trips in 2022", ("2022-01-01", "2023-01-01")),
        ("last summer", ("2023-06-01", "2023-09-01")),
        ("what's new this month", ("2024-05-01", "2024-06-01")),
        ("who did I meet in October?", ("2023-10-01", "2023-11-01")),
        ("who did I meet in May?", ("2024-05-01", "2024-06-01")),
        ("anything in the last two weeks", ("2024-05-01", "2024-05-16")),
        ("anything in the last month", ("2024-04-15", "2024-05-16")),
        ("between 3 May and 10 May", ("2024-05-03", "2024-05-11")),
        ("from March to April 2023", ("2023-03-01", "2023-05-01")),
        ("meeting notes from Tuesday", ("2024-05-14", "2024-05-15")),
        ("over the weekend", ("2024-05-11", "2024-05-13")),
        ("May 2023 or June 2023", ("2023-05-01", "2023-07-01")),
        ("Q3 2023", ("2023-07-01", "2023-10-01")),
        ("since March", ("2024-03-01", "9999-12-31")),
        ("may I deploy", None),
        ("give me a second", None),
        ("march on", None),
        ("what do I usually do on Friday", None),
        ("Friday deploys", None),
        ("what is version 2024.1", None),
        ("where does Ana live", None),
        ("", None),
    ],
)
def test_the_window_a_query_speaks_of(query: str, span: tuple[str, str] | None) -> None:
    assert window(query) == span


def test_before_a_year_is_open_at_its_start() -> None:
    start, end = span_in("before 2020", NOW, UTC) or (NOW, NOW)

    assert start == datetime.min.replace(tzinfo=UTC)
    assert end == datetime(2020, 1, 1, tzinfo=UTC)


# --- whatever comes, wherever it runs --------------------------------------------------------------------------------


@given(st.one_of(SPEECH, st.text()), st.datetimes(timezones=ZONES), ZONES)
@example("29 February", datetime(1, 1, 1, tzinfo=UTC), timezone(timedelta(hours=-23)))
@example("5000 years ago", NOW, UTC)
@example("next winter", datetime(9999, 12, 31, tzinfo=UTC), timezone(timedelta(hours=23)))
@settings(max_examples=400, deadline=None)
def test_no_text_makes_it_fail(text: str, now: datetime, zone: tzinfo) -> None:
    found, span = date_in(text, now, zone), span_in(text, now, zone)

    assert found is None or found.start <= found.end
    assert span is None or span[0] <= span[1]


def test_a_naive_now_is_refused() -> None:
    with pytest.raises(ValueError, match="aware"):
        date_in("yesterday", datetime(2024, 5, 15), UTC)


@pytest.fixture
def host_zone() -> Iterator[None]:
    before = os.environ.get("TZ")
    yield
    if before is None:
        os.environ.pop("TZ", None)
    else:
        os.environ["TZ"] = before
    time.tzset()


@pytest.mark.usefixtures("host_zone")
def test_the_hosts_zone_changes_nothing() -> None:
    said = ["I left yesterday", "2024-05-03 10:15 done", "we met on Friday", "an hour ago", "in March", "last summer"]

    answers = []
    for host in ("Pacific/Midway", "Pacific/Kiritimati", "UTC"):
        os.environ["TZ"] = host
        time.tzset()
        given_dates = [parse_when(value, BERLIN) for value in ("2024-05-03", "2024-05-03T10:15", "Fri May 03 2024")]
        answers.append((given_dates, [(date_in(text, NOW, BERLIN), span_in(text, NOW, BERLIN)) for text in said]))

    assert answers[0] == answers[1] == answers[2]
    assert all(found and span for found, span in answers[0][1])
