"""MCP over streamable HTTP, as a client sees it on the wire."""

from __future__ import annotations

from collections.abc import AsyncIterator

import anyio
import httpx
import pytest
from mcp import Client

from hindsight.record import JsonObject
from tests.serving import BOUND, browser

from .doors import Served, call, code, request, served, structured

pytestmark = pytest.mark.anyio

MODERN = "2026-07-28"
META = {
    "io.modelcontextprotocol/protocolVersion": MODERN,
    "io.modelcontextprotocol/clientCapabilities": {},
    "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
}
INITIALIZE = request(
    "initialize", protocolVersion="2025-11-25", capabilities={}, clientInfo={"name": "test", "version": "1"}
)
INITIALIZED = {"jsonrpc": "2.0", "method": "notifications/initialized"}


@pytest.fixture
async def http(server: Served) -> AsyncIterator[httpx.AsyncClient]:
    headers = {"accept": "application/json, text/event-stream"}
    async with browser(server.url, headers=headers) as client:
        yield client


def modern(method: str, **params: object) -> JsonObject:
    """A request in the envelope of 2026-07-28."""
    return request(method, **params, _meta=META)


def routing(method: str, name: str | None = None, version: str = MODERN) -> dict[str, str]:
    """The headers that repeat what an enveloped request says."""
    return {"mcp-protocol-version": version, "mcp-method": method, **({"mcp-name": name} if name else {})}


async def test_a_handshake_and_a_call_need_no_session(http: httpx.AsyncClient) -> None:
    initialized = await http.post("/mcp/a", json=INITIALIZE)
    noted = await http.post("/mcp/a", json=INITIALIZED)
    called = await http.post("/mcp/a", json=call("recall", query="tea"), headers={"mcp-protocol-version": "2025-11-25"})

    assert initialized.json()["result"]["protocolVersion"] == "2025-11-25"
    assert "mcp-session-id" not in initialized.headers
    assert (noted.status_code, noted.content) == (202, b"")
    assert called.headers["content-type"] == "application/json"
    assert structured(called.json()) == {"results": []}


async def test_a_made_up_session_is_404_and_a_new_initialize_works_on_the_same_url(http: httpx.AsyncClient) -> None:
    gone = await http.post("/mcp/a", json=call("recall", query="t"), headers={"mcp-session-id": "made-up"})
    again = await http.post("/mcp/a", json=INITIALIZE, headers={"mcp-session-id": "made-up"})

    assert gone.status_code == 404
    assert gone.json()["error"]["data"]["code"] == "NOT_FOUND"
    assert again.json()["result"]["serverInfo"]["name"] == "hindsight"


@pytest.mark.parametrize("version", ["2099-01-01", "", "nonsense"])
async def test_a_protocol_version_that_we_do_not_speak_is_400(http: httpx.AsyncClient, version: str) -> None:
    headers = {"mcp-protocol-version": version}
    answers = [await http.post("/mcp/a", json=body, headers=headers) for body in (request("ping"), INITIALIZED)]

    assert [answer.status_code for answer in answers] == [400, 400]


@pytest.mark.parametrize("method", ["GET", "DELETE", "HEAD", "PUT"])
async def test_there_is_no_stream_to_get_and_no_session_to_delete(http: httpx.AsyncClient, method: str) -> None:
    answer = await http.request(method, "/mcp/a")

    assert (answer.status_code, answer.headers["allow"]) == (405, "OPTIONS, POST")


async def test_an_enveloped_call_is_answered_with_a_complete_result(http: httpx.AsyncClient) -> None:
    body = modern("tools/call", name="recall", arguments={"query": "tea"})
    answer = await http.post("/mcp/a", json=body, headers=routing("tools/call", "recall"))

    result = answer.json()["result"]
    assert (answer.status_code, result["resultType"]) == (200, "complete")
    assert result["_meta"]["io.modelcontextprotocol/serverInfo"]["name"] == "hindsight"


async def test_a_client_discovers_the_server_and_may_cache_its_tools(http: httpx.AsyncClient) -> None:
    discovered = await http.post("/mcp/a", json=modern("server/discover"), headers=routing("server/discover"))
    listed = await http.post("/mcp/a", json=modern("tools/list"), headers=routing("tools/list"))

    assert discovered.json()["result"]["supportedVersions"] == [MODERN]
    assert listed.json()["result"]["cacheScope"] == "private"
    assert listed.json()["result"]["ttlMs"] > 0


@pytest.mark.parametrize(
    "headers",
    [
        {},
        routing("tools/list", "recall"),
        routing("tools/call", "retain"),
        routing("tools/call"),
        routing("tools/call", "recall", "2025-11-25"),
        {"mcp-protocol-version": MODERN},
    ],
)
async def test_headers_that_contradict_the_envelope_are_400(http: httpx.AsyncClient, headers: dict[str, str]) -> None:
    body = modern("tools/call", name="recall", arguments={"query": "tea"})
    answer = await http.post("/mcp/a", json=body, headers=headers)

    assert (answer.status_code, answer.json()["error"]["code"]) == (400, -32020)
    assert answer.json()["id"] == 1


