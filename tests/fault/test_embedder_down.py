"""An embedding service that is down, slow or another one: nothing is lost, words are found, meaning comes back."""

from __future__ import annotations

import asyncio
import json
import subprocess
import threading
import time
import urllib.request
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from hindsight.embedding import Vectors
from hindsight.record import JsonObject
from tests.doubles import Fault, Provider, providing, rows_of
from tests.serving import BOUND, HINDSIGHT, Serving, answer, client, environment_with, get, serving

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

BEES = "Alice keeps bees on the roof."
SAME_MEANING = "apiary"  # the service below knows that this is about bees; their words have nothing in common
MANY = 600  # more than get their vectors at a time


def meaning(dimension: int, seed: int) -> Callable[[Sequence[str]], Awaitable[Vectors]]:
    async def embed(texts: Sequence[str]) -> Vectors:
        return rows_of([text.replace(SAME_MEANING, "bees") for text in texts], dimension, seed)

    return embed


@pytest.fixture
def provider() -> Iterator[Provider]:
    with providing(meaning(64, 1)) as running:
        yield running


@pytest.fixture
def other() -> Iterator[Provider]:
    with providing(meaning(64, 2)) as running:
        yield running


def server(data: Path, provider: Provider, model: str = "a") -> AbstractContextManager[Serving]:
    return serving(data, environment=environment_with({"port": 0, "data_dir": data, **settings(provider, model)}))


def settings(provider: Provider, model: str) -> dict[str, object]:
    return {
        "embedder": "openai",
        "openai_base_url": provider.url,
        "openai_model": model,
        "openai_timeout": 2,
        "openai_batch": 100,
    }


async def until(met: Callable[[], Awaitable[bool]]) -> None:
    """Ask until it is so: there is nothing that would tell."""
    end = time.monotonic() + BOUND
    while not await met():
        assert time.monotonic() < end, "it never came to be"
        await asyncio.sleep(0.05)


async def recall(url: str, query: str) -> JsonObject:
    async with client(url, "team") as session:
        return await answer(session, "recall", query=query)


async def texts(url: str, query: str) -> list[str]:
    return [result["text"] for result in (await recall(url, query))["results"]]


async def retain(url: str, content: str) -> JsonObject:
    async with client(url, "team") as session:
        return await answer(session, "retain", content=content)


def post(url: str, body: bytes = b"") -> Any:
    """The lines of JSON that a POST answers with."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(urllib.request.Request(url, data=body, method="POST"), timeout=BOUND) as response:
        return [json.loads(line) for line in response.read().splitlines()]


def waiting(url: str) -> int:
    """How many passages wait for their vectors, once the bank is given to the server's embedder."""
    [told] = post(f"{url}/banks/team/reindex")
    return int(told["waiting"])


def reindex(*options: str, environment: dict[str, object] | None = None) -> subprocess.CompletedProcess[str]:
    command = [*HINDSIGHT, "reindex", *options]
    given = environment_with(environment or {})
    return subprocess.run(command, env=given, capture_output=True, text=True, timeout=BOUND, check=False)


@pytest.mark.parametrize("fault", [Fault(503), Fault(hangs=True), Fault(cut=True)], ids=["503", "hangs", "cut off"])
async def test_what_is_retained_while_the_service_is_down_is_found_by_words_then_and_by_meaning_later(
    provider: Provider, tmp_path: Path, fault: Fault
) -> None:
    provider.always = fault
    with server(tmp_path, provider) as running:
        stored = await retain(running.url, BEES)
        by_words = await recall(running.url, "bees")
        by_meaning = await texts(running.url, SAME_MEANING)
        provider.always = None
        await until(lambda: _found(running.url))
        after = await recall(running.url, "bees")

    assert "stored and found by its words" in stored["warnings"][0]
    assert [result["text"] for result in by_words["results"]] == [BEES]
    assert "found by words alone" in by_words["warnings"][0]
    assert by_meaning == []
    assert "warnings" not in after


async def _found(url: str) -> bool:
    return await texts(url, SAME_MEANING) == [BEES]


async def test_a_service_that_goes_away_and_comes_back_costs_no_restart(provider: Provider, tmp_path: Path) -> None:
    with server(tmp_path, provider) as running:
        first = await retain(running.url, "Bob moved to Oslo.")
        provider.always = Fault(503)
        second = await retain(running.url, BEES)
        provider.always = None
        await until(lambda: _has_all(running.url))

        assert "warnings" not in first
        assert "warnings" in second
        assert (await texts(running.url, SAME_MEANING))[0] == BEES


async def _has_all(url: str) -> bool:
    return len(await texts(url, SAME_MEANING)) == 2


async def test_a_server_starts_and_finds_words_while_nobody_listens_at_the_services_address(tmp_path: Path) -> None:
    with providing(meaning(64, 1)) as gone:
        pass
    with server(tmp_path, gone) as running:
        await retain(running.url, BEES)
        found = await texts(running.url, "roof")
        with providing(meaning(64, 1), port=int(gone.url.split(":")[2].removesuffix("/v1"))):
            await until(lambda: _found(running.url))

    assert found == [BEES]


