"""The record: what seven tools promise about memories, asked by the official client of a real server.

Every answer in this file is checked against the output schema that its tool announces.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sqlite3
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import anyio
import pytest
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]  # it has no types
from mcp import ClientSession
from mcp.types import CallToolResult

from hindsight.cli import main
from hindsight.embedding.onnx import OnnxEmbedder
from hindsight.record import JsonObject
from tests.serving import Serving, browser, client, serving, text_of

pytestmark = pytest.mark.anyio

FIVE_KEYS = ["id", "text", "type", "context", "event_date"]
NOBODY = "00000000-0000-4000-8000-000000000000"
ERROR = Draft202012Validator(
    {
        "type": "object",
        "properties": {
            "error": {
                "type": "object",
                "properties": {name: {"type": "string", "minLength": 1} for name in ("code", "message", "next_action")},
                "required": ["code", "message", "next_action"],
            }
        },
        "required": ["error"],
        "additionalProperties": False,
    }
)


@pytest.fixture
async def team(running: Serving, bank: str) -> AsyncIterator[Asking]:
    """A session on a bank of the test's own."""
    async with asking(running.url, bank) as session:
        yield session


@dataclass(frozen=True, slots=True)
class Asking:
    """A session whose answers are checked against the schemas of their tools."""

    session: ClientSession
    schemas: Mapping[str, Draft202012Validator]

    async def ok(self, tool: str, /, **arguments: object) -> JsonObject:
        """The structured answer of a call that succeeds."""
        result = await self.session.call_tool(tool, arguments)
        assert not result.is_error, text_of(result)
        structured = cast(JsonObject, result.structured_content)
        self.schemas[tool].validate(structured)
        assert text_of(result) == "Memory stored successfully" if tool == "retain" else same(result)
        return structured

    async def no(self, tool: str, /, **arguments: object) -> JsonObject:
        """The error of a call that is refused."""
        result = await self.session.call_tool(tool, arguments)
        assert result.is_error, text_of(result)
        ERROR.validate(result.structured_content)
        assert same(result)
        return cast(JsonObject, cast(JsonObject, result.structured_content)["error"])

    async def retain(self, content: str, **arguments: object) -> str:
        """The id of a memory that is stored."""
        return cast(str, (await self.ok("retain", content=content, **arguments))["id"])

    async def recalled(self, query: str, **arguments: object) -> list[str]:
        """The texts that a recall finds."""
        return [result["text"] for result in (await self.ok("recall", query=query, **arguments))["results"]]

    async def listed(self, **arguments: object) -> list[str]:
        """The texts of a list."""
        return [memory["text"] for memory in (await self.ok("list_memories", **arguments))["memories"]]

    async def fill(self, *contents: str, **arguments: object) -> list[str]:
        """Retain some memories side by side; their ids, in order."""
        ids: dict[str, str] = {}

        async def store(content: str) -> None:
            ids[content] = await self.retain(content, **arguments)

        for start in range(0, len(contents), 25):
            async with anyio.create_task_group() as tasks:
                for content in contents[start : start + 25]:
                    tasks.start_soon(store, content)
        return [ids[content] for content in contents]


def same(result: CallToolResult) -> bool:
    """Whether the text says what the structure says."""
    told: JsonObject = json.loads(text_of(result))
    return bool(told == result.structured_content)


@asynccontextmanager
async def asking(url: str, bank: str) -> AsyncIterator[Asking]:
    async with client(url, bank) as session:
        tools = (await session.list_tools()).tools
        yield Asking(session, {tool.name: Draft202012Validator(tool.output_schema) for tool in tools})


# The list of tools


async def test_all_tools_are_listed_in_under_10_000_bytes_and_two_of_them_in_under_3_000(running: Serving) -> None:
    every, two = await listing(running, ""), await listing(running, "?tools=retain,recall")

    assert [tool["name"] for tool in json.loads(every)["tools"]] == [
        "retain", "recall", "get_memory", "list_memories", "update_memory", "forget", "bank_stats",
    ]  # fmt: skip
    assert [tool["name"] for tool in json.loads(two)["tools"]] == ["retain", "recall"]
    assert (len(every) < 10_000, len(two) < 3_000) == (True, True)


async def listing(running: Serving, query: str) -> bytes:
    """The result of tools/list as bytes."""
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    headers = {"accept": "application/json, text/event-stream"}
    async with browser(running.url) as http:
        answer = await http.post(f"/mcp/any{query}", json=body, headers=headers)
    return json.dumps(answer.json()["result"], separators=(",", ":"), ensure_ascii=False).encode()


async def test_every_tool_tells_what_it_is_what_it_takes_and_what_it_answers(running: Serving, bank: str) -> None:
    async with client(running.url, bank) as session:
        tools = {tool.name: tool for tool in (await session.list_tools()).tools}

    for tool in tools.values():
        assert (tool.title, tool.description) != (None, None)
        assert tool.annotations is not None
        assert tool.annotations.open_world_hint is False
        Draft202012Validator.check_schema(tool.input_schema)
        assert tool.output_schema is not None
        Draft202012Validator.check_schema(tool.output_schema)
        assert all(argument["description"] for argument in tool.input_schema["properties"].values())
    hints = {name: tool.annotations for name, tool in tools.items() if tool.annotations}
    assert {name for name, hint in hints.items() if hint.read_only_hint} == {
        "recall", "get_memory", "list_memories", "bank_stats",
    }  # fmt: skip
    assert {name for name, hint in hints.items() if hint.destructive_hint} == {"forget"}
    assert all(hint.idempotent_hint is True for hint in hints.values())
    assert {name: tool.input_schema["required"] for name, tool in tools.items()} == {
        "retain": ["content"], "recall": ["query"], "get_memory": ["id"], "list_memories": [],
        "update_memory": ["id"], "forget": [], "bank_stats": [],
    }  # fmt: skip


