"""Time, as a bank tells it: the configured zone counts, the host's never does."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from mcp import ClientSession

from hindsight.record import JsonObject
from tests.serving import Serving, answer, client, refusal, serving

pytestmark = pytest.mark.anyio

# 25 hours apart: at every instant the two disagree about the day.
MIDWAY, KIRITIMATI = "Pacific/Midway", "Pacific/Kiritimati"
CONTENTS = [
    "Yesterday the boiler broke",
    "The plumber comes today",
    "Ana moved to Berlin three days ago",
    "We met on 3 May 2024",
    "The rent went up in March 2023",
    "I may march on for a second",
]


@pytest.fixture(scope="module")
def midway(tmp_path_factory: pytest.TempPathFactory, model_folder: Path) -> Iterator[Serving]:
    """A server of UTC on a host at the western end of the calendar."""
    yield from _serving_in(MIDWAY, tmp_path_factory.mktemp("midway"), model_folder)


@pytest.fixture(scope="module")
def kiritimati(tmp_path_factory: pytest.TempPathFactory, model_folder: Path) -> Iterator[Serving]:
    """A server of UTC on a host at the eastern end of the calendar."""
    yield from _serving_in(KIRITIMATI, tmp_path_factory.mktemp("kiritimati"), model_folder)


@pytest.fixture(scope="module")
def configured(tmp_path_factory: pytest.TempPathFactory, model_folder: Path) -> Iterator[Serving]:
    """A server of Kiritimati's time on a host in Midway."""
    yield from _serving_in(MIDWAY, tmp_path_factory.mktemp("configured"), model_folder, timezone=KIRITIMATI)


def _serving_in(zone: str, data: Path, model_folder: Path, **settings: Any) -> Iterator[Serving]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", zone)
        with serving(data, model_dir=model_folder, ready=False, **settings) as server:
            yield server


async def dates(session: ClientSession, contents: list[str]) -> list[str | None]:
    """The event dates that are read out of these texts."""
    return [(await answer(session, "retain", content=content))["event_date"] for content in contents]


async def matched(session: ClientSession, **asked: str) -> list[str]:
    """The texts that a narrowed list and recall find: the same ones."""
    listed = await answer(session, "list_memories", order="oldest", **asked)
    recalled = await answer(session, "recall", query="fact", max_results=100, **asked)
    texts = [memory["text"] for memory in listed["memories"]]
    assert sorted(result["text"] for result in recalled["results"]) == sorted(texts)
    return texts


async def test_two_hosts_a_day_apart_read_the_same_dates_at_the_same_instant(
    midway: Serving, kiritimati: Serving, bank: str
) -> None:
    async with client(midway.url, bank) as west, client(kiritimati.url, bank) as east:
        before = datetime.now(UTC).date()
        found = [await dates(session, CONTENTS) for session in (west, east)]
        after = datetime.now(UTC).date()

    days = (before, after)
    assert all(read in [expected(day) for day in days] for read in found)
    assert before != after or found[0] == found[1]


def expected(today: date) -> list[str | None]:
    ago = [(today - timedelta(days=days)).isoformat() for days in (1, 0, 3)]
    return [*ago, "2024-05-03", "2023-03-01", None]


async def test_two_hosts_a_day_apart_keep_the_same_records(midway: Serving, kiritimati: Serving, bank: str) -> None:
    given = ["2026-05-20T08:29:42+00:00", "2026-05-20T08:29:42", "2026-05-20", "2026-05-20T23:30:00-11:00"]
    found = []
    for server in (midway, kiritimati):
        async with client(server.url, bank) as session:
            for number, form in enumerate(given):
                await answer(session, "retain", content=f"fact {number}", event_date=form)
            rows = (await answer(session, "list_memories", order="oldest"))["memories"]
            now = datetime.now(UTC)
            found.append([{**row, "id": "", "retained_at": ""} for row in rows])
            assert all(timedelta() <= now - moment(row["retained_at"]) < timedelta(minutes=1) for row in rows)

    assert found[0] == found[1]
    assert [row["event_date"] for row in found[0]] == [
        "2026-05-20T08:29:42Z", "2026-05-20T08:29:42Z", "2026-05-20", "2026-05-21T10:30:00Z",
    ]  # fmt: skip


