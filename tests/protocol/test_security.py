"""Who gets in where, over a real socket: every door with every kind of key, and what is told to whom."""

from __future__ import annotations

import json
import logging
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from datetime import date
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anyio
import anyio.to_thread
import httpx
import pytest
from anyio.abc import SocketStream

from hindsight.cli import main
from hindsight.keys import Key, KeyFile
from hindsight.record import JsonObject
from hindsight.telemetry import TextLines
from tests.commands import spawned
from tests.serving import BOUND, NO_TLS, Serving, browser, serving

from .doors import Served, call, code, opened, post_head, request, structured

pytestmark = pytest.mark.anyio

STREAM = ("GET", "/mcp/team-a/sse")
MESSAGES = ("POST", f"/mcp/team-a/messages?session_id={'0' * 32}")
STREAMABLE = ("POST", "/mcp/team-a")
WRITING = [
    ("POST", "/banks/team-a/memories"),
    ("PUT", "/banks/team-a/memories"),
    ("DELETE", "/banks/team-a"),
    ("POST", "/banks/team-a/reindex"),
]
OF_A_BANK = [STREAM, ("HEAD", "/mcp/team-a/sse"), MESSAGES, STREAMABLE, ("GET", "/banks/team-a/memories"), *WRITING]
DOORS = [*OF_A_BANK, *[(method, path) for path in ("/banks", "/metrics") for method in ("GET", "HEAD")]]
NOWHERE = [
    ("GET", "/"),
    ("GET", "/nothing"),
    ("GET", "/mcp/a%2Fb/sse"),
    ("GET", "/healthz/../metrics"),
    ("GET", "/healthz%2f..%2fmetrics"),
    ("POST", "/mcp/healthz"),
    ("GET", "/metrics/healthz"),
    ("PATCH", "/mcp/team-a"),
    ("OPTIONS", "/mcp/team-a"),
]
Door = tuple[str, str]
Headers = dict[str, str]


@dataclass(frozen=True, slots=True)
class Guarded:
    """A server with keys, by name, and its files."""

    serving: Serving
    data: Path
    audit: Path
    keys: dict[str, str] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return self.serving.url

    def holding(self, name: str) -> Headers:
        """The headers of one who holds this key."""
        return {"x-api-key": self.keys[name]}

    def make(self, name: str, banks: str, *scopes: str, expires: date | None = None) -> str:
        """Make a key; the running server takes it in on its own."""
        key, self.keys[name] = Key.create(name, [banks], scopes or ("read", "write"), expires)
        KeyFile(self.data).add(key)
        return self.keys[name]

    def ask(self, door: Door, headers: Headers, content: bytes | None = None) -> httpx.Response:
        """Knock at a door; of a stream, its status and headers are enough."""
        method, path = door
        with (
            httpx.Client(timeout=BOUND, trust_env=False, verify=NO_TLS) as http,
            http.stream(method, self.url + path, headers=headers, content=content) as response,
        ):
            if not response.headers.get("content-type", "").startswith("text/event-stream"):
                response.read()
            return response


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory, model_folder: Path) -> Iterator[Guarded]:
    """One server for all tests; keys are there before it starts, and it has seen one revoked."""
    data, audit = tmp_path_factory.mktemp("data"), tmp_path_factory.mktemp("audit") / "audit.jsonl"
    keys: dict[str, str] = {}
    for name, banks, scopes, expires in (
        ("ada", "team-*", ["read", "write"], None),
        ("bob", "team-*", ["read", "write"], None),
        ("reader", "team-*", ["read"], None),
        ("other", "other-*", ["read", "write"], None),
        ("expired", "team-*", ["read", "write"], date(2020, 1, 1)),
        ("revoked", "team-*", ["read", "write"], None),
    ):
        key, keys[name] = Key.create(name, [banks], scopes, expires)
        KeyFile(data).add(key)
    KeyFile(data).remove("revoked")
    keys["wrong"], keys["empty"] = "hs_" + "A" * 43, ""
    with serving(data, model_dir=model_folder, audit_file=audit, log_level="debug") as running:
        yield Guarded(running, data, audit, keys)