# retain


async def test_a_memory_comes_back_whole_under_the_names_it_was_given(team: Asking) -> None:
    given = {
        "context": "people",
        "type": "observation",
        "event_date": "2024-05-03T10:15:00+02:00",
        "tags": ["b", "a", "日本", "c, d"],
        "metadata": {"a": 1},
        "session_id": "session 1",
        "document_id": "document 1",
    }
    id = await team.retain("Ana likes tea", **given)
    got = await team.ok("get_memory", id=id)

    assert got == {
        **given,
        "id": id,
        "text": "Ana likes tea",
        "event_date": "2024-05-03T08:15:00Z",
        "retained_at": got["retained_at"],
        "supersedes": None,
        "superseded_by": None,
    }
    assert got["retained_at"].endswith("Z")


async def test_what_is_not_given_takes_its_default(team: Asking) -> None:
    got = await team.ok("get_memory", id=await team.retain("The sky is blue"))

    assert {name: got[name] for name in ("context", "type", "event_date", "tags", "metadata")} == {
        "context": "general", "type": "world", "event_date": None, "tags": [], "metadata": {},
    }  # fmt: skip
    assert (got["session_id"], got["document_id"]) == (None, None)


METADATA: list[JsonObject] = [
    {},
    {"big": 2**64 + 1, "bigger": -(10**300), "safe": 2**53 + 1},
    {"floats": [1.5, -0.0, 1e300, 5e-324, 0.1, 1.0]},
    {"deep": {"list": [None, True, False, [], {}, [[[{"a": []}]]]]}},
    {"": "empty name", "日本": "👩\u200d👩\u200d👧", "e\u0301": "NFD", "é": "NFC", "\0": "a\0b", "\u202e": '"\\\u2028'},
    {"$.odd": 1, "a.b": {"c d": "x"}, "text": "CAST(val('$.a') AS text)"},
    {"order": 1, "is": 2, "kept": 3, "a": 4},
    {"long": "x" * (16 * 1024 - 12)},
]


@pytest.mark.parametrize("metadata", METADATA, ids=lambda value: ascii(value)[:20])
async def test_metadata_is_returned_as_given(team: Asking, metadata: JsonObject) -> None:
    as_object = await team.ok("get_memory", id=await team.retain("as an object", metadata=metadata))
    as_text = await team.ok("get_memory", id=await team.retain("as text", metadata=json.dumps(metadata)))

    # As JSON: the order of the members, -0.0 and 1.0 count too.
    assert json.dumps(as_object["metadata"]) == json.dumps(as_text["metadata"]) == json.dumps(metadata)


async def test_metadata_nested_to_the_limit_is_returned(team: Asking) -> None:
    deep = '{"a":' * 100 + "1" + "}" * 100
    got = await team.ok("get_memory", id=await team.retain("deep", metadata=deep))

    assert got["metadata"] == json.loads(deep)
    assert (await team.no("retain", content="deeper", metadata=f'{{"a":{deep}}}'))["argument"] == "metadata"


@pytest.mark.parametrize(
    ("arguments", "field", "rule"),
    [
        ({"tags": [f"t{n}" for n in range(33)]}, "tags", "a list of at most 32"),
        ({"tags": ["t" * 65]}, "tags", "at most 64 characters, not 65"),
        ({"tags": ["ok", ""]}, "tags", "not empty"),
        ({"tags": {"a": 1}}, "tags", "a list"),
        ({"tags": 7}, "tags", "a list"),
        ({"metadata": [1]}, "metadata", "a JSON object"),
        ({"metadata": "text"}, "metadata", "a JSON object"),
        ({"metadata": {"a": "x" * 16_384}}, "metadata", "at most 16,384 bytes"),
        ({"document_id": "d" * 257}, "document_id", "at most 256 characters"),
        ({"session_id": "d" * 257}, "session_id", "at most 256 characters"),
        ({"supersedes": " "}, "supersedes", "not empty"),
        ({"supersedes": 7}, "supersedes", "text"),
    ],
    ids=lambda value: str(value)[:24],
)
async def test_what_is_over_a_limit_is_refused_with_it_and_nothing_is_stored(
    team: Asking, arguments: JsonObject, field: str, rule: str
) -> None:
    error = await team.no("retain", content="a fact", **arguments)

    assert (error["code"], error["argument"]) == ("INVALID_ARGUMENT", field)
    assert rule in error["message"]
    assert await team.listed() == []


async def test_what_is_just_within_the_limits_is_stored(team: Asking) -> None:
    given = {
        "context": "c" * 128,
        "tags": [f"{n:064}" for n in range(32)],
        "session_id": "s" * 256,
        "document_id": "d" * 256,
    }
    got = await team.ok("get_memory", id=await team.retain("x", **given))

    assert {name: got[name] for name in given} == given


@pytest.mark.parametrize(
    ("content", "type"),
    [
        ("Water boils at 100 degrees at sea level.", "world"),
        ("I deployed version 3 to production and rolled it back.", "experience"),
        ("I think tabs are better than spaces.", "opinion"),
        ("Across all sessions the user tends to ask about cost first.", "observation"),
        ("名前は田中", "world"),
    ],
)
async def test_a_type_is_decided_from_the_text_unless_it_is_given(team: Asking, content: str, type: str) -> None:
    decided = await team.ok("retain", content=content)
    given = await team.ok("retain", content=content, context="given", type="opinion")

    assert (decided["type"], given["type"]) == (type, "opinion")


