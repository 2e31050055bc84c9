"""Which URLs lead where, and who may ask: paths, methods, hosts, origins, health."""

from __future__ import annotations

import json

import anyio
import httpx
import pytest

from tests.serving import BOUND, browser

from .doors import Served, opened, post_head, reply_to, request, served

pytestmark = pytest.mark.anyio

ORIGIN = "https://app.example"


async def status_of(server: Served, target: str, method: str = "GET") -> tuple[int, str]:
    """The status and body for a request target that no client library has touched."""
    url = httpx.URL(server.url)
    with anyio.fail_after(BOUND):
        async with await anyio.connect_tcp(url.host, url.port or 0) as connection:
            head = f"{method} {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
            await connection.send(head.encode("latin-1"))
            seen = b"".join([part async for part in connection])
    return int(seen[9:12]), seen.partition(b"\r\n\r\n")[2].decode()


@pytest.mark.parametrize(
    "bank",
    [
        "..%2f..%2fetc", "a%2Fb", "%2e%2e", "..", "%2e", "%00", "%ff%fe", "%zz", "%", "a%0Ab", "a" * 129, "a" * 600,
        "%20a", "a%3Fb", "", "-a", "a..b", "%F0%9F%98%80",
    ],
)  # fmt: skip
async def test_a_bank_id_against_the_rule_is_400_with_the_rule_at_every_door(server: Served, bank: str) -> None:
    answers = [
        await status_of(server, f"/mcp/{bank}/sse"),
        await status_of(server, f"/mcp/{bank}/messages?session_id={'0' * 32}", "POST"),
    ]

    assert [status for status, _ in answers] == [400, 400]
    assert all("a bank id has 1 to 128 characters" in body for _, body in answers)
    assert server.app.banks == {}


@pytest.mark.parametrize(
    "path", ["/", "/mcp", "/nope", "/mcp/a/nope", "/mcp/a/b/sse", "//mcp/a/sse", "/MCP/a/sse", "/mcp/a//sse"]
)
async def test_an_unknown_url_is_404_with_an_error_body(server: Served, path: str) -> None:
    status, body = await status_of(server, path)

    assert status == 404
    assert "NOT_FOUND" in body


@pytest.mark.parametrize(
    ("path", "allow"), [("/mcp/a/sse", "GET, HEAD, OPTIONS"), ("/mcp/a/messages", "OPTIONS, POST")]
)
async def test_a_wrong_method_is_405_and_options_tell_the_right_ones(server: Served, path: str, allow: str) -> None:
    async with browser(server.url) as http:
        wrong = await http.put(path)
        options = await http.options(path)

    assert (wrong.status_code, wrong.headers["allow"]) == (405, allow)
    assert (options.status_code, options.headers["allow"]) == (204, allow)


@pytest.mark.parametrize("host", ["localhost", "localhost:8888", "127.0.0.1:1", "[::1]:8888", "LOCALHOST"])
async def test_on_loopback_its_names_are_known(server: Served, host: str) -> None:
    async with opened(server.url_of("a"), host=host) as wire:
        accepted = await wire.post(request("ping"))

    assert accepted.status_code == 202


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8888", "localhost.evil.example", "10.0.0.5:8000", ""])
async def test_on_loopback_another_host_name_is_421(server: Served, host: str) -> None:
    async with browser() as http:
        refused = await http.get(server.url_of("a"), headers={"host": host})

    assert (refused.status_code, refused.json()["error"]["code"]) == (421, "FORBIDDEN")


@pytest.mark.parametrize("host", ["memory:8000", "10.0.0.5:8000", "anything.example"])
async def test_off_loopback_every_host_name_works(host: str) -> None:
    async with served(host="0.0.0.0") as server, opened(server.url_of("a"), host=host) as wire:
        accepted = await wire.post(request("ping"))

    assert accepted.status_code == 202


async def test_where_hosts_are_listed_only_those_work() -> None:
    names = ["memory:8000", "a.example.org", "one:80", "one:81", "example.org", "10.0.0.5:8000"]
    async with (
        served(host="0.0.0.0", allowed_hosts="memory, *.example.org, one:80") as server,
        browser(server.url) as http,
    ):
        statuses = [(await http.head("/mcp/a/sse", headers={"host": name})).status_code for name in names]

    assert statuses == [200, 200, 200, 421, 421, 421]


