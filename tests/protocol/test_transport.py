"""MCP over SSE, as a client sees it on the wire."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import anyio
import anyio.to_thread
import httpx
import pytest
from mcp import Client
from mcp.client.session import ClientSession
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from starlette.applications import Starlette
from starlette.routing import Mount

import hindsight.session
from hindsight.settings import read_settings
from tests.hosting import Host, hosted, listener, url_of
from tests.serving import BOUND, browser, serving, until

from .doors import TOOLS, App, Served, call, code, opened, request, served, structured

pytestmark = pytest.mark.anyio

INITIALIZE = request(
    "initialize", protocolVersion="2025-06-18", capabilities={}, clientInfo={"name": "test", "version": "1"}
)
ENVELOPE = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
    "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
}
HERE = Path(__file__).resolve()
CANCEL = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}


# Opening a stream


async def test_the_first_event_announces_a_path_with_the_bank_that_takes_messages(server: Served) -> None:
    async with opened(server.url_of("team-a")) as wire:
        accepted = await wire.post(request("ping"))
        answer = await wire.message()

    assert wire.path.startswith("/mcp/team-a/messages?session_id=")
    assert accepted.status_code == 202
    assert answer == {"jsonrpc": "2.0", "id": 1, "result": {}}


@pytest.mark.parametrize("bank", ["Team A", "user@x.org", "日本", "a", "1.2.3.4", "a" * 128, "A:b+c"])
async def test_every_allowed_bank_id_gets_a_path_that_reaches_it(server: Served, bank: str) -> None:
    async with opened(server.url_of(bank)) as wire:
        await wire.call("retain", content="tea")

    assert server.app.banks[bank].written == ["tea"]


async def test_behind_a_proxy_that_strips_a_prefix_the_announced_path_has_it_and_no_host(server: Served) -> None:
    async with opened(server.url_of("a"), **{"x-forwarded-prefix": "/api", "x-forwarded-host": "inner:9000"}) as wire:
        pass

    assert wire.path.startswith("/api/mcp/a/messages?session_id=")


@pytest.mark.parametrize("prefix", ["//", "/a?b", "/a#b", "/../up", "/a b", "http://evil.example", "/a//evil.example"])
async def test_a_forwarded_prefix_that_is_no_plain_path_is_ignored(server: Served, prefix: str) -> None:
    async with opened(server.url_of("a"), **{"x-forwarded-prefix": prefix}) as wire:
        pass

    assert wire.path.startswith("/mcp/a/messages?session_id=")


@pytest.mark.parametrize("told", ["to uvicorn", "to us", "by the proxy"])
@pytest.mark.parametrize("arriving", ["", "/api"])
async def test_a_proxy_prefix_works_stripped_or_not(told: str, arriving: str) -> None:
    settings = {"root_path": "/api"} if told == "to us" else {}
    headers = {"x-forwarded-prefix": "/api"} if told == "by the proxy" else {}
    async with (
        served(prefix="/api" if told == "to uvicorn" else "", **settings) as server,
        opened(f"{server.url}{arriving}/mcp/a/sse", **headers) as wire,
    ):
        announced = wire.path
        wire.path = arriving + announced.removeprefix("/api")
        answer = await wire.call("recall", query="tea")

    assert announced.startswith("/api/mcp/a/messages?session_id=")
    assert structured(answer) == {"results": []}


async def test_mounted_in_another_app_the_announced_path_has_the_mount() -> None:
    app = App(read_settings())

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with app.server:
            yield

    outer = Starlette(routes=[Mount("/inner/memory", app)], lifespan=lifespan)
    with listener() as listening:
        url = f"{url_of(listening)}/inner/memory/mcp/a/sse"
        async with hosted(Host(outer), listening), opened(url) as wire:
            answer = await wire.call("recall", query="tea")

    assert wire.path.startswith("/inner/memory/mcp/a/messages?session_id=")
    assert structured(answer) == {"results": []}


async def test_a_trailing_slash_needs_no_redirect(server: Served) -> None:
    async with opened(server.url_of("a", "/sse/")) as wire:
        wire.path = wire.path.replace("/messages?", "/messages/?")
        answer = await wire.call("recall", query="tea")

    assert structured(answer) == {"results": []}


async def test_head_answers_like_the_stream_but_opens_nothing(server: Served) -> None:
    async with browser() as http:
        answer = await http.head(server.url_of("a"))

    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/event-stream")
    assert len(server.app.sessions) == 0


async def test_a_quiet_stream_carries_a_comment_every_ping_interval() -> None:
    async with served(ping_interval=0.02) as server, opened(server.url_of("a")) as wire:
        quiet = [await wire.event() for _ in range(3)]
        answer = await wire.call("recall", query="tea")

    assert quiet == [("", "ping")] * 3
    assert structured(answer) == {"results": []}


async def test_no_proxy_may_cache_or_hold_back_the_stream(server: Served) -> None:
    async with opened(server.url_of("a")) as wire:
        headers = wire.response.headers

    assert headers["cache-control"] == "no-store, no-transform"
    assert headers["x-accel-buffering"] == "no"


# Sessions


async def test_unknown_foreign_and_ended_sessions_are_all_the_same_404(server: Served) -> None:
    async with opened(server.url_of("a")) as ended:
        pass
    await until(lambda: len(server.app.sessions) == 0)
    async with opened(server.url_of("a")) as wire, opened(server.url_of("b"), **{"x-who": "writer"}) as of_writer:
        paths = [
            ended.path,
            "/mcp/a/messages?session_id=" + "0" * 32,
            "/mcp/a/messages?session_id=nonsense",
            "/mcp/a/messages",
            wire.path.replace("/mcp/a/", "/mcp/b/"),
            of_writer.path,
            of_writer.path.replace("/mcp/b/", "/mcp/a/"),
        ]
        answers = [await wire.http.post(path, json=request("ping")) for path in paths]

    assert {answer.status_code for answer in answers} == {404}
    assert {answer.text for answer in answers} == {answers[0].text}
    assert answers[0].json()["error"]["code"] == "NOT_FOUND"
    assert "session" in answers[0].json()["error"]["message"]


async def test_after_a_restart_the_old_session_is_404_at_once_and_a_new_one_needs_no_initialize() -> None:
    async with served() as server, opened(server.url_of("a")) as old:
        pass
    async with served() as server, opened(server.url_of("a")) as wire:
        gone = await wire.http.post(old.path, json=call("recall", query="tea"))
        first = await wire.call("recall", query="tea")

    assert gone.status_code == 404
    assert structured(first) == {"results": []}


async def test_a_session_serves_calls_before_and_after_initialize(server: Served) -> None:
    async with opened(server.url_of("a")) as wire:
        before = await wire.call("recall", query="tea")
        await wire.post(INITIALIZE)
        initialized = await wire.message()
        await wire.post({"jsonrpc": "2.0", "method": "notifications/initialized"})
        after = await wire.call("recall", query="tea")

    assert structured(before) == structured(after) == {"results": []}
    assert initialized["result"]["protocolVersion"] == "2025-06-18"
    assert initialized["result"]["serverInfo"]["name"] == "hindsight"
    assert 40 <= len(initialized["result"]["instructions"].split()) <= 80


async def test_requests_of_both_protocol_eras_are_answered_on_one_stream(server: Served) -> None:
    async with opened(server.url_of("a")) as wire:
        await wire.post(INITIALIZE)
        await wire.message()
        await wire.post(request("server/discover", _meta=ENVELOPE))
        discovered = await wire.message()
        await wire.post(request("tools/call", name="recall", arguments={"query": "tea"}, _meta=ENVELOPE))
        enveloped = await wire.message()
        plain = await wire.call("recall", query="tea")

    assert discovered["result"]["supportedVersions"] == ["2026-07-28"]
    assert enveloped["result"]["resultType"] == "complete"
    assert structured(enveloped) == structured(plain) == {"results": []}


@pytest.mark.parametrize("door", ["/sse", ""])
async def test_the_python_session_client_works_over_both_doors(server: Served, door: str) -> None:
    url = server.url_of("a", door)
    transport = sse_client(url) if door else streamable_http_client(url)
    async with transport as (reading, writing), ClientSession(reading, writing) as client:
        await client.initialize()
        tools = await client.list_tools()
        stored = await client.call_tool("retain", {"content": "tea"})
        found = await client.call_tool("recall", {"query": "tea"})

    assert [tool.name for tool in tools.tools][:2] == ["retain", "recall"]
    assert stored.structured_content == {"id": "1", "status": "stored", "tags": []}
    assert found.structured_content == {"results": [{"text": "tea", "event_date": None}]}


async def test_an_answer_that_breaks_its_output_schema_fails_in_the_python_client() -> None:
    # So every answer that any test gets through tests/serving.py, over this client, is known to fit its schema.
    broken = replace(TOOLS[1], output={"type": "object", "required": ["nothing"]})
    async with (
        served((broken,)) as server,
        sse_client(server.url_of("a")) as (reading, writing),
        ClientSession(reading, writing) as client,
    ):
        await client.initialize()
        with pytest.raises(RuntimeError, match="'nothing' is a required property"):
            await client.call_tool("recall", {"query": "tea"})


@pytest.mark.parametrize("mode", ["auto", "legacy"])
@pytest.mark.parametrize("door", ["/sse", ""])
async def test_the_python_client_works_in_every_mode_over_both_doors(server: Served, mode: str, door: str) -> None:
    url = server.url_of("a", door)
    transport = sse_client(url) if door else url
    async with Client(transport, mode=mode) as client:
        await client.call_tool("retain", {"content": "tea"})
        found = await client.call_tool("recall", {"query": "t", "max_results": 5})

    assert found.structured_content == {"results": [{"text": "tea", "event_date": None}]}


async def test_an_idle_session_ends() -> None:
    async with served(session_idle=0.05) as server, opened(server.url_of("a")) as wire:
        with pytest.raises(EOFError):
            await wire.message()
        gone = await wire.post(request("ping"))

    assert gone.status_code == 404


async def test_one_session_too_many_is_503_until_another_ends() -> None:
    async with served(max_sessions=1) as server, browser() as http:
        async with opened(server.url_of("a")):
            refused = await http.get(server.url_of("b"))
        await until(lambda: len(server.app.sessions) == 0)
        async with opened(server.url_of("b")) as wire:
            answer = await wire.call("recall", query="tea")

    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "TOO_BUSY")
    assert int(refused.headers["retry-after"]) >= 1
    assert structured(answer) == {"results": []}


async def test_revoking_a_key_ends_its_sessions_and_no_others(server: Served) -> None:
    async with opened(server.url_of("a"), **{"x-who": "writer"}) as revoked, opened(server.url_of("a")) as other:
        server.app.sessions.end_of("writer")
        with pytest.raises(EOFError):
            await revoked.message()
        answer = await other.call("recall", query="tea")

    assert structured(answer) == {"results": []}


# Tools


async def test_the_tools_are_listed_with_titles_schemas_and_hints(server: Served) -> None:
    async with opened(server.url_of("a")) as wire:
        await wire.post(request("tools/list"))
        tools = (await wire.message())["result"]["tools"]

    retain, recall = tools[:2]
    hints = {"readOnlyHint": False, "destructiveHint": False, "idempotentHint": True, "openWorldHint": False}
    assert retain["annotations"] == hints
    assert recall["annotations"] == {**hints, "readOnlyHint": True}
    assert all({"title", "description", "inputSchema", "outputSchema"} <= tool.keys() for tool in tools)


async def test_the_url_narrows_the_tools_of_a_session(server: Served) -> None:
    async with opened(server.url_of("a") + "?tools=recall,retain") as wire:
        await wire.post(request("tools/list"))
        tools = (await wire.message())["result"]["tools"]
        other = await wire.call("miss")

    assert [tool["name"] for tool in tools] == ["retain", "recall"]
    assert code(other) == "INVALID_ARGUMENT"


@pytest.mark.parametrize("tools", ["recall,nope", ""])
async def test_narrowing_to_a_tool_that_is_not_known_is_a_400_that_names_the_known_ones(
    server: Served, tools: str
) -> None:
    async with browser() as http:
        refused = await http.get(server.url_of("a"), params={"tools": tools})

    assert refused.status_code == 400
    assert "retain, recall" in refused.json()["error"]["message"]


async def test_an_unknown_tool_is_an_error_result_that_names_the_known_ones(server: Served) -> None:
    async with opened(server.url_of("a")) as wire:
        answer = await wire.call("remember", content="tea")

    assert code(answer) == "INVALID_ARGUMENT"
    assert "retain, recall" in structured(answer)["error"]["message"]


async def test_who_may_only_read_neither_sees_nor_calls_what_writes(server: Served) -> None:
    async with opened(server.url_of("a"), **{"x-who": "reader"}) as wire:
        await wire.post(request("tools/list"))
        tools = (await wire.message())["result"]["tools"]
        written = await wire.call("retain", content="tea")
        read = await wire.call("recall", query="tea")

    assert [tool["name"] for tool in tools] == ["recall", "hold", "break", "miss"]
    assert code(written) == "FORBIDDEN"
    assert structured(read) == {"results": []}


async def test_a_bug_is_told_to_the_log_and_not_to_the_client(server: Served, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        async with opened(server.url_of("a")) as wire:
            answer = await wire.call("break", query="a secret word")

    assert code(answer) == "INTERNAL"
    assert structured(answer)["error"]["message"].startswith("internal error")
    assert "ValueError" in caplog.text
    assert "in _break" in caplog.text
    assert "secret" not in caplog.text


async def test_the_log_has_a_line_per_session_and_failed_call_and_no_content(
    server: Served, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "hindsight"):
        async with opened(server.url_of("a")) as wire:
            await wire.call("retain", content="secret")
            await wire.call("recall", query="secret", max_results=0)
            await wire.call("a secret\ntool")
        await until(lambda: len(server.app.sessions) == 0)

    lines = [record.getMessage() for record in caplog.records if record.name.startswith("hindsight.")]
    assert [line.split(":")[0] for line in lines] == ["session opened", "call failed", "call failed", "session closed"]
    assert "tool=recall code=INVALID_ARGUMENT ms=" in lines[1]
    assert "tool=? code=INVALID_ARGUMENT" in lines[2]
    assert "calls=3 reason=the client left" in lines[3]
    assert "secret" not in caplog.text


# Calls in flight


async def test_a_call_too_many_in_a_session_fails_at_once_and_the_others_go_on() -> None:
    async with served(session_calls=2) as server, opened(server.url_of("a")) as wire:
        await wire.post(call("hold", 1))
        await wire.post(call("hold", 2))
        refused = await wire.call("recall", 3, query="tea")
        server.app.bank("a").go.set()
        held = [await wire.message(), await wire.message()]
        later = await wire.call("recall", 4, query="tea")

    assert (refused["id"], code(refused)) == (3, "TOO_BUSY")
    assert structured(refused)["error"]["retry_after"] == 1
    assert sorted(message["id"] for message in held) == [1, 2]
    assert structured(later) == {"results": []}


async def test_a_call_too_many_in_all_fails_at_once_over_both_doors() -> None:
    async with served(total_calls=1) as server, opened(server.url_of("a")) as wire, browser() as http:
        await wire.post(call("hold"))
        await server.app.bank("a").started.wait()
        async with opened(server.url_of("b")) as other:
            refused = await other.call("recall", query="tea")
        posted = await http.post(server.url_of("b", ""), json=call("recall", query="tea"))
        server.app.bank("a").go.set()
        await wire.message()

    assert code(refused) == code(posted.json()) == "TOO_BUSY"


async def test_a_call_that_takes_too_long_fails_and_the_session_goes_on() -> None:
    async with served(call_deadline=0.05) as server, opened(server.url_of("a")) as wire:
        late = await wire.call("hold")
        later = await wire.call("recall", query="tea")

    assert code(late) == "DEADLINE_EXCEEDED"
    assert server.app.bank("a").stopped.is_set()
    assert structured(later) == {"results": []}


async def test_a_write_that_takes_too_long_fails_but_is_not_left_half_done() -> None:
    async with served(call_deadline=0.05) as server, opened(server.url_of("a")) as wire:
        late = await wire.call("hold_write", content="tea")
        await _finish_write(server)

    assert code(late) == "DEADLINE_EXCEEDED"
    assert server.app.bank("a").written == ["began tea", "ended tea"]


async def test_a_cancelled_call_stops_and_is_never_answered(server: Served) -> None:
    async with opened(server.url_of("a")) as wire:
        await wire.post(call("hold", 1))
        await server.app.bank("a").started.wait()
        await wire.post(CANCEL)
        await server.app.bank("a").stopped.wait()
        answer = await wire.call("recall", 2, query="tea")
        again = await wire.call("recall", 1, query="tea")

    assert (answer["id"], again["id"]) == (2, 1)


async def test_a_cancelled_write_is_written_and_never_answered(server: Served) -> None:
    async with opened(server.url_of("a")) as wire:
        await wire.post(call("hold_write", 1, content="tea"))
        await server.app.bank("a").started.wait()
        await wire.post(CANCEL)
        await _finish_write(server)
        answer = await wire.call("recall", 2, query="nothing")

    assert answer["id"] == 2
    assert server.app.bank("a").written == ["began tea", "ended tea"]


async def test_cancelling_what_is_over_or_never_was_does_nothing(server: Served) -> None:
    async with opened(server.url_of("a")) as wire:
        await wire.call("recall", 1, query="tea")
        statuses = [(await wire.post({**CANCEL, "params": params})).status_code for params in (
            {"requestId": 1}, {"requestId": "x"}, {"requestId": None}, {"requestId": True}, {}
        )]  # fmt: skip
        answer = await wire.call("recall", 2, query="tea")

    assert statuses == [202] * 5
    assert structured(answer) == {"results": []}


async def test_a_client_that_leaves_stops_its_reads_and_costs_the_others_nothing(server: Served) -> None:
    async with opened(server.url_of("a")) as other:
        async with opened(server.url_of("a")) as wire:
            await wire.post(call("hold"))
            await server.app.bank("a").started.wait()
        with anyio.fail_after(BOUND):
            await server.app.bank("a").stopped.wait()
        answer = await other.call("recall", query="tea")

    assert structured(answer) == {"results": []}


async def test_a_client_that_leaves_does_not_undo_or_halve_its_write(server: Served) -> None:
    async with opened(server.url_of("a")) as wire:
        await wire.post(call("hold_write", content="tea"))
        await server.app.bank("a").started.wait()
    await until(lambda: len(server.app.sessions) == 0)
    await _finish_write(server)

    assert server.app.bank("a").written == ["began tea", "ended tea"]


async def test_who_asks_for_progress_hears_that_a_long_call_still_runs(
    server: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hindsight.session, "PULSE", 0.01)
    async with opened(server.url_of("a")) as wire:
        await wire.post(request("tools/call", name="hold", arguments={}, _meta={"progressToken": "t"}))
        beats = [await wire.message(), await wire.message()]
        server.app.bank("a").go.set()
        while (answer := await wire.message()).get("method"):
            pass

    assert {beat["method"] for beat in beats} == {"notifications/progress"}
    assert {beat["params"]["progressToken"] for beat in beats} == {"t"}
    assert beats[0]["params"]["progress"] < beats[1]["params"]["progress"]
    assert structured(answer) == {"results": []}


async def test_a_second_call_under_an_id_in_flight_is_refused(server: Served) -> None:
    async with opened(server.url_of("a")) as wire:
        await wire.post(call("hold", 1))
        await server.app.bank("a").started.wait()
        refused = await wire.call("recall", 1, query="tea")
        server.app.bank("a").go.set()
        held = await wire.message()

    assert code(refused) == "INVALID_ARGUMENT"
    assert structured(held) == {"results": []}


# Messages that are none


@pytest.mark.parametrize("leading", [True, False])
async def test_an_oversized_call_fails_at_once_and_the_session_goes_on(leading: bool) -> None:
    large = json.dumps({"name": "retain", "arguments": {"content": "x" * 5000}})
    first, last = '"jsonrpc":"2.0","id":7,', ',"jsonrpc":"2.0","id":7'
    middle = f'"method":"tools/call","params":{large}'
    body = "{" + (first + middle if leading else middle + last) + "}"
    async with served(max_body=2048) as server, opened(server.url_of("a")) as wire:
        status = (await wire.post(body.encode())).status_code
        answer = await wire.message()
        later = await wire.call("recall", 8, query="tea")

    assert status == 202
    assert (answer["id"], answer["error"]["data"]["code"]) == (7, "CONTENT_TOO_LARGE")
    assert structured(later) == {"results": []}


async def test_an_oversized_call_of_the_python_client_fails_at_once() -> None:
    async with (
        served(max_body=100_000) as server,
        sse_client(server.url_of("a")) as streams,
        ClientSession(*streams) as client,
    ):
        await client.initialize()
        with anyio.fail_after(BOUND), pytest.raises(MCPError, match="100,000 bytes"):
            await client.call_tool("retain", {"content": "x" * 1_000_000})
        later = await client.call_tool("recall", {"query": "tea"})

    assert later.structured_content == {"results": []}


async def test_an_oversized_message_without_a_recognisable_id_is_413() -> None:
    async with served(max_body=2048) as server, opened(server.url_of("a")) as wire:
        refused = await wire.post(b"x" * 5000)
        endless = await wire.post(b"x" * 100_000)

    assert (refused.status_code, refused.json()["error"]["code"]) == (413, "CONTENT_TOO_LARGE")
    assert endless.status_code == 413


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"null", b"7", b'"text"', b"[]", b"{}", b"\xff\xfe{}", b'{"jsonrpc":"2.0"}',
        b'[{"jsonrpc":"2.0","id":1,"method":"ping"}]', b'{"jsonrpc":"1.0","id":1,"method":"ping"}',
        b'{"jsonrpc":"2.0","id":1.5,"method":"ping"}', b'{"jsonrpc":"2.0","id":null,"method":"ping"}',
        b'{"jsonrpc":"2.0","id":true,"method":"ping"}', b'{"jsonrpc":"2.0","id":1,"method":7}',
        b'{"jsonrpc":"2.0","id":1,"method":"ping","params":[]}', b'{"jsonrpc":"2.0","id":1,"method":"ping","a":NaN}',
        b'{"jsonrpc":"2.0","id":' + b"9" * 5000 + b',"method":"ping"}',
        b'{"jsonrpc":"2.0","id":1,"method":"ping","params":' + b'{"a":' * 200 + b"1" + b"}" * 200 + b"}",
        b"[" * 200_000,
    ],
)  # fmt: skip
async def test_what_is_no_message_is_400_and_the_session_goes_on(server: Served, body: bytes) -> None:
    async with opened(server.url_of("a")) as wire:
        refused = await wire.post(body)
        answer = await wire.call("recall", query="tea")

    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "INVALID_ARGUMENT")
    assert structured(answer) == {"results": []}


async def test_a_body_that_does_not_say_it_is_json_is_415(server: Served) -> None:
    async with opened(server.url_of("a")) as wire:
        refused = await wire.post(request("ping"), **{"content-type": "text/plain"})

    assert refused.status_code == 415


@pytest.mark.parametrize(("method", "expected"), [("tools/none", -32601), ("tools/call", -32602)])
async def test_a_request_that_can_not_be_served_is_answered_on_the_stream(
    server: Served, method: str, expected: int
) -> None:
    async with opened(server.url_of("a")) as wire:
        await wire.post(request(method))
        answer = await wire.message()

    assert (answer["id"], answer["error"]["code"]) == (1, expected)


async def test_a_response_to_nothing_is_taken_and_dropped(server: Served) -> None:
    async with opened(server.url_of("a")) as wire:
        status = (await wire.post({"jsonrpc": "2.0", "id": 1, "result": {}})).status_code

    assert status == 202


async def test_an_id_of_any_size_comes_back_exactly(server: Served) -> None:
    async with opened(server.url_of("a")) as wire:
        answers = [await wire.call("recall", request_id, query="t") for request_id in (2**70, "\ud800", "名" * 300)]

    assert [answer["id"] for answer in answers] == [2**70, "\ud800", "名" * 300]


async def test_text_with_foreign_line_ends_survives_clients_that_split_on_them(server: Served) -> None:
    text = "a\u2028b\u2029c\x85d\u000be\r\nf"
    async with opened(server.url_of("a")) as wire:
        await wire.call("retain", content=text)
        answer = await wire.call("recall", query="a")

    assert structured(answer)["results"][0]["text"] == text


# Slow clients, and the end


async def test_a_client_that_does_not_read_is_cut_off_and_refused_meanwhile() -> None:
    async with served(send_timeout=0.2) as server, browser() as http:
        server.app.bank("a").written.extend(["x" * 100_000] * 10)
        async with _deaf_client(server, "/mcp/a/sse") as path:
            statuses = set()
            while 404 not in statuses:
                statuses.add((await http.post(server.url + path, json=call("recall", query="x"))).status_code)

        async with opened(server.url_of("a")) as wire:
            answer = await wire.call("recall", query="nothing")

    assert statuses == {202, 404, 503}
    assert structured(answer) == {"results": []}


async def test_draining_lets_calls_finish_then_ends_streams_cleanly_and_opens_no_new_ones() -> None:
    async with served(drain_time=BOUND) as server, opened(server.url_of("a")) as wire, browser() as http:
        await wire.post(call("hold"))
        await server.app.bank("a").started.wait()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(server.app.sessions.drain, BOUND)
            await anyio.lowlevel.checkpoint()
            refused = await http.get(server.url_of("b"))
            busy = await wire.call("recall", 2, query="tea")
            server.app.bank("a").go.set()
            finished = await wire.message()
            with pytest.raises(EOFError):
                await wire.message()

    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "TOO_BUSY")
    assert code(busy) == "TOO_BUSY"
    assert structured(finished) == {"results": []}


async def test_a_signal_ends_the_server_within_its_time_with_streams_open() -> None:
    environment = {"PYTHONPATH": f"{HERE.parents[1]}:{HERE.parents[2]}"}
    command = [sys.executable, "-m", f"{HERE.parent.name}.doors"]
    async with await anyio.open_process(command, env=environment, stderr=None) as process:
        assert process.stdout is not None
        port = int(await process.stdout.receive())
        async with opened(f"http://127.0.0.1:{port}/mcp/a/sse") as wire:
            await wire.call("recall", query="tea")
            process.send_signal(signal.SIGTERM)
            with pytest.raises(EOFError):
                await wire.message()
        with anyio.fail_after(BOUND):
            status = await process.wait()

    assert status == 0


async def test_a_signal_ends_hindsight_serve_with_0_while_a_stream_is_open(tmp_path: Path, model_folder: Path) -> None:
    with serving(tmp_path, model_dir=model_folder, drain_time=2) as server:
        async with opened(f"{server.url}/mcp/a/sse") as wire:
            status = await anyio.to_thread.run_sync(server.stop)
            with pytest.raises(EOFError):
                await wire.message()

    assert status == 0


async def _finish_write(server: Served) -> None:
    server.app.bank("a").go.set()
    with anyio.fail_after(BOUND):
        await server.app.bank("a").stopped.wait()


@asynccontextmanager
async def _deaf_client(server: Served, path: str) -> AsyncIterator[str]:
    """Opens a stream, reads the announced path, and from then on nothing."""
    loop, url = asyncio.get_running_loop(), httpx.URL(server.url)
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.setblocking(False)
        await loop.sock_connect(connection, (url.host, url.port))
        await loop.sock_sendall(connection, f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        seen = b""
        while not (found := re.search(rb"data: (\S+)\r\n", seen)):
            seen += await loop.sock_recv(connection, 1024)
        yield found[1].decode()