def moment(text: str) -> datetime:
    assert text.endswith("Z")
    return datetime.fromisoformat(text)


async def test_two_hosts_a_day_apart_look_for_yesterday_in_the_same_window(
    midway: Serving, kiritimati: Serving, bank: str
) -> None:
    today = datetime.now(UTC).date()
    found = []
    for server in (midway, kiritimati):
        async with client(server.url, bank) as session:
            for days in range(-2, 5):
                day = (today - timedelta(days=days)).isoformat()
                await answer(session, "retain", content=f"Standup notes number {days}", event_date=day)
            asked = {"query": "Which standup notes are from yesterday?", "max_results": 1}
            found.append((await answer(session, "recall", **asked))["results"][0]["text"])

    if datetime.now(UTC).date() == today:
        assert found == ["Standup notes number 1"] * 2


async def test_the_configured_zone_says_what_yesterday_is_and_where_naive_times_are(
    configured: Serving, bank: str
) -> None:
    zone = ZoneInfo(KIRITIMATI)
    async with client(configured.url, bank) as session:
        before = datetime.now(zone).date()
        found = await dates(session, CONTENTS)
        after = datetime.now(zone).date()
        naive = await answer(session, "retain", content="naive", event_date="2024-05-03T10:00")
        aware = await answer(session, "retain", content="aware", event_date="2024-05-03T10:00Z")
        day = await answer(session, "retain", content="day", event_date="2024-05-03")

        assert found in [expected(today) for today in (before, after)]
        told = [stored["event_date"] for stored in (naive, aware, day)]
        assert told == ["2024-05-02T20:00:00Z", "2024-05-03T10:00:00Z", "2024-05-03"]
        # The third of May there is from the second, 10:00 UTC, to the third, 10:00 UTC.
        assert await matched(session, since="2024-05-03", until="2024-05-03") == [
            "We met on 3 May 2024",
            "naive",
            "day",
        ]
        edges = {"since": "2024-05-02T10:00:00Z", "until": "2024-05-03T09:59:59Z"}
        assert await matched(session, **edges) == ["We met on 3 May 2024", "naive", "day"]


FORMS = [
    # Each is one second later than the one before it.
    ("2026-05-20T08:29:40+00:00", "2026-05-20T08:29:40Z"),
    ("2026-05-20T08:29:41", "2026-05-20T08:29:41Z"),
    ("2026-05-20 08:29:42", "2026-05-20T08:29:42Z"),
    ("20260520T082943Z", "2026-05-20T08:29:43Z"),
    ("2026-05-20T10:29:44+0200", "2026-05-20T08:29:44Z"),
    ("2026-05-19T21:29:45-11", "2026-05-20T08:29:45Z"),
    ("2026-05-20T08:29:46.500Z", "2026-05-20T08:29:46.5Z"),
    ("2026-05-20t08:29:47z", "2026-05-20T08:29:47Z"),
    ("Wed, 20 May 2026 08:29:48 GMT", "2026-05-20T08:29:48Z"),
    ("Wed May 20 2026 10:29:49 GMT+0200 (Central European Summer Time)", "2026-05-20T08:29:49Z"),
    ("2026-05-20T08:29:50.000000+00:00", "2026-05-20T08:29:50Z"),
    ("2026-05-20T08:29:51,000Z", "2026-05-20T08:29:51Z"),
    ("2026-W21-3T08:29:52Z", "2026-05-20T08:29:52Z"),
    ("2026-140T08:29:53Z", "2026-05-20T08:29:53Z"),
    ("2026-05-20T08:29:54Z[Europe/Berlin]", "2026-05-20T08:29:54Z"),
]