async def until_taken(guarded: Guarded, headers: Headers, *, status: int) -> None:
    """Wait until the server answers these headers with this status: it looks at its keys in its own time."""
    with anyio.fail_after(BOUND):
        while guarded.ask(("GET", "/metrics"), headers).status_code != status:  # noqa: ASYNC110  # it tells nobody
            await anyio.sleep(0.05)


async def received_to_the_end(connection: SocketStream) -> None:
    """Read until the server closes: EndOfStream."""
    while True:
        await connection.receive()


# Who gets in


@pytest.mark.parametrize("door", [*DOORS, *NOWHERE], ids=" ".join)
@pytest.mark.parametrize("name", ["none", "empty", "wrong", "expired", "revoked"])
def test_without_a_good_key_every_url_is_the_same_401(guarded: Guarded, door: Door, name: str) -> None:
    headers: Headers = {} if name == "none" else guarded.holding(name)

    refused = guarded.ask(door, headers)

    assert refused.status_code == 401
    assert refused.headers["www-authenticate"] == 'Bearer realm="hindsight"'
    assert set(refused.headers) <= {"www-authenticate", "content-length", "content-type", "date"}
    if door[0] != "HEAD":
        assert refused.json()["error"] == {
            "code": "UNAUTHORIZED",
            "message": "a valid key is needed",
            "next_action": "Send a valid key as x-api-key or Authorization: Bearer.",
        }


def test_no_door_is_left_out_here(guarded: Guarded) -> None:
    told = {path: guarded.ask(("OPTIONS", path), guarded.holding("ada")).headers["allow"] for _, path in DOORS}

    known = {path: {method for method, other in DOORS if other == path} for path in told}
    assert {path: set(allowed.split(", ")) - {"OPTIONS"} for path, allowed in told.items()} == known


@pytest.mark.parametrize("door", DOORS, ids=" ".join)
@pytest.mark.parametrize(
    ("forged", "status"), [({"host": "evil.example"}, 421), ({"origin": "https://evil.example"}, 403)], ids=str
)
def test_a_forged_host_or_origin_is_refused_whatever_the_key(
    guarded: Guarded, door: Door, forged: Headers, status: int
) -> None:
    refused = guarded.ask(door, {**guarded.holding("ada"), **forged})

    assert refused.status_code == status
    assert "access-control-allow-origin" not in refused.headers
    assert "evil" not in refused.text


@pytest.mark.parametrize(
    "path",
    [
        "/mcp/team-a/../other-a/sse",
        "/mcp/team-a/%2e%2e/other-a/sse",
        "/mcp/team-a%2f..%2fother-a/sse",
        "/mcp/team-a/../../metrics/../mcp/other-a/sse",
        "//mcp/other-a/sse",
        "/./mcp/other-a/sse",
        "/mcp//other-a/sse",
        "/mcp/team-a;/other-a/sse",
        "/mcp/team-a%00/sse",
        "/banks/team-a/../other-a/memories",
        "/banks/team-a%2f..%2fother-a/memories",
        "/banks/..%2f..%2fkeys.json/memories",
        "/banks/team-a/memories/../../../keys.json",
        "/healthz/../banks/other-a/memories",
    ],
)
@pytest.mark.parametrize("prefix", ["", "/mcp", "/healthz", "/mcp/team-a"])
def test_no_trick_in_a_path_leads_to_another_bank(guarded: Guarded, path: str, prefix: str) -> None:
    to = urlsplit(guarded.url)
    connection = HTTPConnection(to.hostname or "", to.port, timeout=BOUND)  # sends the path as it is
    with closing(connection):
        connection.request("GET", path, headers={**guarded.holding("ada"), "x-forwarded-prefix": prefix})
        status, body = (answer := connection.getresponse()).status, answer.read()

    assert status in (400, 403, 404)
    assert set(json.loads(body)) == {"error"}
    assert b"keys" not in body