async def test_a_routing_header_given_twice_is_400(http: httpx.AsyncClient) -> None:
    headers = [*routing("ping").items(), ("mcp-method", "ping")]
    answer = await http.post("/mcp/a", json=modern("ping"), headers=headers)

    assert (answer.status_code, answer.json()["error"]["code"]) == (400, -32020)


async def test_an_enveloped_request_for_an_unknown_method_is_404(http: httpx.AsyncClient) -> None:
    answer = await http.post("/mcp/a", json=modern("tools/none"), headers=routing("tools/none"))

    assert (answer.status_code, answer.json()["error"]["code"]) == (404, -32601)


async def test_the_new_era_has_no_initialize(http: httpx.AsyncClient) -> None:
    answer = await http.post("/mcp/a", json=modern("initialize"), headers=routing("initialize"))

    assert (answer.status_code, answer.json()["error"]["code"]) == (404, -32601)


async def test_an_unenveloped_request_under_the_new_version_is_400(http: httpx.AsyncClient) -> None:
    answer = await http.post("/mcp/a", json=request("tools/list"), headers=routing("tools/list"))

    assert (answer.status_code, answer.json()["error"]["code"]) == (400, -32602)


async def test_an_answer_in_another_form_than_json_can_not_be_had(http: httpx.AsyncClient) -> None:
    html = await http.post("/mcp/a", json=request("ping"), headers={"accept": "text/html"})
    anything = await http.post("/mcp/a", json=request("ping"), headers={"accept": "*/*"})

    assert (html.status_code, anything.status_code) == (406, 200)


async def test_a_body_of_another_type_than_json_is_415(http: httpx.AsyncClient) -> None:
    answer = await http.post("/mcp/a", content=b"{}", headers={"content-type": "text/plain"})

    assert answer.status_code == 415


async def test_a_body_that_is_no_message_is_400_with_json_rpc_s_code(http: httpx.AsyncClient) -> None:
    bodies = (b"{", b"\xff", b"[" * 100_000, b"[]", b"{}", b'[{"jsonrpc":"2.0","id":1,"method":"ping"}]')
    headers = {"content-type": "application/json"}
    answers = [await http.post("/mcp/a", content=body, headers=headers) for body in bodies]

    assert [answer.status_code for answer in answers] == [400] * 6
    assert [answer.json()["error"]["code"] for answer in answers] == [-32700] * 3 + [-32600] * 3
    assert "batches" in answers[-1].json()["error"]["message"]


async def test_a_body_over_the_limit_is_413_under_its_own_id() -> None:
    async with served(max_body=2048) as server, browser() as http:
        answer = await http.post(server.url_of("a", ""), json=call("retain", 7, content="x" * 5000))

    assert (answer.status_code, answer.json()["id"]) == (413, 7)
    assert answer.json()["error"]["data"]["code"] == "CONTENT_TOO_LARGE"


async def test_the_url_narrows_the_tools(http: httpx.AsyncClient) -> None:
    listed = await http.post("/mcp/a?tools=recall", json=request("tools/list"))
    refused = await http.post("/mcp/a?tools=nope", json=request("tools/list"))

    assert [tool["name"] for tool in listed.json()["result"]["tools"]] == ["recall"]
    assert refused.status_code == 400


async def test_who_may_only_read_can_not_write(http: httpx.AsyncClient) -> None:
    answer = await http.post("/mcp/a", json=call("retain", content="tea"), headers={"x-who": "reader"})

    assert code(answer.json()) == "FORBIDDEN"


async def test_a_client_that_leaves_mid_call_stops_it(server: Served) -> None:
    await _leave_during(server, "hold")
    with anyio.fail_after(BOUND):
        await server.app.bank("a").stopped.wait()

    assert not server.app.bank("a").go.is_set()


async def test_a_client_that_leaves_mid_write_does_not_halve_it(server: Served) -> None:
    await _leave_during(server, "hold_write", content="tea")
    server.app.bank("a").go.set()
    with anyio.fail_after(BOUND):
        await server.app.bank("a").stopped.wait()

    assert server.app.bank("a").written == ["began tea", "ended tea"]


async def test_the_python_client_finds_out_what_went_wrong(server: Served) -> None:
    async with Client(server.url_of("a", "")) as client:
        result = await client.call_tool("recall", {"query": "tea", "max_results": 0})

    assert result.is_error
    assert result.structured_content is not None
    assert result.structured_content["error"]["code"] == "INVALID_ARGUMENT"


async def _leave_during(server: Served, tool: str, **arguments: object) -> None:
    async with anyio.create_task_group() as tasks:

        async def post() -> None:
            async with browser() as http:
                await http.post(server.url_of("a", ""), json=call(tool, **arguments))

        tasks.start_soon(post)
        with anyio.fail_after(BOUND):
            await server.app.bank("a").started.wait()
        tasks.cancel_scope.cancel()