async def test_the_same_memory_again_is_known_whatever_else_comes_with_it(team: Asking) -> None:
    given = {"context": "c", "event_date": "2024-05-03", "session_id": "s", "document_id": "d"}
    first = await team.ok("retain", content="tea", tags=["first"], **given)
    again = await team.ok("retain", content="tea", tags=["again"], metadata={"a": 1}, type="opinion", **given)

    assert again == {**first, "status": "known"}
    assert (await team.ok("get_memory", id=first["id"]))["tags"] == ["first"]
    assert await team.listed() == ["tea"]


@pytest.mark.parametrize("name", ["context", "event_date", "session_id", "document_id"])
async def test_another_context_date_session_or_document_is_another_memory(team: Asking, name: str) -> None:
    values = ("2024-05-03", "2024-05-04") if name == "event_date" else ("one", "two")
    ids = {(await team.ok("retain", content="tea", **{name: value}))["id"] for value in (*values, *values)}

    assert len(ids) == 2


async def test_the_same_instant_written_differently_is_the_same_memory(team: Asking) -> None:
    forms = ["2024-05-03T10:15:00Z", "2024-05-03T12:15:00+02:00", "2024-05-03T10:15", "2024-05-03 10:15:00.000+00:00"]
    ids = {await team.retain("tea", event_date=form) for form in forms}

    assert len(ids) == 1


async def test_a_date_read_from_the_text_does_not_make_another_memory(team: Asking) -> None:
    first = await team.ok("retain", content="We met on 3 May 2024")
    again = await team.ok("retain", content="We met on 3 May 2024")

    assert (first["event_date"], again["id"], again["status"]) == ("2024-05-03", first["id"], "known")