@pytest.mark.parametrize("door", OF_A_BANK, ids=" ".join)
def test_another_team_s_key_is_403_at_every_door_of_a_bank(guarded: Guarded, door: Door) -> None:
    refused = guarded.ask(door, guarded.holding("other"))

    assert refused.status_code == 403
    if door[0] != "HEAD":
        assert refused.json()["error"]["code"] == "FORBIDDEN"
        assert "team" not in refused.text


@pytest.mark.parametrize("door", WRITING, ids=" ".join)
def test_a_read_key_is_403_where_only_writing_is_done(guarded: Guarded, door: Door) -> None:
    refused = guarded.ask(door, guarded.holding("reader"), b"{}")

    assert refused.status_code == 403
    assert refused.json()["error"]["code"] == "FORBIDDEN"


@pytest.mark.parametrize("door", [STREAM, ("HEAD", "/mcp/team-a/sse"), ("GET", "/metrics")], ids=" ".join)
@pytest.mark.parametrize("form", ["x-api-key", "bearer", "BEARER"])
def test_a_good_key_gets_in_in_either_form(guarded: Guarded, door: Door, form: str) -> None:
    key = guarded.keys["reader"]
    headers = {"X-Api-Key": key} if form == "x-api-key" else {"Authorization": f"{form} {key}"}

    assert guarded.ask(door, headers).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": "Basic {ada}"},
        {"authorization": "{ada}"},
        {"authorization": "Bearer"},
        {"cookie": "x-api-key={ada}"},
        {"x-api-key": "Bearer {ada}"},
        {"x-api-key": "{wrong}", "authorization": "Bearer {ada}"},
    ],
)
def test_a_key_in_the_wrong_place_does_not_count(guarded: Guarded, headers: Headers) -> None:
    filled = {name: value.format(**guarded.keys) for name, value in headers.items()}

    assert guarded.ask(STREAM, filled).status_code == 401


def test_a_key_in_the_url_does_not_count(guarded: Guarded) -> None:
    key = guarded.keys["ada"]

    assert guarded.ask(("GET", f"/mcp/team-a/sse?x-api-key={key}&api_key={key}"), {}).status_code == 401


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
def test_whoever_watches_the_server_needs_no_key(guarded: Guarded, path: str) -> None:
    assert guarded.ask(("GET", path), {}).json() == {"status": "ok"}


@pytest.mark.parametrize("path", ["/mcp/healthz", "/mcp/readyz", "/banks/healthz"])
@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
def test_a_forwarded_prefix_makes_no_public_door_of_a_private_one(guarded: Guarded, path: str, method: str) -> None:
    prefix = path.rpartition("/")[0]

    met = guarded.ask((method, path), {"x-forwarded-prefix": prefix}, b"{}" if method == "POST" else None)

    assert met.status_code in ((200,) if method == "GET" else (401, 405))
    assert method != "GET" or met.json() == {"status": "ok"}


def test_who_is_refused_need_not_send_a_body(guarded: Guarded) -> None:
    to = urlsplit(guarded.url)
    with socket.create_connection((to.hostname, to.port), timeout=BOUND) as connection:
        connection.sendall(
            b"POST /banks/team-a/memories HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n"
            b"Content-Type: application/x-ndjson\r\n\r\n"
        )
        answer = connection.recv(100)

    assert answer.startswith(b"HTTP/1.1 401 ")


# Sessions


async def test_a_session_of_another_key_is_404_as_one_that_never_was(guarded: Guarded) -> None:
    async with opened(f"{guarded.url}/mcp/team-a/sse", **guarded.holding("ada")) as wire:
        own = await wire.post(request("ping"))
        body = json.dumps(request("ping")).encode()
        headers = {"content-type": "application/json", **guarded.holding("bob")}
        foreign = await anyio.to_thread.run_sync(guarded.ask, ("POST", wire.path), headers, body)
        unknown = await anyio.to_thread.run_sync(guarded.ask, MESSAGES, headers, body)
        on_another_bank = await anyio.to_thread.run_sync(
            guarded.ask,
            ("POST", wire.path.replace("team-a", "team-b")),
            {"content-type": "application/json", **guarded.holding("ada")},
            body,
        )

    assert own.status_code == 202
    assert {(met.status_code, met.content) for met in (foreign, unknown, on_another_bank)} == {(404, unknown.content)}


