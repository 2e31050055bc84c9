"""Banks side by side: whatever happens in one, no word of it reaches another."""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import anyio
import pytest
from mcp import ClientSession

from hindsight.record import JsonObject
from tests.serving import BOUND, Serving, answer, client, refusal, serving

pytestmark = pytest.mark.anyio

BANKS, SESSIONS, CALLS = 10, 10, 1_000


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, model_folder: Path) -> Iterator[Serving]:
    """One server that keeps three banks open, so that they come and go all the time."""
    with serving(tmp_path_factory.mktemp("data"), model_dir=model_folder, open_banks=3) as server:
        yield server


@dataclass
class Team:
    """A bank with its canary word, what it holds, and what it was told."""

    name: str
    canary: str
    texts: dict[str, str] = field(default_factory=dict)
    told: list[str] = field(default_factory=list)
    wrong: list[JsonObject] = field(default_factory=list)


async def call(
    team: Team, session: ClientSession, tool: str, *, code: str | None = None, **arguments: object
) -> JsonObject:
    """Call a tool and note all that the team is told; what is not an answer, or the error `code`, is wrong."""
    result = await session.call_tool(tool, arguments)
    team.told.append(result.model_dump_json())
    structured = cast(JsonObject, result.structured_content)
    if structured.get("error", {}).get("code") != code:
        team.wrong.append(structured)
    return structured


async def work(teams: list[Team], mine: Team, session: ClientSession, dice: random.Random, calls: int) -> None:
    """Make mixed calls, with ids of other teams among them."""
    for _ in range(calls):
        other = dice.choice([team for team in teams if team is not mine])
        foreign = dice.choice([*other.texts, str(uuid.uuid4())])
        match dice.randrange(8):
            case 0 | 1 | 2:
                text = f"The {mine.canary} of shelf {dice.randrange(10**9)} is {dice.choice('red green blue'.split())}"
                stored = await call(
                    mine, session, "retain", content=text, tags=[mine.canary], metadata={"canary": mine.canary}
                )
                mine.texts[stored.get("id", "")] = text
            case 3 | 4:
                await call(mine, session, "recall", query=f"Where is the {other.canary}?", max_results=20)
            case 5:
                await call(mine, session, "list_memories", limit=20)
            case 6:
                tool = dice.choice(["get_memory", "update_memory", "forget"])
                await call(mine, session, tool, id=foreign, code="MEMORY_NOT_FOUND")
            case 7 if mine.texts:
                id = dice.choice(list(mine.texts))
                del mine.texts[id]
                await call(mine, session, "forget", id=id)


async def test_no_word_of_one_bank_is_in_another_ones_answers_over_a_thousand_mixed_calls(running: Serving) -> None:
    teams = [Team(f"team {number}", f"canary{number}{uuid.uuid4().hex}") for number in range(BANKS)]
    seed, left = random.Random(7), dict[str, list[JsonObject]]()
    async with AsyncExitStack() as stack:
        sessions = [
            (team, await stack.enter_async_context(client(running.url, team.name)))
            for team in teams
            for _ in range(SESSIONS)
        ]
        with anyio.fail_after(BOUND * 2):
            async with anyio.create_task_group() as tasks:
                for team, session in sessions:
                    dice = random.Random(seed.random())
                    tasks.start_soon(work, teams, team, session, dice, CALLS // len(sessions))
        for team, session in sessions[::SESSIONS]:
            await call(team, session, "bank_stats")
            left[team.name] = (await call(team, session, "list_memories", limit=500))["memories"]

    assert [wrong for team in teams for wrong in team.wrong] == []
    for team in teams:
        assert {memory["id"]: memory["text"] for memory in left[team.name]} == team.texts
        told = "".join(team.told)
        asked_for = [other.canary for other in teams if other is not team and other.canary in told]
        assert asked_for == []
        assert team.canary in told
    assert sum(len(team.told) for team in teams) >= CALLS * 0.8


async def test_clearing_one_bank_leaves_the_other_untouched(running: Serving) -> None:
    one, other = f"one {uuid.uuid4()}", f"other {uuid.uuid4()}"
    async with client(running.url, one) as first, client(running.url, other) as second:
        for session in (first, second):
            for number in range(5):
                await answer(session, "retain", content=f"fact {number}", metadata={"user": "ana"})
        before = await answer(second, "list_memories")
        cleared = await answer(first, "forget", filter="exists('$.user')", dry_run=False, confirm=True)

        assert cleared == {"count": 5}
        assert await answer(first, "list_memories") == {"memories": []}
        assert await answer(second, "list_memories") == before
        assert len((await answer(second, "recall", query="fact"))["results"]) == 5


async def test_an_id_is_good_in_its_own_bank_only(running: Serving) -> None:
    async with client(running.url, f"a {uuid.uuid4()}") as mine, client(running.url, f"b {uuid.uuid4()}") as theirs:
        id = (await answer(theirs, "retain", content="their canary"))["id"]
        await answer(mine, "retain", content="my own")
        errors = [
            await refusal(mine, "get_memory", id=id),
            await refusal(mine, "update_memory", id=id, context="taken"),
            await refusal(mine, "forget", id=id),
            await refusal(mine, "retain", content="new", supersedes=id),
        ]

        assert [error["code"] for error in errors] == ["MEMORY_NOT_FOUND"] * 4
        assert "canary" not in json.dumps(errors)
        theirs_now = await answer(theirs, "get_memory", id=id)
        assert (theirs_now["text"], theirs_now["superseded_by"]) == ("their canary", None)
        assert theirs_now["context"] == "general"


async def test_the_same_text_in_two_banks_is_two_memories(running: Serving) -> None:
    stored = []
    for name in (f"a {uuid.uuid4()}", f"b {uuid.uuid4()}"):
        async with client(running.url, name) as session:
            stored.append(await answer(session, "retain", content="the same text"))

    assert [each["status"] for each in stored] == ["stored", "stored"]
    assert stored[0]["id"] != stored[1]["id"]


async def test_fifty_retains_at_once_are_fifty_memories(running: Serving) -> None:
    contents = [f"Locker {number} belongs to person {number * 7}" for number in range(50)]
    bank = f"bank {uuid.uuid4()}"
    async with client(running.url, bank) as one, client(running.url, bank) as two:
        async with anyio.create_task_group() as tasks:
            for number, content in enumerate(contents):
                tasks.start_soon(store, (one, two)[number % 2], content)
        listed = await answer(one, "list_memories", limit=500)

    assert sorted(memory["text"] for memory in listed["memories"]) == sorted(contents)


async def store(session: ClientSession, content: str) -> None:
    assert (await answer(session, "retain", content=content))["status"] == "stored"
