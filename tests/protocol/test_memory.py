"""What a bank remembers, asked by the official client of a real server in a process of its own."""

from __future__ import annotations

import json
import unicodedata
import uuid
from pathlib import Path
from urllib.parse import quote

import anyio
import pytest
from mcp import ClientSession, MCPError

from hindsight.record import JsonObject
from tests.commands import spawned
from tests.serving import (
    Serving,
    answer,
    browser,
    client,
    environment_with,
    get,
    refusal,
    serving,
    text_of,
    texts,
)

pytestmark = pytest.mark.anyio

MIB = 1024 * 1024


async def retain(url: str, bank: str, content: str, **arguments: object) -> JsonObject:
    async with client(url, bank) as session:
        return await answer(session, "retain", content=content, **arguments)


async def recall(url: str, bank: str, query: str, **arguments: object) -> list[str]:
    async with client(url, bank) as session:
        return await texts(session, query, **arguments)


async def post(url: str, bank: str, tool: str, arguments: str) -> JsonObject:
    """Call over streamable HTTP with arguments as raw JSON, which the official client would not send."""
    params = f'{{"name": "{tool}", "arguments": {arguments}}}'
    body = f'{{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {params}}}'
    headers = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
    async with browser(url) as http:
        response = await http.post(f"/mcp/{quote(bank, safe='')}", content=body.encode(), headers=headers)
    result: JsonObject = response.json()["result"]
    return result


# The seed


async def test_the_first_conversation_goes_to_the_letter(running: Serving, bank: str) -> None:
    async with client(running.url, bank) as session:
        stored = await session.call_tool(
            "retain", {"content": "User prefers Python for data analysis", "context": "preferences"}
        )
        await session.call_tool("retain", {"content": "User works at Google as a data engineer"})
        found = await session.call_tool("recall", {"query": "What does the user do for work?"})

    assert text_of(stored) == "Memory stored successfully"
    assert stored.is_error is False
    results = json.loads(text_of(found))["results"]
    assert [without_id(result) for result in results] == [
        {"text": "User works at Google as a data engineer", "type": "world", "context": "general", "event_date": None},
        {
            "text": "User prefers Python for data analysis",
            "type": "world",
            "context": "preferences",
            "event_date": None,
        },
    ]
    assert all(str(uuid.UUID(result["id"])) == result["id"] for result in results)
    assert found.structured_content == json.loads(text_of(found))


def without_id(result: JsonObject) -> JsonObject:
    return {name: value for name, value in result.items() if name != "id"}


async def test_retain_tells_the_id_that_recall_gives_back(running: Serving, bank: str) -> None:
    async with client(running.url, bank) as session:
        stored = await answer(session, "retain", content="The launch is on 3 May 2024.", type="experience")
        found = await answer(session, "recall", query="launch")

    assert stored == {"id": stored["id"], "status": "stored", "type": "experience", "event_date": "2024-05-03"}
    assert found == {
        "results": [
            {
                "id": stored["id"],
                "text": "The launch is on 3 May 2024.",
                "type": "experience",
                "context": "general",
                "event_date": "2024-05-03",
            }
        ]
    }


async def test_a_session_lists_every_tool_with_schemas_and_hints(running: Serving, bank: str) -> None:
    async with client(running.url, bank) as every, client(running.url, bank, "?tools=retain,recall") as two:
        tools, narrowed = (await every.list_tools()).tools, (await two.list_tools()).tools

    assert [tool.name for tool in narrowed] == ["retain", "recall"]
    assert [tool.name for tool in tools[:2]] == ["retain", "recall"]
    assert all(tool.title and tool.description and tool.output_schema and tool.annotations for tool in tools)


@pytest.mark.parametrize(("query", "most"), [("", 10_000), ("?tools=retain,recall", 3_000)])
async def test_the_list_of_tools_is_short(running: Serving, bank: str, query: str, most: int) -> None:
    async with browser(running.url) as http:
        response = await http.post(f"/mcp/{bank}{query}", json={"jsonrpc": "2.0", "id": 1, "method": "tools/list"})

    assert len(response.content) < most


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("2024-05-03", "2024-05-03"),
        ("2024-05-03T10:15:00Z", "2024-05-03T10:15:00Z"),
        ("2024-05-03T10:15:00+02:00", "2024-05-03T08:15:00Z"),
        ("2024-05-03T10:15", "2024-05-03T10:15:00Z"),
    ],
)
async def test_a_date_stays_a_date_and_a_time_comes_back_in_utc(
    running: Serving, bank: str, given: str, told: str
) -> None:
    stored = await retain(running.url, bank, "The boiler was serviced", event_date=given)

    assert stored["event_date"] == told