async def test_a_read_key_neither_sees_nor_calls_what_writes(guarded: Guarded) -> None:
    async with opened(f"{guarded.url}/mcp/team-a/sse", **guarded.holding("reader")) as wire:
        await wire.post(request("tools/list"))
        listed = await wire.message()
        refused = await wire.call("retain", 2, content="x")

    hints = {tool["name"]: tool["annotations"]["readOnlyHint"] for tool in listed["result"]["tools"]}
    assert "recall" in hints
    assert set(hints.values()) == {True}
    assert code(refused) == "FORBIDDEN"


async def test_revoking_a_key_ends_its_sessions_and_no_others(guarded: Guarded) -> None:
    guarded.make("short-lived", "team-*")
    headers = guarded.holding("short-lived")
    await until_taken(guarded, headers, status=200)
    async with (
        opened(f"{guarded.url}/mcp/team-a/sse", **headers) as wire,
        opened(f"{guarded.url}/mcp/team-a/sse", **guarded.holding("ada")) as bystander,
    ):
        revoked = main(["keys", "revoke", "short-lived", "--data-dir", str(guarded.data)])
        with pytest.raises(EOFError):
            await wire.message()
        refused = await wire.post(request("ping"))
        await bystander.post(request("ping"))
        answer = await bystander.message()

    assert (revoked, refused.status_code) == (0, 401)
    assert answer["result"] == {}


async def test_revoking_a_key_breaks_off_its_load(guarded: Guarded) -> None:
    guarded.make("loader", "team-*")
    await until_taken(guarded, guarded.holding("loader"), status=200)
    to = urlsplit(guarded.url)
    assert to.port is not None
    head = f"POST /banks/team-l/memories HTTP/1.1\r\nHost: localhost\r\nx-api-key: {guarded.keys['loader']}\r\n"
    async with await anyio.connect_tcp("127.0.0.1", to.port) as connection:
        await connection.send(f'{head}Content-Length: 1000\r\n\r\n{{"content": "on its way"}}\n'.encode())
        with anyio.fail_after(BOUND):
            begun = await connection.receive()
            KeyFile(guarded.data).remove("loader")
            with pytest.raises(anyio.EndOfStream):
                await received_to_the_end(connection)

    assert begun.startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("door", ["messages", "streamable"])
async def test_a_key_that_is_revoked_while_a_body_arrives_does_nothing_any_more(guarded: Guarded, door: str) -> None:
    name, content = f"slow-{door}", f"told by a {door} body that came too late"
    guarded.make(name, "team-*")
    await until_taken(guarded, guarded.holding(name), status=200)
    body = json.dumps(call("retain", content=content))
    async with opened(f"{guarded.url}/mcp/team-s/sse", **guarded.holding(name)) as wire:
        to = urlsplit(guarded.url)
        path = wire.path if door == "messages" else "/mcp/team-s"
        async with await anyio.connect_tcp("127.0.0.1", to.port or 0) as connection:
            await connection.send(post_head(path, len(body), f"x-api-key: {guarded.keys[name]}").encode())
            await connection.send(body[:40].encode())
            KeyFile(guarded.data).remove(name)
            await until_taken(guarded, guarded.holding(name), status=401)
            await connection.send(body[40:].encode())
            with anyio.fail_after(BOUND):
                refused = await connection.receive()

    exported = guarded.ask(("GET", "/banks/team-s/memories"), guarded.holding("ada"))
    assert refused.startswith(b"HTTP/1.1 401 ")
    assert b'www-authenticate: Bearer realm="hindsight"' in refused
    assert exported.status_code == 200
    assert content not in exported.text