@pytest.mark.parametrize("date", ["0001-01-01", "9999-12-31", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59.999999Z"])
async def test_the_ends_of_the_calendar_are_dates_too(team: Asking, date: str) -> None:
    await team.retain("neither", event_date="2024-05-03")
    id = await team.retain("an end of time", event_date=date)

    assert (await team.ok("get_memory", id=id))["event_date"] == date
    assert await team.listed(since=date, until=date) == ["an end of time"]
    assert await team.recalled("time", since=date, until=date) == ["an end of time"]


async def test_an_instant_that_utc_puts_outside_the_calendar_is_refused(team: Asking) -> None:
    for date in ("0001-01-01T00:00:00+01:00", "9999-12-31T23:59:59-01:00"):
        assert (await team.no("retain", content="x", event_date=date))["argument"] == "event_date"


# supersedes


async def test_a_superseded_memory_leaves_recall_but_stays_readable_linked_both_ways(team: Asking) -> None:
    old = await team.retain("Ana works in Berlin")
    new = await team.ok("retain", content="Ana works in Paris", supersedes=old)

    assert new["superseded"] == old
    assert await team.recalled("Where does Ana work?") == ["Ana works in Paris"]
    assert await team.listed() == ["Ana works in Paris"]
    got_old, got_new = await team.ok("get_memory", id=old), await team.ok("get_memory", id=new["id"])
    assert (got_old["text"], got_old["supersedes"], got_old["superseded_by"]) == (
        "Ana works in Berlin",
        None,
        new["id"],
    )
    assert (got_new["supersedes"], got_new["superseded_by"]) == (old, None)


async def test_superseded_memories_are_shown_with_their_successor_to_who_asks_for_them(team: Asking) -> None:
    old = await team.retain("Ana works in Berlin")
    new = await team.retain("Ana works in Paris", supersedes=old)
    found = (await team.ok("recall", query="Ana works", include_superseded=True))["results"]
    listed = (await team.ok("list_memories", include_superseded=True))["memories"]

    assert {result["id"]: result.get("superseded_by") for result in found} == {old: new, new: None}
    assert [(memory["id"], memory["superseded_by"]) for memory in listed] == [(new, None), (old, new)]


async def test_a_chain_of_corrections_shows_its_end_only(team: Asking) -> None:
    ids = [await team.retain("Ana lives in city 0")]
    for number in range(1, 5):
        ids.append(await team.retain(f"Ana lives in city {number}", supersedes=ids[-1]))
    chain = [await team.ok("get_memory", id=id) for id in ids]

    assert await team.recalled("Where does Ana live?") == ["Ana lives in city 4"]
    assert [memory["supersedes"] for memory in chain] == [None, *ids[:-1]]
    assert [memory["superseded_by"] for memory in chain] == [*ids[1:], None]


async def test_superseding_what_has_a_successor_is_refused_and_names_it(team: Asking) -> None:
    old = await team.retain("Ana works in Berlin")
    new = await team.retain("Ana works in Paris", supersedes=old)
    error = await team.no("retain", content="Ana works in Rome", supersedes=old)

    assert (error["code"], error["superseded_by"]) == ("ALREADY_SUPERSEDED", new)
    assert new in error["message"]
    assert await team.listed(include_superseded=True) == ["Ana works in Paris", "Ana works in Berlin"]


async def test_superseding_what_is_not_there_is_refused_and_nothing_is_stored(team: Asking) -> None:
    error = await team.no("retain", content="Ana works in Rome", supersedes=NOBODY)

    assert error["code"] == "MEMORY_NOT_FOUND"
    assert await team.listed() == []


async def test_what_was_known_before_still_follows_what_it_supersedes(team: Asking) -> None:
    await team.retain("Ana lives in Berlin")
    known = await team.no("retain", content="Ana lives in Berlin", supersedes=NOBODY)

    assert known["code"] == "MEMORY_NOT_FOUND"


async def test_a_fact_that_becomes_true_again_is_recalled_again(team: Asking) -> None:
    berlin = await team.retain("Ana lives in Berlin")
    paris = await team.retain("Ana lives in Paris", supersedes=berlin)
    back = await team.ok("retain", content="Ana lives in Berlin", supersedes=paris)

    assert (back["status"], back["superseded"]) == ("stored", paris)
    assert await team.recalled("Where does Ana live?") == ["Ana lives in Berlin"]


async def test_a_correction_that_is_retried_is_known(team: Asking) -> None:
    old = await team.retain("Ana works in Berlin")
    first = await team.ok("retain", content="Ana works in Paris", supersedes=old)
    again = await team.ok("retain", content="Ana works in Paris", supersedes=old)

    assert again == {**first, "status": "known"}


async def test_of_ten_corrections_of_the_same_memory_at_once_one_is_taken(team: Asking) -> None:
    old = await team.retain("Ana works in Berlin")
    taken: list[JsonObject] = []
    refused: list[JsonObject] = []

    async def correct(number: int) -> None:
        given = {"content": f"Ana works in city {number}", "supersedes": old}
        result = await team.session.call_tool("retain", given)
        (refused if result.is_error else taken).append(cast(JsonObject, result.structured_content))

    async with anyio.create_task_group() as tasks:
        for number in range(10):
            tasks.start_soon(correct, number)

    [winner] = taken
    assert [error["error"]["superseded_by"] for error in refused] == [winner["id"]] * 9
    assert len(await team.listed()) == 1


async def test_a_refused_retain_makes_no_bank(running: Serving, bank: str, data: Path) -> None:
    async with asking(running.url, bank) as session:
        await session.no("retain", content="x", supersedes=NOBODY)
        await session.no("retain", content="x", event_date="0001-01-01T00:00:00+01:00")
        await session.no("retain", content=" ")

    assert not (data / "banks" / f"b-{bank}").exists()


# recall


async def test_a_plain_recall_has_exactly_five_keys_per_result_and_nothing_else(team: Asking) -> None:
    await team.fill("Ana likes tea", "Bo likes coffee")
    found = await team.ok("recall", query="Who likes tea?")

    assert list(found) == ["results"]
    assert [sorted(result) for result in found["results"]] == [sorted(FIVE_KEYS)] * 2


async def test_more_is_said_when_there_is_more(team: Asking) -> None:
    await team.fill(*(f"Box {number} is in the cellar" for number in range(5)))

    assert (await team.ok("recall", query="box in the cellar", max_results=4))["more"] is True
    assert "more" not in await team.ok("recall", query="box in the cellar", max_results=5)


# Six memories that differ in everything that can be asked for.
NOTES: list[JsonObject] = [
    {"content": "note one", "type": "world", "context": "a", "tags": ["red"], "event_date": "2024-05-01"},
    {"content": "note two", "type": "opinion", "context": "a", "tags": ["red", "blue"], "event_date": "2024-05-02"},
    {"content": "note three", "type": "experience", "context": "b", "tags": ["blue"], "session_id": "s1",
     "event_date": "2024-05-03T12:00:00Z"},
    {"content": "note four", "type": "observation", "context": "b", "metadata": {"team": "sales", "n": 4},
     "event_date": "2024-05-04"},
    {"content": "note five", "type": "world", "context": "c, d", "metadata": {"team": "it's", "n": 5},
     "event_date": "2024-05-05", "session_id": "s2"},
    {"content": "note six", "type": "world", "context": "c", "metadata": {"team": "sales", "n": None}},
]  # fmt: skip


async def take(session: Asking, notes: list[JsonObject]) -> None:
    for note in notes:
        await session.ok("retain", **note)


@pytest.fixture(scope="module")
def noted(running: Serving) -> str:
    """A bank of the notes, which nobody changes."""
    bank = f"notes-{uuid.uuid4()}"

    async def fill() -> None:
        async with asking(running.url, bank) as session:
            await take(session, NOTES)

    anyio.run(fill)
    return bank


@pytest.fixture
async def office(running: Serving, noted: str) -> AsyncIterator[Asking]:
    """A session on the notes, of one who only reads."""
    async with asking(running.url, noted) as session:
        yield session


@pytest.mark.parametrize(
    ("asked", "right"),
    [
        ({}, "one two three four five six"),
        ({"types": ["opinion"]}, "two"),
        ({"types": ["opinion", "experience"]}, "two three"),
        ({"types": "world, observation"}, "one four five six"),
        ({"contexts": ["a"]}, "one two"),
        ({"contexts": ["a", "c"]}, "one two six"),
        ({"contexts": ["c, d"]}, "five"),
        ({"contexts": ["nowhere"]}, ""),
        ({"tags": ["red"]}, "one two"),
        ({"tags": ["red", "blue"]}, "one two three"),
        ({"tags": ["red", "blue"], "tags_match": "any"}, "one two three"),
        ({"tags": ["red", "blue"], "tags_match": "all"}, "two"),
        ({"tags": ["red", "never"], "tags_match": "all"}, ""),
        ({"tags": "red, blue", "tags_match": "ALL"}, "two"),
        ({"session_id": "s1"}, "three"),
        ({"since": "2024-05-03", "until": "2024-05-03"}, "three"),
        ({"since": "2024-05-02", "until": "2024-05-04"}, "two three four"),
        ({"since": "2024-05-03T12:00:00Z", "until": "2024-05-03T12:00:00Z"}, "three"),
        ({"since": "2024-05-03T12:00:01Z", "until": "2024-05-04"}, "four"),
        ({"until": "2024-05-02T00:00:00Z"}, "one two"),
        ({"until": "2024-05-01T23:59:59Z"}, "one"),
        ({"since": "2024-05-05T14:00:00+02:00"}, "five six"),
        ({"until": "2024-05-04"}, "one two three four"),
        ({"filter": "CAST(val('$.team') AS text) = 'sales'"}, "four six"),
        ({"filter": "CAST(val('$.team') AS text) = 'it''s'"}, "five"),
        ({"filter": "CAST(val('$.n') AS INTEGER) >= 4"}, "four five"),
        ({"filter": "exists('$.n') AND val('$.n') IS NULL"}, "six"),
        ({"filter": "NOT exists('$.team')"}, "one two three"),
        ({"filter": "exists('$.team')", "types": ["world"], "contexts": ["c"]}, "six"),
        ({"types": ["world"], "tags": ["red"], "contexts": ["a"], "until": "2024-05-01"}, "one"),
        ({"types": ["world"], "tags": ["blue"]}, ""),
    ],
    ids=lambda value: str(value)[:60],
)
async def test_what_is_asked_for_narrows_recall_and_list_alike(office: Asking, asked: JsonObject, right: str) -> None:
    texts = [f"note {word}" for word in right.split()]

    assert sorted(await office.recalled("note", **asked)) == sorted(texts)
    assert await office.listed(order="oldest", **asked) == texts


@pytest.mark.parametrize("tool", ["recall", "list_memories"])
@pytest.mark.parametrize(
    ("asked", "code", "says"),
    [
        ({"types": ["fact"]}, "INVALID_ARGUMENT", "one of world, experience, opinion, observation"),
        ({"tags_match": "some"}, "INVALID_ARGUMENT", "one of any, all"),
        ({"since": "lately"}, "INVALID_ARGUMENT", '"lately"'),
        ({"since": "2024-05-04", "until": "2024-05-03"}, "INVALID_ARGUMENT", "since must not be after until"),
        ({"filter": "val('$.a' ="}, "INVALID_FILTER", "at character 11"),
        ({"filter": "val('$.a')"}, "INVALID_FILTER", "expected a comparison"),
        ({"include_superseded": "maybe"}, "INVALID_ARGUMENT", "true or false"),
    ],
    ids=lambda value: str(value)[:40],
)
async def test_what_can_not_be_asked_for_is_refused(
    office: Asking, tool: str, asked: JsonObject, code: str, says: str
) -> None:
    error = await office.no(tool, **({"query": "note"} if tool == "recall" else {}), **asked)

    assert error["code"] == code
    assert says in error["message"]


async def test_a_filter_that_leaves_2_of_100_gives_2(team: Asking) -> None:
    for rare in (False, True):
        contents = [f"The parcel {number} went out" for number in range(100) if (number in (17, 83)) is rare]
        await team.fill(*contents, metadata={"rare": rare}, tags=["rare"] if rare else [])
    right = ["The parcel 17 went out", "The parcel 83 went out"]

    for asked in ({"filter": "CAST(val('$.rare') AS BOOLEAN)"}, {"tags": ["rare"]}):
        assert sorted(await team.recalled("Which parcel went out?", max_results=2, **asked)) == right
        assert sorted(await team.recalled("nothing alike: zebra", max_results=10, **asked)) == right
        assert sorted(await team.listed(order="oldest", limit=2, **asked)) == right


async def test_days_are_matched_on_event_date_or_else_on_the_time_of_retaining(team: Asking) -> None:
    dated = await team.ok("get_memory", id=await team.retain("a dated thing", event_date="1999-12-31"))
    undated = await team.ok("get_memory", id=await team.retain("an undated thing"))
    day = undated["retained_at"][:10]

    assert await team.recalled("thing", since=day, until=day) == ["an undated thing"]
    assert await team.recalled("thing", since=dated["retained_at"]) == ["an undated thing"]
    assert await team.recalled("thing", until="1999-12-31") == ["a dated thing"]


# The size of answers


@pytest.fixture(scope="module")
def tokenizer(model_folder: Path) -> OnnxEmbedder:
    return OnnxEmbedder(model_folder, threads=1)


LONG: dict[str, Callable[[int], str]] = {
    "one endless word": lambda number: f"Report {number} " + f"{number}x" * 50_000,
    "sentences": lambda number: f"Report {number}. " + "The pump of hall nine was replaced by a new one. " * 2_040,
    "words": lambda number: f"Report {number}: " + " ".join(f"word{number}x{at}" for at in range(9_000)),
    "no blanks": lambda number: f"Report {number} " + "漢字仮名交じり文" * 4_170,
}


@pytest.mark.parametrize(
    "kind", [name if "endless" in name else pytest.param(name, marks=pytest.mark.slow) for name in LONG]
)
async def test_ten_memories_of_100_kb_are_answered_within_the_budget(
    team: Asking, tokenizer: OnnxEmbedder, kind: str
) -> None:
    contents = [LONG[kind](number) for number in range(10)]
    assert all(len(content.encode()) >= 90_000 for content in contents)
    for content in contents:
        await team.retain(content)

    for most in (2048, 300):
        results = (await team.ok("recall", query="report", max_tokens=most))["results"]
        sizes = [size(tokenizer, result) for result in results]
        assert results
        assert all(result["truncated"] for result in results)
        assert sum(sizes) <= max(most, sizes[0])
        assert len(json.dumps(results, ensure_ascii=False)) < most * 16 + 10_000


def size(tokenizer: OnnxEmbedder, result: JsonObject) -> int:
    """A result in tokens; of a text without blanks, which is one token to the tokenizer, 16 characters are one."""
    text = json.dumps(result, ensure_ascii=False)
    return max(len(tokenizer.token_ends(text)), len(text) // 16)


async def test_an_answer_exceeds_its_budget_by_its_first_result_at_most(team: Asking, tokenizer: OnnxEmbedder) -> None:
    await team.fill(*(f"Shelf {number} holds the folders of the year {1990 + number}" for number in range(20)))
    whole = (await team.ok("recall", query="shelf", max_results=20, max_tokens=100_000))["results"]
    sizes = [size(tokenizer, result) for result in whole]

    assert len(whole) == 20
    for most in (1, sizes[0], sizes[0] + sizes[1], sum(sizes[:7]), sum(sizes[:7]) + 1, sum(sizes)):
        found = await team.ok("recall", query="shelf", max_results=20, max_tokens=most)
        fitting = max(1, max(n for n in range(21) if sum(sizes[:n]) <= most))
        assert found["results"] == whole[:fitting]
        assert found.get("more", False) is (fitting < 20)


async def test_a_list_shows_the_start_of_long_memories_and_says_so(team: Asking) -> None:
    contents = [f"{number} " + "x" * 200_000 for number in range(4)]
    for content in [*contents, "short"]:
        await team.retain(content)
    listed = (await team.ok("list_memories", order="oldest", limit=500))["memories"]

    assert [memory["text"] for memory in listed] == [*(content[:500] for content in contents), "short"]
    assert [memory.get("truncated", False) for memory in listed] == [True] * 4 + [False]
    assert (await team.ok("get_memory", id=listed[0]["id"]))["text"] == contents[0]


# get_memory


@pytest.mark.parametrize("id", [NOBODY, "nope", "'; DROP TABLE memory; --", "日本", "a\0b", "x" * 100_000])
@pytest.mark.parametrize("tool", ["get_memory", "update_memory", "forget"])
async def test_an_id_of_no_memory_is_an_error_with_a_code(team: Asking, tool: str, id: str) -> None:
    await team.retain("something else")
    error = await team.no(tool, id=id)

    assert error["code"] == "MEMORY_NOT_FOUND"
    assert len(error["message"]) < 1_000
    assert await team.listed() == ["something else"]


async def test_reading_and_changing_in_an_unknown_bank_finds_nothing_and_makes_nothing(
    running: Serving, bank: str, data: Path
) -> None:
    async with asking(running.url, bank) as session:
        assert await session.ok("recall", query="anything", filter="exists('$.a')", since="2024-05-03") == {
            "results": []
        }
        assert await session.ok("list_memories") == {"memories": []}
        assert (await session.ok("bank_stats"))["memories"] == 0
        assert await session.ok("forget", filter="exists('$.a')") == {"count": 0, "sample": []}
        assert await session.ok("forget", filter="exists('$.a')", dry_run=False, confirm=True) == {"count": 0}
        for tool in ("get_memory", "update_memory", "forget"):
            assert (await session.no(tool, id=NOBODY))["code"] == "MEMORY_NOT_FOUND"
        assert (await session.no("recall", query="x", since="2024-05-04", until="2024-05-03"))["code"] == (
            "INVALID_ARGUMENT"
        )

    assert not (data / "banks" / f"b-{bank}").exists()


# list_memories


async def test_a_list_shows_seven_keys_and_the_successor(team: Asking) -> None:
    id = await team.retain("tea", tags=["hot"])
    [row] = (await team.ok("list_memories"))["memories"]
    got = await team.ok("get_memory", id=id)

    assert row == {name: got[name] for name in (*FIVE_KEYS, "tags", "retained_at", "superseded_by")}


async def test_pages_show_everything_once_in_either_order_with_writes_in_between(team: Asking) -> None:
    texts = [f"fact {number}" for number in range(11)]
    ids = [await team.retain(text) for text in texts]

    async def pages(order: str) -> list[list[str]]:
        """Go through all, retaining one and forgetting one that was shown before each next page."""
        found = [await team.ok("list_memories", order=order, limit=4)]
        while cursor := found[-1].get("next_cursor"):
            await team.retain(f"written between, {order} {len(found)}")
            await team.ok("forget", id=found[-1]["memories"][0]["id"])
            found.append(await team.ok("list_memories", order=order, limit=4, cursor=cursor))
        return [[memory["text"] for memory in page["memories"]] for page in found]

    newest = await pages("newest")
    assert newest == [texts[:6:-1], texts[6:2:-1], texts[2::-1]]
    assert (await team.no("get_memory", id=ids[10]))["code"] == "MEMORY_NOT_FOUND"
    oldest = [text for page in await pages("oldest") for text in page]
    assert [text for text in oldest if text in texts] == [text for text in texts if text not in (texts[10], texts[6])]
    assert len(oldest) == len(set(oldest))


async def test_a_list_of_exactly_one_page_has_no_next_one(team: Asking) -> None:
    await team.fill("one", "two", "three")

    assert "next_cursor" not in await team.ok("list_memories", limit=3)
    assert "next_cursor" in await team.ok("list_memories", limit=2)


@pytest.mark.parametrize("cursor", ["", "nope", "newest:", "oldest:3", "newest:-1", "newest:1e3", "newest:" + "9" * 30])
async def test_a_cursor_of_another_list_is_refused(team: Asking, cursor: str) -> None:
    assert (await team.no("list_memories", cursor=cursor))["argument"] == "cursor"


@pytest.mark.parametrize("limit", [0, -1, 501, 10**9, "many", True, ""])
async def test_a_limit_out_of_range_is_an_error_with_the_range(team: Asking, limit: object) -> None:
    assert "a whole number from 1 to 500" in (await team.no("list_memories", limit=limit))["message"]


# update_memory


async def test_an_update_changes_what_it_names_and_leaves_the_rest(team: Asking) -> None:
    id = await team.retain("tea", context="c", tags=["t"], metadata={"a": 1}, session_id="s", event_date="2024-05-03")
    right = await team.ok("get_memory", id=id)
    changes: list[JsonObject] = [
        {"context": "new"}, {"type": "opinion"}, {"event_date": "2024-06-01"}, {"tags": ["x", "y"]}, {"tags": []},
        {"metadata": {"b": [1]}}, {"metadata": {}}, {},
    ]  # fmt: skip
    for change in changes:
        right |= change

        assert await team.ok("update_memory", id=id, **change) == right
        assert await team.ok("get_memory", id=id) == right


async def test_recall_and_list_go_by_what_was_updated(team: Asking) -> None:
    id = await team.retain("tea", event_date="2024-05-03", tags=["old"])
    await team.ok("update_memory", id=id, event_date="2030-01-01", tags=["new"], metadata={"k": 1}, context="c")

    for asked in ({"tags": ["new"]}, {"since": "2030-01-01"}, {"filter": "exists('$.k')"}, {"contexts": ["c"]}):
        assert await team.recalled("tea", **asked) == await team.listed(**asked) == ["tea"]
    for asked in ({"tags": ["old"]}, {"until": "2024-05-03"}, {"contexts": ["general"]}):
        assert await team.recalled("tea", **asked) == await team.listed(**asked) == []


async def test_an_update_never_changes_the_text_and_says_so(team: Asking) -> None:
    id = await team.retain("tea")
    updated = await team.ok("update_memory", id=id, content="coffee", text="coffee")

    assert updated["text"] == "tea"
    assert [warning.split(" is not known")[0] for warning in updated["warnings"]] == [
        'the argument "content"', 'the argument "text"',
    ]  # fmt: skip


async def test_a_superseded_memory_can_be_updated_and_stays_superseded(team: Asking) -> None:
    old = await team.retain("Ana works in Berlin")
    new = await team.retain("Ana works in Paris", supersedes=old)
    updated = await team.ok("update_memory", id=old, context="history")

    assert (updated["context"], updated["superseded_by"]) == ("history", new)
    assert await team.listed(contexts=["history"]) == []


# forget


async def test_a_forgotten_memory_is_gone_from_everywhere(team: Asking) -> None:
    id = await team.retain("The canary sings", tags=["bird"], metadata={"k": 1})

    assert await team.ok("forget", id=id) == {"count": 1}
    assert (await team.no("get_memory", id=id))["code"] == "MEMORY_NOT_FOUND"
    assert (await team.no("forget", id=id))["code"] == "MEMORY_NOT_FOUND"
    assert await team.recalled("canary", include_superseded=True) == []
    assert await team.listed(include_superseded=True) == []
    stats = await team.ok("bank_stats")
    assert (stats["memories"], stats["types"], stats["contexts"], stats["tags"]) == (0, {}, {}, {})
    assert (await team.ok("retain", content="The canary sings"))["status"] == "stored"


async def test_a_forgotten_memory_never_uses_a_slot(team: Asking) -> None:
    for number in range(5):
        better = await team.retain(f"The red boat number {number} is in harbour nine")
        await team.retain("There are some boats")
        await team.ok("forget", id=better)

        assert await team.recalled("The red boat is in harbour nine", max_results=1) == ["There are some boats"]


async def test_a_memory_forgotten_right_after_it_was_retained_stays_gone(team: Asking) -> None:
    for number in range(20):
        await team.ok("forget", id=await team.retain(f"A passing thought, number {number}"))

    assert await team.recalled("A passing thought") == []


async def test_of_several_that_forget_the_same_memory_at_once_one_did(team: Asking) -> None:
    id = await team.retain("The canary sings")
    failed: list[bool] = []

    async def forget() -> None:
        failed.append((await team.session.call_tool("forget", {"id": id})).is_error or False)

    async with anyio.create_task_group() as tasks:
        for _ in range(8):
            tasks.start_soon(forget)

    assert sorted(failed) == [False] + [True] * 7


@pytest.mark.parametrize("place", [0, 1, 2])
async def test_forgetting_a_link_of_a_chain_clears_the_links_to_it(team: Asking, place: int) -> None:
    ids = [await team.retain("version 0")]
    for number in (1, 2):
        ids.append(await team.retain(f"version {number}", supersedes=ids[-1]))
    await team.ok("forget", id=ids[place])
    left = {id: await team.ok("get_memory", id=id) for id in ids if id != ids[place]}
    links = {id: (memory["supersedes"], memory["superseded_by"]) for id, memory in left.items()}

    assert ids[place] not in {link for pair in links.values() for link in pair}
    current = [memory["text"] for memory in left.values() if memory["superseded_by"] is None]
    assert sorted(await team.recalled("version")) == sorted(await team.listed()) == current


async def test_forgetting_by_filter_is_a_dry_run_first(team: Asking) -> None:
    await team.fill(*(f"sales note {number}" for number in range(8)), metadata={"team": "sales"})
    await team.fill("support note", metadata={"team": "support"})
    sales = "CAST(val('$.team') AS text) = 'sales'"
    dry = await team.ok("forget", filter=sales)

    assert dry["count"] == 8
    assert all(sorted(some) == ["id", "text"] and some["text"].startswith("sales note") for some in dry["sample"])
    assert 1 <= len(dry["sample"]) <= 8
    error = await team.no("forget", filter=sales, dry_run=False)
    assert error["code"] == "CONFIRMATION_REQUIRED"
    assert await team.ok("forget", filter=sales, confirm=True) == dry
    assert len(await team.listed()) == 9
    assert await team.ok("forget", filter=sales, dry_run=False, confirm=True) == {"count": 8}
    assert await team.listed() == await team.recalled("note") == ["support note"]
    assert await team.ok("forget", filter=sales, dry_run="false", confirm="true") == {"count": 0}


async def test_forgetting_by_filter_takes_superseded_ones_too(team: Asking) -> None:
    old = await team.retain("old", metadata={"team": "sales"})
    await team.retain("new", metadata={"team": "sales"}, supersedes=old)
    forgotten = await team.ok("forget", filter="exists('$.team')", dry_run=False, confirm=True)

    assert forgotten == {"count": 2}
    assert await team.listed(include_superseded=True) == []


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({}, "INVALID_ARGUMENT"),
        ({"id": NOBODY, "filter": "TRUE"}, "INVALID_ARGUMENT"),
        ({"confirm": True, "dry_run": False}, "INVALID_ARGUMENT"),
        ({"filter": "val("}, "INVALID_FILTER"),
        ({"filter": "", "confirm": True, "dry_run": False}, "INVALID_FILTER"),
        ({"id": ""}, "INVALID_ARGUMENT"),
        ({"filter": "TRUE", "dry_run": "no"}, "INVALID_ARGUMENT"),
    ],
    ids=str,
)
async def test_what_is_not_said_clearly_forgets_nothing(team: Asking, arguments: JsonObject, code: str) -> None:
    await team.retain("kept")

    assert (await team.no("forget", **arguments))["code"] == code
    assert await team.listed() == ["kept"]


async def test_after_a_kill_the_forgotten_is_gone_also_from_the_files_and_the_rest_is_as_it_was(
    tmp_path: Path, model_folder: Path
) -> None:
    secret, ledger = "The zanzibarcanary sings at dawn", tmp_path / "banks" / "b-team" / "ledger.db"
    with serving(tmp_path, model_dir=model_folder) as server:
        async with asking(server.url, "team") as session:
            await session.fill(*(f"neighbour {number} says nothing" for number in range(30)))
            given = {"tags": ["zanzibarcanary"], "metadata": {"zanzibarcanary": 1}, "session_id": "zanzibarcanary"}
            gone = await session.retain(secret, context="zanzibarcanary", **given)
            assert (await session.recalled("zanzibarcanary"))[0] == secret
            with contextlib.closing(sqlite3.connect(ledger)) as database:
                [vector] = database.execute("SELECT vector FROM passage ORDER BY key DESC LIMIT 1").fetchone()
            await session.ok("forget", id=gone)
            old = await session.retain("Ana works in Berlin", metadata={"big": 10**40})
            new = await session.retain("Ana works in Paris", supersedes=old)
            await session.ok("update_memory", id=new, tags=["city"], metadata={"k": 1})
            before = [await session.ok("get_memory", id=id) for id in (old, new)]
        server.kill()
    assert await asyncio.to_thread(main, ["check", "--data-dir", str(tmp_path)]) == 0
    assert files_with(tmp_path, b"zanzibarcanary") == []
    assert files_with(tmp_path, vector[:64]) == []

    with serving(tmp_path, model_dir=model_folder, ready=False) as server:
        async with asking(server.url, "team") as session:
            assert secret not in await session.recalled("zanzibarcanary sings at dawn", max_results=100)
            assert len(await session.listed(limit=500)) == 31
            assert (await session.no("get_memory", id=gone))["code"] == "MEMORY_NOT_FOUND"
            assert [await session.ok("get_memory", id=id) for id in (old, new)] == before
            assert await session.recalled("Ana", tags=["city"], filter="exists('$.k')") == ["Ana works in Paris"]
            assert "Ana works in Berlin" not in await session.recalled("Ana works in Berlin", max_results=100)


def files_with(folder: Path, needle: bytes) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and needle in path.read_bytes()]


# bank_stats


async def test_stats_count_what_is_there(team: Asking) -> None:
    await take(team, NOTES)
    one = (await team.ok("list_memories", order="oldest"))["memories"][0]["id"]
    await team.retain("note seven", supersedes=one, event_date="2023-01-01", type="world", context="a")
    stats = await team.ok("bank_stats")

    assert (stats["memories"], stats["superseded"]) == (7, 1)
    assert stats["types"] == {"world": 4, "experience": 1, "observation": 1, "opinion": 1}
    assert stats["contexts"] == {"a": 3, "b": 2, "c": 1, "c, d": 1}
    assert stats["tags"] == {"blue": 2, "red": 2}
    assert (stats["first_date"], stats["last_date"]) == ("2023-01-01", "2024-05-05")
    assert stats["dimension"] > 0
    assert stats["embedder"]
    assert stats["bytes"] > 4096


async def test_a_number_that_is_not_a_number_never_gets_into_an_answer(team: Asking) -> None:
    error = await team.no("retain", content="x", metadata='{"a": NaN}')

    assert error["argument"] == "metadata"