async def test_what_one_session_retained_another_one_recalls_at_once(running: Serving, bank: str) -> None:
    async with client(running.url, bank) as writer, client(running.url, bank) as reader:
        for number in range(20):
            content = f"Ticket number {number} is about a broken hinge"
            await answer(writer, "retain", content=content)

            assert content in await texts(reader, content, max_results=100)


async def test_fifty_retains_at_once_are_all_found(running: Serving, bank: str) -> None:
    contents = [f"Locker {number} belongs to person {number * 7}" for number in range(50)]
    stored: list[JsonObject] = []

    async def store(session: ClientSession, content: str) -> None:
        stored.append(await answer(session, "retain", content=content))

    async with client(running.url, bank) as one, client(running.url, bank) as two, anyio.create_task_group() as tasks:
        for number, content in enumerate(contents):
            tasks.start_soon(store, (one, two)[number % 2], content)

    assert [each["status"] for each in stored] == ["stored"] * 50
    assert len({each["id"] for each in stored}) == 50
    found = await recall(running.url, bank, "lockers and persons", max_results=100, max_tokens=100_000)
    assert sorted(found) == sorted(contents)


async def test_twenty_equal_retains_at_once_store_one_memory(running: Serving, bank: str) -> None:
    stored: list[JsonObject] = []

    async def store(session: ClientSession) -> None:
        stored.append(await answer(session, "retain", content="The gate code is 4711"))

    async with client(running.url, bank) as session, anyio.create_task_group() as tasks:
        for _ in range(20):
            tasks.start_soon(store, session)

    assert sorted(each["status"] for each in stored) == ["known"] * 19 + ["stored"]
    assert len({each["id"] for each in stored}) == 1
    assert await recall(running.url, bank, "gate code") == ["The gate code is 4711"]


async def test_the_same_memory_again_is_known_by_the_same_id(running: Serving, bank: str) -> None:
    first = await retain(running.url, bank, "Ana met Bo on 3 May 2024", context="people", session_id="s1")
    again = await retain(running.url, bank, "Ana met Bo on 3 May 2024", context="people", session_id="s1")

    assert again == {**first, "status": "known"}
    assert await recall(running.url, bank, "Ana") == ["Ana met Bo on 3 May 2024"]


@pytest.mark.parametrize(
    "difference",
    [
        {"context": "work"},
        {"event_date": "2024-05-03"},
        {"session_id": "s2"},
        {"content": "Ana met Bo on 3 May 2024!"},
        {"content": "Ana met Bo on 3 May 2024 "},
    ],
    ids=str,
)
async def test_one_difference_makes_another_memory(running: Serving, bank: str, difference: dict[str, str]) -> None:
    given = {"content": "Ana met Bo on 3 May 2024", "context": "people", "session_id": "s1"}
    async with client(running.url, bank) as session:
        first = await answer(session, "retain", **given)
        other = await answer(session, "retain", **{**given, **difference})

        assert (first["status"], other["status"]) == ("stored", "stored")
        assert len(await texts(session, "Ana")) == 2


async def test_a_different_type_alone_is_the_same_memory(running: Serving, bank: str) -> None:
    first = await retain(running.url, bank, "The sky was red", type="experience")
    again = await retain(running.url, bank, "The sky was red", type="opinion")

    assert again == {**first, "status": "known"}


# On disk


async def test_memories_outlive_a_restart_word_for_word(tmp_path: Path, model_folder: Path) -> None:
    contents = ["Zoë keeps bees", "The deploy key is kept in vault 7", "Berlin office opens at nine"]
    with serving(tmp_path, model_dir=model_folder) as server:
        for content in contents:
            await retain(server.url, "team", content)
        async with client(server.url, "team") as session:
            before = await answer(session, "recall", query="Where is the deploy key?")
        status = server.stop()

    with serving(tmp_path, model_dir=model_folder, ready=False) as server:
        async with client(server.url, "team") as session:
            after = await answer(session, "recall", query="Where is the deploy key?")

    assert status == 0
    assert after == before
    assert len(after["results"]) == 3