async def test_a_key_made_beside_the_running_server_works(guarded: Guarded) -> None:
    guarded.make("new", "team-n")

    await until_taken(guarded, guarded.holding("new"), status=200)

    assert guarded.ask(("GET", "/mcp/team-n/sse"), guarded.holding("new")).status_code == 200
    assert guarded.ask(STREAM, guarded.holding("new")).status_code == 403


# What is told


async def test_neither_log_nor_audit_nor_errors_hold_a_key_or_what_was_said(guarded: Guarded) -> None:
    canaries = [f"canary-{number}-{'x' * 20}" for number in range(10)]
    async with opened(f"{guarded.url}/mcp/team-a/sse", **guarded.holding("ada")) as wire:
        stored = await wire.call("retain", 1, content=f"Ada likes {canaries[0]}", tags=[canaries[1]])
        found = await wire.call("recall", 2, query=canaries[0])
        missing = await wire.call("get_memory", 3, id=canaries[2])
        unknown = await wire.call(canaries[3], 4)
        wrong = await wire.call("recall", 5, query="x", max_results=canaries[4])
    wrong_key = guarded.ask(STREAM, {"x-api-key": f"hs_{canaries[4]}"})
    headers = guarded.holding("ada")
    load = [{"content": canaries[5]}, {"content": canaries[5], "event_date": canaries[6]}, canaries[7]]
    guarded.ask(("POST", "/banks/team-a/memories"), headers, "\n".join(map(json.dumps, load)).encode())
    guarded.ask(("GET", f"/mcp/team-a/sse?tools={canaries[8]}"), headers)
    guarded.ask(("POST", f"/mcp/team-a/messages?session_id={canaries[8]}"), headers, canaries[8].encode())
    guarded.ask(("POST", "/mcp/team-a"), {**headers, "content-type": "application/json"}, canaries[9].encode())
    guarded.ask(("GET", f"/{canaries[9]}"), headers)

    memory = structured(stored)["id"]
    lines = [json.loads(line) for line in guarded.audit.read_text("utf-8").splitlines()]
    own = [line for line in lines if line["key"] == "ada" and line["bank"] == "team-a"][-6:]
    written = guarded.audit.read_text("utf-8") + "".join(guarded.serving.log.lines)
    assert [code(answer) for answer in (missing, unknown, wrong)] == [
        "MEMORY_NOT_FOUND",
        "INVALID_ARGUMENT",
        "INVALID_ARGUMENT",
    ]
    assert [result["id"] for result in structured(found)["results"]] == [memory]
    assert [(line["tool"], line["ids"], line["outcome"]) for line in own] == [
        ("retain", [memory], "ok"),
        ("recall", [memory], "ok"),
        ("get_memory", [], "MEMORY_NOT_FOUND"),
        ("?", [], "INVALID_ARGUMENT"),
        ("recall", [], "INVALID_ARGUMENT"),
        ("memories.post", [], "ok"),
    ]
    assert all(set(line) == {"time", "key", "bank", "tool", "ids", "outcome", "ms"} for line in lines)
    assert wrong_key.status_code == 401
    secrets = [key for key in guarded.keys.values() if key]
    assert [word for word in (*canaries, *secrets) if word in written] == []
    assert [word for word in (*canaries, str(guarded.data), "Traceback") if word in wrong_key.text] == []


def test_what_is_done_beside_mcp_is_audited_too(guarded: Guarded) -> None:
    headers = guarded.holding("ada")
    loaded = guarded.ask(("POST", "/banks/team-x/memories"), headers, b'{"content": "canary-beside-mcp"}\n')
    guarded.ask(("GET", "/banks/team-x/memories"), headers)
    guarded.ask(("DELETE", "/banks/team-x"), headers)
    guarded.ask(("DELETE", "/banks/team-x?confirm=true"), headers)

    lines = [json.loads(line) for line in guarded.audit.read_text("utf-8").splitlines()]
    assert loaded.json()["status"] == "stored"
    assert [(line["key"], line["tool"], line["outcome"]) for line in lines if line["bank"] == "team-x"] == [
        ("ada", "memories.post", "ok"),
        ("ada", "memories.get", "ok"),
        ("ada", "bank.delete", "HTTP_400"),
        ("ada", "bank.delete", "ok"),
    ]
    assert "canary-beside-mcp" not in guarded.audit.read_text("utf-8")