async def test_every_form_of_an_instant_is_read_normalised_and_in_order(midway: Serving, bank: str) -> None:
    async with client(midway.url, bank) as session:
        for number, (given, told) in enumerate(FORMS):
            stored = await answer(session, "retain", content=f"fact {number:02}", event_date=given)
            assert stored["event_date"] == told
        texts = [f"fact {number:02}" for number in range(len(FORMS))]

        for place, (given, told) in enumerate(FORMS):
            assert await matched(session, since=given) == texts[place:]
            assert (await matched(session, until=told)) == texts[: place + 1]


async def test_naive_aware_and_plain_dates_lie_side_by_side(midway: Serving, bank: str) -> None:
    given = {"aware": "2026-05-20T08:29:42+00:00", "naive": "2026-05-20T08:29:42", "day": "2026-05-20"}
    async with client(midway.url, bank) as session:
        for name, form in given.items():
            await answer(session, "retain", content=f"a fact that is {name}", event_date=form)
        await answer(session, "retain", content="a fact that is old", event_date="2019-02-03")
        await answer(session, "retain", content="a fact without a date")
        found = await answer(session, "recall", query="Which facts are of 20 May 2026?")
        three = [f"a fact that is {name}" for name in given]

        assert sorted(result["text"] for result in found["results"][:3]) == sorted(three)
        for since, until in itertools.product(given.values(), repeat=2):
            assert await matched(session, since=since, until=until) == three


@pytest.mark.parametrize(
    ("since", "until", "right"),
    [
        ("2024-05-03", "2024-05-03", "first last day"),
        ("2024-05-03", "2024-05-04", "first last day after"),
        ("2024-05-02", "2024-05-02", "before"),
        ("2024-05-03T00:00:00Z", "2024-05-03T00:00:00Z", "first day"),
        ("2024-05-03T00:00:00.000001Z", "2024-05-03T23:59:59.999999Z", "last day"),
        ("2024-05-03T02:00:00+02:00", "2024-05-04T01:59:59+02:00", "first day"),
        ("2024-05-04T00:00:00Z", "2024-05-04", "after"),
        ("2024-05-03T12:00", "2024-05-03T13:00", "day"),
    ],
)
async def test_since_and_until_take_in_whole_days_and_exact_instants(
    midway: Serving, bank: str, since: str, until: str, right: str
) -> None:
    given = {
        "before": "2024-05-02T23:59:59.999999Z", "first": "2024-05-03T00:00:00Z", "last": "2024-05-03T23:59:59.999999Z",
        "day": "2024-05-03", "after": "2024-05-04T00:00:00Z",
    }  # fmt: skip
    async with client(midway.url, bank) as session:
        for name, form in given.items():
            await answer(session, "retain", content=name, event_date=form)

        assert await matched(session, since=since, until=until) == right.split()


async def test_an_updated_date_is_normalised_too(midway: Serving, bank: str) -> None:
    async with client(midway.url, bank) as session:
        id = (await answer(session, "retain", content="fact"))["id"]
        for given, told in (("2024-05-03T10:15:00+02:00", "2024-05-03T08:15:00Z"), ("2024-05-03", "2024-05-03")):
            updated = await answer(session, "update_memory", id=id, event_date=given)

            assert updated["event_date"] == told
        assert await matched(session, since="2024-05-03", until="2024-05-03") == ["fact"]
        assert (await refusal(session, "update_memory", id=id, event_date="lately"))["argument"] == "event_date"


async def test_metadata_keeps_its_dates_as_they_are(midway: Serving, bank: str) -> None:
    metadata: JsonObject = {"when": "2024-05-03T10:15:00+02:00", "day": "3 May"}
    async with client(midway.url, bank) as session:
        id = (await answer(session, "retain", content="fact", metadata=json.dumps(metadata)))["id"]

        assert (await answer(session, "get_memory", id=id))["metadata"] == metadata