@pytest.mark.parametrize(
    "origin", [ORIGIN, "null", "http://localhost.evil.example", "\xff", "http://[", "file://localhost"]
)
async def test_a_page_of_an_unknown_origin_is_refused(server: Served, origin: str) -> None:
    headers = [(b"origin", origin.encode("latin-1"))]
    async with browser() as http:
        refused = await http.get(server.url_of("a"), headers=headers)

    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "FORBIDDEN")
    assert "access-control-allow-origin" not in refused.headers


@pytest.mark.parametrize("origin", ["http://localhost:3000", "http://127.0.0.1", "https://[::1]:8443"])
async def test_on_loopback_a_page_of_this_machine_is_let_in(server: Served, origin: str) -> None:
    async with opened(server.url_of("a"), origin=origin) as wire:
        accepted = await wire.post(request("ping"))

    assert accepted.headers["access-control-allow-origin"] == origin


async def test_a_browser_of_an_allowed_origin_may_send_and_read_what_mcp_needs() -> None:
    wanted = {"access-control-request-method": "POST", "access-control-request-headers": "content-type, x-api-key"}
    async with (
        served(allowed_origins=f"{ORIGIN}, http://other") as server,
        browser(server.url, headers={"origin": ORIGIN}) as http,
    ):
        preflight = await http.options("/mcp/a/messages", headers=wanted)
        answer = await http.post("/mcp/a", json=request("ping"))
        local = await http.post("/mcp/a", json=request("ping"), headers={"origin": "http://localhost"})

    assert preflight.status_code == 204
    assert preflight.headers["access-control-allow-origin"] == ORIGIN
    assert preflight.headers["access-control-allow-headers"] == "content-type, x-api-key"
    assert "POST" in preflight.headers["access-control-allow-methods"]
    assert answer.headers["access-control-allow-origin"] == ORIGIN
    assert "Mcp-Session-Id" in answer.headers["access-control-expose-headers"]
    assert answer.headers["vary"] == "origin"
    assert local.status_code == 403


async def test_alive_is_always_and_ready_names_what_is_not(server: Served) -> None:
    async with browser(server.url) as http:
        ready = await http.get("/readyz")
        server.app.ready = {"embedder": False, "ledger": True}
        starting = await http.get("/readyz")
        alive = await http.get("/healthz")

    assert (ready.status_code, ready.json()) == (200, {"status": "ok"})
    assert (starting.status_code, starting.json()["not_ready"]) == (503, ["embedder"])
    assert (alive.status_code, alive.json()) == (200, {"status": "ok"})


async def test_a_prober_may_ask_under_any_host_name(server: Served) -> None:
    async with browser(server.url, headers={"host": "10.0.0.5:8000"}) as http:
        statuses = [(await http.get(path)).status_code for path in ("/healthz", "/readyz", "/%68ealthz", "/mcp/a")]

    assert statuses == [200, 200, 404, 421]


async def test_a_request_cut_off_in_its_body_costs_nothing(server: Served) -> None:
    async with opened(server.url_of("a")) as wire:
        url = httpx.URL(server.url)
        async with await anyio.connect_tcp(url.host, url.port or 0) as connection:
            await connection.send(f"{post_head(wire.path, 1000)}{{".encode())
        answer = await wire.call("recall", query="tea")

    assert answer["id"] == 1


@pytest.mark.parametrize("part", ["", "{"])
@pytest.mark.parametrize("door", ["messages", "http"])
async def test_a_body_that_stops_half_way_is_408_and_the_session_goes_on(door: str, part: str) -> None:
    async with served(send_timeout=0.05) as server, opened(server.url_of("a")) as wire:
        path = wire.path if door == "messages" else "/mcp/a"
        refused = await reply_to(server, post_head(path, 1000) + part)
        answer = await wire.call("recall", query="tea")

    assert refused.startswith("HTTP/1.1 408 ")
    assert '"code":"DEADLINE_EXCEEDED"' in refused
    assert answer["id"] == 1


async def test_spaces_around_the_value_of_a_header_do_not_count(server: Served) -> None:
    body = json.dumps(request("ping"))
    headers = ("MCP-Protocol-Version:  2025-11-25 \t", "Origin:  http://localhost \t", "Connection: close")
    answer = await reply_to(server, post_head("/mcp/a", len(body), *headers) + body)

    assert answer.startswith("HTTP/1.1 200 ")
    assert answer.endswith('{"jsonrpc":"2.0","id":1,"result":{}}')