def test_metrics_count_and_show_a_key_its_own_banks_alone(guarded: Guarded) -> None:
    headers = {"content-type": "application/json"}
    for bank, name in (("team-m", "ada"), ("other-m", "other")):
        body = json.dumps(call("retain", content="The sky is blue.")).encode()
        stored = guarded.ask(("POST", f"/mcp/{bank}"), {**headers, **guarded.holding(name)}, body)
        assert stored.json()["result"]["isError"] is False

    text = guarded.ask(("GET", "/metrics"), guarded.holding("other")).text

    assert 'hindsight_calls_total{outcome="ok",tool="retain"}' in text
    assert 'hindsight_call_seconds_count{tool="retain"}' in text
    assert 'hindsight_errors_total{code="UNAUTHORIZED"}' in text
    assert "hindsight_sessions " in text
    assert "team-" not in text


async def test_an_internal_error_and_its_log_lines_share_an_id(
    server: Served, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.handler.setFormatter(TextLines("%(message)s"))
    with caplog.at_level(logging.INFO):
        async with opened(server.url_of("a")) as wire:
            answer = await wire.call("break", query="x")

    message = structured(answer)["error"]["message"]
    name = message.split()[-1]
    lines = [line for line in caplog.text.splitlines() if line.endswith(f"call={name}")]
    assert len(name) == 8
    assert any("code=INTERNAL" in line for line in lines)


# Limits


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory, model_folder: Path) -> Iterator[Guarded]:
    """A server that grants each key five requests a minute; as in a container, it gets its keys by its environment."""
    data, names = tmp_path_factory.mktemp("data"), ("requests", "messages", "one")
    keys = {name: f"{name} ".ljust(40, "k").replace(" ", "-") for name in names}
    given = [{"name": name, "key": key, "banks": ["*"], "scopes": ["read", "write"]} for name, key in keys.items()]
    settings: dict[str, Any] = {"model_dir": model_folder, "requests_per_minute": 5, "api_keys": json.dumps(given)}
    with serving(data, ready=False, host="0.0.0.0", **settings) as running:
        running.url = running.url.replace("0.0.0.0", "127.0.0.1")
        yield Guarded(running, data, data / "audit.jsonl", keys)


def test_a_request_too_many_is_429_with_retry_after_and_health_is_not_counted(limited: Guarded) -> None:
    headers = limited.holding("requests")
    stored = limited.ask(("POST", "/banks/a/memories"), headers, b'{"content": "One."}')
    paths = ("/metrics", "/banks/a/memories", "/banks", "/metrics", "/banks/a/memories")
    asked = [stored, *(limited.ask(("GET", path), headers) for path in paths)]
    alive = [limited.ask(("GET", "/healthz"), {}).status_code for _ in range(10)]

    assert [answer.status_code for answer in asked] == [200] * 5 + [429]
    assert asked[-1].json()["error"]["code"] == "RATE_LIMITED"
    assert 1 <= int(asked[-1].headers["retry-after"]) <= 12
    assert set(alive) == {200}


async def test_a_message_too_many_fails_on_its_stream_and_the_session_lives(limited: Guarded) -> None:
    async with opened(f"{limited.url}/mcp/a/sse", **limited.holding("messages")) as wire:
        for number in range(4):
            await wire.post(request("ping", number))
            await wire.message()
        accepted = await wire.post(request("ping", 99))
        refused: JsonObject = await wire.message()

    assert accepted.status_code == 202
    assert refused["id"] == 99
    assert refused["error"]["data"]["code"] == "RATE_LIMITED"
    assert refused["error"]["data"]["retry_after"] >= 1