async def test_a_text_that_the_service_refuses_is_found_by_its_words_and_holds_up_no_other(
    provider: Provider, tmp_path: Path
) -> None:
    provider.refused = "Bob moved to Oslo.", Fault(400)
    with server(tmp_path, provider) as running:
        refused = await retain(running.url, "Bob moved to Oslo.")
        provider.always = Fault(503)
        late = await retain(running.url, BEES)
        provider.always = None
        await until(lambda: _found(running.url))
        by_words = await recall(running.url, "Oslo")

    assert "refuses a text" in refused["warnings"][0]
    assert "found by its words alone" in refused["warnings"][0]
    assert "warnings" in late
    assert by_words["results"][0]["text"] == "Bob moved to Oslo."
    assert "warnings" not in by_words


@pytest.mark.parametrize("dimension", [64, 32], ids=["the same dimension", "another dimension"])
async def test_a_bank_of_another_model_is_searched_by_words_until_it_is_reindexed(
    provider: Provider, tmp_path: Path, dimension: int
) -> None:
    with server(tmp_path, provider) as running:
        await retain(running.url, BEES)
        exported = get(f"{running.url}/banks/team/memories")[1]
    with providing(meaning(dimension, 2)) as other, server(tmp_path, other, "b") as running:
        by_words = await recall(running.url, "bees")
        by_meaning = await texts(running.url, SAME_MEANING)
        added = await retain(running.url, "Bob likes honey.")
        told = reindex("--bank", "team", "--url", running.url)
        after = await recall(running.url, SAME_MEANING)

        assert [result["text"] for result in by_words["results"]] == [BEES]
        assert "hindsight reindex" in by_words["warnings"][0]
        assert "hindsight reindex" in added["warnings"][0]
        assert by_meaning == []
        assert told.returncode == 0, told.stderr
        assert "team: 100% 2 of 2 passages have vectors of b" in told.stderr
        assert after["results"][0]["text"] == BEES
        assert "warnings" not in after
        assert get(f"{running.url}/banks/team/memories")[1].startswith(exported)


async def test_a_reindex_that_is_killed_goes_on_at_the_next_start_and_recall_answers_throughout(
    provider: Provider, tmp_path: Path
) -> None:
    lines = [json.dumps({"content": f"Fact {number} is about bees."}).encode() for number in range(MANY)]
    with server(tmp_path, provider) as running:
        post(f"{running.url}/banks/team/memories", b"\n".join(lines))
        exported = get(f"{running.url}/banks/team/memories")[1]
    stopped = threading.Event()
    with providing(stops_after(500, stopped)) as other:
        with server(tmp_path, other, "b") as running:
            waiting(running.url)
            assert await asyncio.to_thread(stopped.wait, BOUND)
            left = waiting(running.url)
            during = await recall(running.url, "fact 7")
            running.kill()
        other.embed = meaning(64, 2)
        with server(tmp_path, other, "b") as running:
            await until(lambda: _waits(running.url, 0))
            after = await recall(running.url, SAME_MEANING)

            assert 0 < left < MANY
            assert during["results"][0]["text"] == "Fact 7 is about bees."
            assert "warnings" in during
            assert len(after["results"]) == 10
            assert "warnings" not in after
            assert get(f"{running.url}/banks/team/memories")[1] == exported


def stops_after(count: int, stopped: threading.Event) -> Callable[[Sequence[str]], Awaitable[Vectors]]:
    """A service that fails once it has made so many vectors of facts, and says so."""
    made = 0

    async def embed(asked: Sequence[str]) -> Vectors:
        nonlocal made
        if any(text.startswith("Fact") for text in asked):
            made += len(asked)
            if made > count:
                stopped.set()
                raise ValueError("this service stops here, as the test wants it")
        return rows_of(asked, 64, 2)

    return embed


async def _waits(url: str, count: int) -> bool:
    return await asyncio.to_thread(waiting, url) == count


async def test_reindex_works_on_a_data_folder_but_not_beside_the_server_that_holds_it(
    provider: Provider, other: Provider, tmp_path: Path
) -> None:
    with server(tmp_path, provider) as running:
        await retain(running.url, BEES)
        refused = reindex("--all", environment={"data_dir": tmp_path, **settings(other, "b")})
    done = reindex("--all", environment={"data_dir": tmp_path, **settings(other, "b")})
    with server(tmp_path, other, "b") as running:
        found = await texts(running.url, SAME_MEANING)

    assert refused.returncode == 1
    assert "held by hindsight serve" in refused.stderr
    assert "--url" in refused.stderr
    assert (done.returncode, done.stdout) == (0, "")
    assert "team: 100% 1 of 1 passages" in done.stderr
    assert found == [BEES]


async def test_a_bank_is_not_given_to_a_service_that_does_not_work(
    provider: Provider, other: Provider, tmp_path: Path
) -> None:
    with server(tmp_path, provider) as running:
        await retain(running.url, BEES)
    other.always = Fault(503)
    with server(tmp_path, other, "b") as running:
        told = reindex("--bank", "team", "--url", running.url)
    with server(tmp_path, provider) as running:
        found = await texts(running.url, SAME_MEANING)

    assert told.returncode == 1
    assert "the embedding service does not" in told.stderr
    assert found == [BEES]
