"""What recall finds over the wire: by time, literally, in long texts, and for odd queries."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from mcp import ClientSession

from tests.serving import Serving, answer, client, refusal, texts

pytestmark = pytest.mark.anyio


@pytest.fixture
async def bank(running: Serving, request: pytest.FixtureRequest) -> AsyncIterator[ClientSession]:
    """A session on a bank of the test's own."""
    name = "".join(c if c.isalnum() else "-" for c in request.node.name)[:100].strip("-")
    async with client(running.url, name) as session:
        yield session


async def retain(bank: ClientSession, *facts: str | dict[str, Any]) -> None:
    for fact in facts:
        await answer(bank, "retain", **({"content": fact} if isinstance(fact, str) else fact))


def day(ago: int) -> str:
    return (datetime.now(UTC) - timedelta(days=ago)).date().isoformat()


async def test_last_week_favours_memories_of_last_week(bank: ClientSession) -> None:
    monday = datetime.now(UTC).weekday()
    ages = {"a year ago": 365, "last week": monday + 4, "in the spring before": 600}
    await retain(bank, *({"content": f"Went to a concert, note {name}.", "event_date": day(ago)}
                         for name, ago in ages.items()))  # fmt: skip

    assert (await texts(bank, "Which concert did I go to last week?"))[0] == "Went to a concert, note last week."


@pytest.mark.parametrize(
    ("query", "best"), [("in May 2023", "2023-05-11"), ("on 2 July 2023", "2023-07-02"), ("in March", "2022-03-20")]
)
async def test_a_date_in_the_query_favours_memories_of_that_time(bank: ClientSession, query: str, best: str) -> None:
    dates = ["2022-03-20", "2023-05-11", "2023-07-02", "2024-01-09"]
    await retain(bank, *({"content": f"Dinner with Sam, number {place}.", "event_date": each}
                         for place, each in enumerate(dates)))  # fmt: skip
    found: Any = (await answer(bank, "recall", query=f"dinner with Sam {query}"))["results"]

    assert found[0]["event_date"] == best
    assert len(found) == len(dates)


async def test_a_year_in_the_query_does_not_turn_the_order_round(bank: ClientSession) -> None:
    await retain(
        bank,
        {"content": "Ran the marathon in four hours.", "event_date": "2022-10-02"},
        {"content": "Painted the kitchen wall green.", "event_date": "2023-06-02"},
        {"content": "Bought new tyres for the car.", "event_date": "2023-09-02"},
    )

    assert (await texts(bank, "How fast was the marathon in 2023?"))[0] == "Ran the marathon in four hours."


async def test_since_and_until_leave_out_what_is_outside(bank: ClientSession) -> None:
    dates = ["2023-04-30", "2023-05-01", "2023-05-31", "2023-06-01"]
    await retain(bank, *({"content": f"Swam on {each}.", "event_date": each} for each in dates))

    assert sorted(await texts(bank, "swimming", since="2023-05-01", until="2023-05-31")) == [
        "Swam on 2023-05-01.", "Swam on 2023-05-31.",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "word",
    ["ERR_TLS_4711", "don't", "GB/s", "pre-edit", "a:b", "x*", '"--flag"', "/srv/app/conf.d", "ana@example.org", "天気",
     "naïve", "ORDER-77-B"],
)  # fmt: skip
async def test_a_rare_word_is_found_literally_among_others_like_it(bank: ClientSession, word: str) -> None:
    others = ["ERR_TLS_4712", "do", "GB-s", "edit", "a-b", "x+", "--flags", "/srv/app/conf", "ana@example.com", "元気",
              "native", "ORDER-77-C"]  # fmt: skip
    await retain(bank, *(f"The note of item {place} reads {other} here." for place, other in enumerate(others)))
    await retain(bank, f"The note of item 99 reads {word} here.")

    assert (await texts(bank, word))[0] == f"The note of item 99 reads {word} here."


async def test_accents_and_case_do_not_hide_a_word(bank: ClientSession) -> None:
    await retain(bank, "Lunch at the CAFÉ Ångström.", "Lunch at the canteen.", "Lunch at home.")

    assert [(await texts(bank, query))[0] for query in ("cafe angstrom", "café", "ANGSTROM")] == [
        "Lunch at the CAFÉ Ångström."
    ] * 3


@pytest.mark.parametrize("query", ["what is it that you are", "x", "?", "🙂", "\0"])
async def test_a_query_without_content_words_gets_a_sensible_answer(bank: ClientSession, query: str) -> None:
    await retain(bank, "Alice keeps bees.", "Bob moved to Oslo.")

    assert sorted(await texts(bank, query)) == ["Alice keeps bees.", "Bob moved to Oslo."]


async def test_a_query_of_10_000_characters_is_answered_and_a_longer_one_refused(bank: ClientSession) -> None:
    await retain(bank, "Alice keeps bees on the roof.", "Bob moved to Oslo.")
    long = ("Alice keeps bees. " * 600)[:10_000]
    error = await refusal(bank, "recall", query=long + "!")

    assert (await texts(bank, long))[0] == "Alice keeps bees on the roof."
    assert error["code"] in ("INVALID_ARGUMENT", "CONTENT_TOO_LARGE")


async def test_a_fact_in_the_last_line_of_a_long_text_is_found_and_shown(bank: ClientSession) -> None:
    filler = " ".join(f"In chapter {number} the weather was discussed at some length." for number in range(330))
    await retain(bank, f"{filler}\nThe password of the vault is heliotrope.", "Bees make honey.", "The roof is old.")
    found: Any = (await answer(bank, "recall", query="What is the password of the vault?"))["results"]

    assert "heliotrope" in found[0]["text"]
    assert found[0]["truncated"] is True
    assert len(found[0]["text"]) < 2_000


async def test_an_answer_of_long_texts_keeps_within_its_tokens(bank: ClientSession) -> None:
    await retain(
        bank, *(f"Report {number}. " + "The committee met and spoke about bees. " * 500 for number in range(3))
    )
    found: Any = await answer(bank, "recall", query="committee bees", max_tokens=300)

    assert found["more"] is True
    assert sum(len(result["text"]) for result in found["results"][1:]) < 300 * 6