async def test_loads_count_as_a_call_each_and_leave_room_for_others(tmp_path: Path, model_folder: Path) -> None:
    with serving(tmp_path, model_dir=model_folder, ready=False, total_calls=3, session_calls=2) as running:
        to = urlsplit(running.url)
        async with (
            await anyio.connect_tcp("127.0.0.1", to.port or 0) as one,
            await anyio.connect_tcp("127.0.0.1", to.port or 0) as other,
            browser(running.url) as http,
        ):
            for load in (one, other):
                await load.send(post_head("/banks/a/memories", 1000).encode() + b'{"content": "A line."}\n')
                await load.receive()
            third = await http.get("/banks/a/memories")
            recalled = await http.post("/mcp/a", json=call("recall", query="line"))
            shown = (await http.get("/metrics")).text
            await one.aclose()
            with anyio.fail_after(BOUND):
                while (again := await http.get("/banks/a/memories")).status_code != 200:
                    assert again.status_code == 503

    assert (third.status_code, third.headers["retry-after"]) == (503, "1")
    assert third.json()["error"]["code"] == "TOO_BUSY"
    assert third.json()["error"]["message"].startswith("this key has 2 calls in flight")
    assert recalled.json()["result"]["isError"] is False
    assert {"hindsight_calls_in_flight 2.0", "hindsight_loads 2.0"} <= set(shown.splitlines())


@pytest.mark.slow
def test_a_thousand_wrong_keys_a_second_do_not_slow_a_right_one_by_a_factor_of_two(guarded: Guarded) -> None:
    with closing(HTTPConnection("127.0.0.1", urlsplit(guarded.url).port, timeout=BOUND)) as connection:
        rounds = [(_median_time(connection, guarded), *_during_a_flood(connection, guarded)) for _ in range(5)]

    flooded = [taken for _, taken, rate in rounds if rate > 900]  # not when the machine has no time for that many
    assert flooded
    assert min(flooded) < 2 * min(alone for alone, _, _ in rounds)


def _median_time(connection: HTTPConnection, guarded: Guarded) -> float:
    """Seconds that a request with a right key takes."""
    times = []
    for _ in range(200):
        began = time.perf_counter()
        connection.request("GET", "/banks", headers=guarded.holding("ada"))
        connection.getresponse().read()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def _during_a_flood(connection: HTTPConnection, guarded: Guarded) -> tuple[float, float]:
    """The same while wrong keys come, and how many of these came in a second."""
    command = [sys.executable, "-m", "tests.protocol.flood", str(urlsplit(guarded.url).port), "1000"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as flood:
        assert flood.stdout is not None
        assert flood.stdout.readline() == "knocking\n"
        taken = _median_time(connection, guarded)
        told, _ = flood.communicate(timeout=BOUND)
    refused, seconds = told.split()
    return taken, int(refused) / float(seconds)


# Starting


def test_an_open_server_does_not_start_on_the_network_and_says_what_to_do(tmp_path: Path) -> None:
    ended = spawned("serve", host="0.0.0.0", port=0, data_dir=tmp_path)

    assert ended.status == 2
    assert "hindsight keys create" in ended.err
    assert "HINDSIGHT_API_KEYS" in ended.err
    assert "HINDSIGHT_ALLOW_ANONYMOUS=true" in ended.err


def test_a_container_with_keys_in_its_environment_starts_on_the_network(limited: Guarded) -> None:
    without = limited.ask(("GET", "/metrics"), {})
    having = limited.ask(("GET", "/metrics"), limited.holding("one"))

    assert (without.status_code, having.status_code) == (401, 200)


async def test_the_first_key_closes_an_open_server_and_ends_its_sessions(tmp_path: Path, model_folder: Path) -> None:
    with serving(tmp_path, model_dir=model_folder, ready=False) as running:
        async with opened(f"{running.url}/mcp/a/sse") as wire:
            before = await wire.post(request("ping"))
            answer = await wire.message()
            KeyFile(tmp_path).add(Key.create("ada", ["*"], ["read"], None)[0])
            with pytest.raises(EOFError):
                await wire.message()
            after = await wire.post(request("ping"))

    assert (before.status_code, answer["result"], after.status_code) == (202, {}, 401)