async def test_a_kill_right_after_the_answer_loses_nothing(tmp_path: Path, model_folder: Path) -> None:
    stored: list[str] = []
    for number in range(3):
        with serving(tmp_path, model_dir=model_folder, ready=False) as server:
            async with client(server.url, "team") as session:
                stored.append(f"Shelf {number} holds the blue folders")
                await answer(session, "retain", content=stored[-1])
                server.kill()

    with serving(tmp_path, model_dir=model_folder, ready=False) as server:
        assert sorted(await recall(server.url, "team", "blue folders")) == stored


async def test_a_kill_amid_many_retains_keeps_every_acknowledged_one(tmp_path: Path, model_folder: Path) -> None:
    acknowledged: list[str] = []
    enough = anyio.Event()

    async def store(session: ClientSession, number: int) -> None:
        content = f"Parcel {number} went to depot {number % 7}"
        await answer(session, "retain", content=content)
        acknowledged.append(content)
        if len(acknowledged) >= 25:
            enough.set()

    with serving(tmp_path, model_dir=model_folder, session_calls=200) as server:
        try:
            async with client(server.url, "team") as session, anyio.create_task_group() as tasks:
                for number in range(150):
                    tasks.start_soon(store, session, number)
                await enough.wait()
                server.kill()
                tasks.cancel_scope.cancel()
        except* (anyio.BrokenResourceError, anyio.ClosedResourceError):
            pass  # the official client's own, when the server dies under it

    with serving(tmp_path, model_dir=model_folder, ready=False) as server:
        async with client(server.url, "team") as session:
            for content in acknowledged:
                assert content in await texts(session, content)


def test_a_second_server_on_the_same_folder_is_refused_and_told_who_holds_it(running: Serving, data: Path) -> None:
    second = spawned("serve", port=0, data_dir=data)

    assert second.status == 1
    assert f"held by hindsight serve, process {running.process.pid} on " in second.err
    assert get(f"{running.url}/healthz")[0] == 200


async def test_the_server_writes_nothing_outside_its_data_folder(tmp_path: Path, model_folder: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    settings = {"port": 0, "data_dir": tmp_path / "data", "model_dir": model_folder}
    environment = environment_with(settings) | {"HOME": str(home)}
    environment.pop("CI", None)  # onnxruntime keeps its telemetry quiet there
    with serving(tmp_path / "data", environment=environment) as server:
        await retain(server.url, "team", "The safe is behind the painting")
        await recall(server.url, "team", "safe")
        server.stop()

    assert list(home.rglob("*")) == []


async def test_a_session_opens_before_the_model_is_loaded_and_the_first_retain_waits_for_it(
    tmp_path: Path, model_folder: Path
) -> None:
    with serving(tmp_path, model_dir=model_folder, ready=False) as server:
        async with client(server.url, "early") as session:
            stored = await answer(session, "retain", content="The early bird sings")

            assert stored["status"] == "stored"
            assert await texts(session, "bird") == ["The early bird sings"]


# Arguments


@pytest.mark.parametrize("value", ['"10"', "10", "10.0", '" 10 "', '"10.0"'])
async def test_every_way_to_write_ten_is_ten(running: Serving, bank: str, value: str) -> None:
    await retain(running.url, bank, "one fact")

    found = await post(running.url, bank, "recall", f'{{"query": "fact", "max_results": {value}}}')

    assert found["isError"] is False
    assert "warnings" not in found["structuredContent"]


@pytest.mark.parametrize(
    "value", ['"ten"', '"12px"', "true", '""', "0", "101", "-1", "10.5", "[]", "{}", '"1e1"', "1e400", '"٣"', '"1_0"']
)
async def test_what_is_no_number_in_range_is_refused_with_field_value_and_range(
    running: Serving, bank: str, value: str
) -> None:
    found = await post(running.url, bank, "recall", f'{{"query": "fact", "max_results": {value}}}')

    error = found["structuredContent"]["error"]
    assert (found["isError"], error["code"], error["argument"]) == (True, "INVALID_ARGUMENT", "max_results")
    assert error["message"].startswith("max_results must be a whole number from 1 to 100; got ")
    assert error["next_action"]


@pytest.mark.parametrize(
    ("tool", "arguments", "field", "rule"),
    [
        ("retain", {}, "content", "is required"),
        ("retain", {"content": None}, "content", "is required"),
        ("retain", {"content": ""}, "content", "not empty"),
        ("retain", {"content": " \n\t\u3000"}, "content", "white space"),
        ("retain", {"content": 7}, "content", "must be text; got 7"),
        ("retain", {"content": True}, "content", "must be text; got true"),
        ("retain", {"content": ["a"]}, "content", "must be text"),
        ("retain", {"content": "a", "context": ""}, "context", "not empty"),
        ("retain", {"content": "a", "context": "c" * 129}, "context", "at most 128 characters, not 129"),
        ("retain", {"content": "a", "type": "fact"}, "type", "one of world, experience, opinion, observation"),
        ("retain", {"content": "a", "type": ""}, "type", "one of world"),
        ("retain", {"content": "a", "type": True}, "type", "one of world"),
        ("retain", {"content": "a", "event_date": "yesterday"}, "event_date", '"yesterday"'),
        ("retain", {"content": "a", "event_date": "2024-02-30"}, "event_date", '"2024-02-30"'),
        ("retain", {"content": "a", "event_date": ""}, "event_date", '""'),
        ("retain", {"content": "a", "event_date": 20240503}, "event_date", "20240503"),
        ("retain", {"content": "a", "session_id": "s" * 257}, "session_id", "at most 256 characters, not 257"),
        ("retain", {"content": "a", "session_id": {}}, "session_id", "must be text"),
        ("recall", {}, "query", "is required"),
        ("recall", {"query": " "}, "query", "white space"),
        ("recall", {"query": 3}, "query", "must be text; got 3"),
        ("recall", {"query": "q" * 10_001}, "query", "at most 10,000 characters, not 10,001"),
    ],
    ids=lambda value: value if isinstance(value, str) else str(value)[:40],
)
async def test_a_wrong_argument_is_refused_by_name_and_rule(
    running: Serving, bank: str, tool: str, arguments: JsonObject, field: str, rule: str
) -> None:
    async with client(running.url, bank) as session:
        error = await refusal(session, tool, **arguments)

        assert (error["code"], error["argument"]) == ("INVALID_ARGUMENT", field)
        assert rule in error["message"]
        assert error["next_action"]
        assert await texts(session, "a") == []


async def test_arguments_of_null_take_their_defaults(running: Serving, bank: str) -> None:
    optional = {"context": None, "type": None, "event_date": None, "session_id": None}
    async with client(running.url, bank) as session:
        await answer(session, "retain", content="a plain fact", **optional)
        found = await answer(session, "recall", query="plain", max_results=None)

    assert [without_id(result) for result in found["results"]] == [
        {"text": "a plain fact", "type": "world", "context": "general", "event_date": None}
    ]


@pytest.mark.parametrize(
    ("tool", "arguments", "warning"),
    [
        (
            "retain",
            {"content": "a", "contxt": "work"},
            "\"contxt\" is not known and was ignored; did you mean 'context'?",
        ),
        ("recall", {"query": "a", "zzz": 3}, '"zzz" is not known and was ignored; known are '),
        ("recall", {"query": "a", "max_result": 3}, "did you mean 'max_results'?"),
        ("recall", {"query": "a", "\u202e": None}, '"\\u202e" is not known'),
    ],
)
async def test_an_unknown_argument_is_ignored_with_a_warning_that_names_the_nearest(
    running: Serving, bank: str, tool: str, arguments: JsonObject, warning: str
) -> None:
    async with client(running.url, bank) as session:
        found = await answer(session, tool, **arguments)

    [told] = found["warnings"]
    assert told.startswith("the argument ")
    assert warning in told


async def test_a_type_in_capitals_is_understood(running: Serving, bank: str) -> None:
    stored = await retain(running.url, bank, "Tea is better than coffee", type=" Opinion ")

    assert stored["type"] == "opinion"


async def test_an_unknown_tool_is_refused_with_the_known_ones(running: Serving, bank: str) -> None:
    async with client(running.url, bank) as session:
        result = await session.call_tool("remember", {"content": "a"})

    assert result.is_error
    error = json.loads(text_of(result))["error"]
    assert error["code"] == "INVALID_ARGUMENT"
    assert "retain, recall" in error["message"]


async def test_an_error_says_the_same_as_text_and_as_structure(running: Serving, bank: str) -> None:
    async with client(running.url, bank) as session:
        result = await session.call_tool("retain", {"content": " "})

    told = json.loads(text_of(result))
    assert result.structured_content == told
    assert sorted(told["error"]) == ["argument", "code", "message", "next_action"]


# Text


@pytest.mark.parametrize(
    "content",
    [
        "family 👩‍👩‍👧‍👦 and flag 🏳️‍🌈",
        unicodedata.normalize("NFD", "café à Zürich"),
        unicodedata.normalize("NFC", "café à Zürich"),
        "before\0after",
        "مرحبا بالعالم \u202eabc\u202c",
        "line\u2028separator\u2029paragraph\x85next",
        "\ufefftext with a byte order mark",
        "tabs\tand\r\nline ends\n\n",
        "  spaces around  ",
        "\x01\x1b[31m\x7f control",
        "non-characters \ufffe\uffff \U0010ffff",
        '"quotes" \\ backslash \\u0041 </script>',
        "private \ue000 use and \ufffd",
    ],
    ids=ascii,
)
async def test_text_comes_back_byte_for_byte(running: Serving, bank: str, content: str) -> None:
    async with client(running.url, bank) as session:
        await answer(session, "retain", content=content, context=content)
        found = await answer(session, "recall", query=content)

    assert [(result["text"], result["context"]) for result in found["results"]] == [(content, content)]


@pytest.mark.parametrize("arguments", [r'{"content": "a \ud83d b"}', r'{"content": "ok", "context": "\udc00"}'])
async def test_half_a_surrogate_pair_is_refused(running: Serving, bank: str, arguments: str) -> None:
    result = await post(running.url, bank, "retain", arguments)

    error = result["structuredContent"]["error"]
    assert (result["isError"], error["code"]) == (True, "INVALID_ARGUMENT")
    assert "lone surrogates" in error["message"]
    assert await recall(running.url, bank, "a b") == []


async def test_a_memory_of_a_mebibyte_is_kept_and_one_byte_more_is_refused(running: Serving, bank: str) -> None:
    # Without a blank it is one passage, so embedding it takes no time.
    content = "The log of the pump: " + "é" * ((MIB - 22) // 2) + "."
    assert len(content.encode()) == MIB
    async with client(running.url, bank) as session:
        error = await refusal(session, "retain", content=f"{content}!")
        stored = await answer(session, "retain", content=content)
        again = await answer(session, "retain", content=content)

    assert (error["code"], error["argument"]) == ("CONTENT_TOO_LARGE", "content")
    assert "1,048,577 bytes; at most 1,048,576" in error["message"]
    assert stored["status"] == "stored"
    assert again == {**stored, "status": "known"}


async def test_short_retains_do_not_wait_for_a_long_one(running: Serving, bank: str) -> None:
    done = anyio.Event()

    async def store_long(session: ClientSession) -> None:
        await answer(session, "retain", content="The committee went on about the car park. " * 3_000)
        done.set()

    short = 0
    async with (
        client(running.url, bank) as one,
        client(running.url, f"{bank}-2") as two,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(store_long, one)
        while not done.is_set():
            await answer(two, "retain", content=f"The car park has lamp {short}")
            short += 1

    # The long one takes ten turns at the embedder; most of them let a short one in between.
    assert short >= 5


async def test_a_message_over_the_body_limit_fails_the_call_and_the_session_lives(running: Serving, bank: str) -> None:
    async with client(running.url, bank) as session:
        with pytest.raises(MCPError, match="more than 4,194,304 bytes") as failed:
            await session.call_tool("retain", {"content": "x" * (5 * MIB)})
        stored = await answer(session, "retain", content="small")

    assert failed.value.error.data["code"] == "CONTENT_TOO_LARGE"
    assert stored["status"] == "stored"


async def test_a_fact_in_the_last_line_of_a_long_memory_is_found(running: Serving, bank: str) -> None:
    filler = "\n".join(
        f"Minute {number}: the committee went on about the car park and its lamps." for number in range(230)
    )
    long = f"{filler}\nAt last Priya said that her sister is a veterinarian in Lisbon."
    assert len(long.split()) > 3_000
    async with client(running.url, bank) as session:
        await answer(session, "retain", content=long)
        await answer(session, "retain", content="The kitchen was painted green.")
        found = await answer(session, "recall", query="What is the job of Priya's sister?", max_results=1)

    [result] = found["results"]
    assert "her sister is a veterinarian in Lisbon" in result["text"]
    assert result["text"] in long
    assert len(result["text"]) < len(long)
    assert result["truncated"] is True


LITERAL = [
    "We don't ship on Fridays",
    "The disk writes 3 GB/s at best",
    "Run the pre-edit hook before a push",
    "The key a:b maps to the second shard",
    "The pattern x* matches everything",
    "Start it with --flag for a dry run",
    "東京タワーは赤い",
    "C++ and C# are both in use",
    "Error E_4471-B came from the pump",
    "Write to ops@example.org",
]


@pytest.mark.parametrize(
    ("query", "number"),
    [
        ("don't", 0), ("GB/s", 1), ("pre-edit", 2), ("a:b", 3), ("x*", 4), ("--flag", 5), ("東京タワー", 6),
        ("赤い", 6), ("C++", 7), ("E_4471-B", 8), ("ops@example.org", 9), ('"a:b" OR x', 3), ("NEAR(x*", 4),
    ],
)  # fmt: skip
async def test_literal_words_are_found_as_they_are_written(running: Serving, query: str, number: int) -> None:
    async with client(running.url, "literal words") as session:
        for content in LITERAL:
            await answer(session, "retain", content=content)
        found = await texts(session, query, max_results=1)

    assert found == [LITERAL[number]]


async def test_max_results_bounds_the_answer_best_first(running: Serving, bank: str) -> None:
    async with client(running.url, bank) as session:
        for place in ("kitchen", "garage", "attic", "cellar"):
            await answer(session, "retain", content=f"The ladder is in the {place}")
        one = await texts(session, "Is there a ladder in the attic?", max_results=1)
        three = await texts(session, "Is there a ladder in the attic?", max_results=3)

    assert one == ["The ladder is in the attic"]
    assert (three[0], len(three)) == (one[0], 3)


# Banks


async def test_banks_never_share_a_memory_however_alike_their_ids(running: Serving) -> None:
    banks = [
        "a", "A", "ab", "aB", "a.b", "a-b", "a_b", "a b", "a:b", "a+b", "user@x.org", "Team A", "team a", "Team-A",
        "日本", "日本語", "1.2.3.4", "1.2.3", "n" * 128, "n" * 127, "n" * 127 + "m", "N" * 128, "b-a", "x-61", "straße",
        "strasse",
    ]  # fmt: skip
    for number, name in enumerate(banks):
        await retain(running.url, name, f"The secret of this bank is {number}")

    for number, name in enumerate(banks):
        assert await recall(running.url, name, "secret", max_results=100) == [f"The secret of this bank is {number}"]


async def test_two_ways_to_write_the_same_id_are_one_bank(running: Serving) -> None:
    await retain(running.url, unicodedata.normalize("NFD", "Café"), "The espresso machine leaks")

    assert await recall(running.url, unicodedata.normalize("NFC", "Café"), "espresso") == ["The espresso machine leaks"]


async def test_an_unknown_bank_reads_empty_and_leaves_no_folder(running: Serving, data: Path) -> None:
    await retain(running.url, "known", "so that there are banks")
    before = sorted((data / "banks").iterdir())
    async with client(running.url, "nobody-was-here") as session:
        found = await answer(session, "recall", query="anything")
        await refusal(session, "retain", content="")

    assert found == {"results": []}
    assert sorted((data / "banks").iterdir()) == before


@pytest.mark.parametrize(
    "path", ["/mcp/a%2Fb/sse", "/mcp/%2E%2E/sse", "/mcp/..%2Fa/sse", "/mcp/-a/sse", "/mcp/a..b/sse", "/mcp/%ff/sse"]
)
async def test_a_wrong_bank_id_is_refused_with_the_rule(running: Serving, path: str) -> None:
    status, body = get(f"{running.url}{path}")

    assert status == 400
    assert "a bank id has 1 to 128 characters" in json.loads(body)["error"]["message"]
