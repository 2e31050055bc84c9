"""Who gets in where, over a real socket: every door with every kind of key, and what is told to whom."""

from __future__ import annotations

import json
import logging
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from urllib.parse import urlsplit

import anyio
import anyio.to_thread
import httpx
import pytest
from anyio.abc import SocketStream

from hindsight.keys import Key, KeyFile
from hindsight.record import JsonObject
from hindsight.telemetry import TextLines
from tests.serving import BOUND, HINDSIGHT, Serving, environment_with, serving

from .doors import Served, call, code, opened, request, structured

pytestmark = pytest.mark.anyio

STREAM = ("GET", "/mcp/team-a/sse")
MESSAGES = ("POST", f"/mcp/team-a/messages?session_id={'0' * 32}")
STREAMABLE = ("POST", "/mcp/team-a")
WRITING = [("POST", "/banks/team-a/memories"), ("PUT", "/banks/team-a/memories"), ("DELETE", "/banks/team-a")]
OF_A_BANK = [STREAM, ("HEAD", "/mcp/team-a/sse"), MESSAGES, STREAMABLE, ("GET", "/banks/team-a/memories"), *WRITING]
DOORS = [*OF_A_BANK, ("GET", "/banks"), ("GET", "/metrics")]
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
        with httpx.stream(method, self.url + path, headers=headers, content=content, timeout=BOUND) as response:
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
        command = [*HINDSIGHT, "keys", "revoke", "short-lived", "--data-dir", str(guarded.data)]
        await anyio.to_thread.run_sync(lambda: subprocess.run(command, check=True, timeout=BOUND, capture_output=True))
        with pytest.raises(EOFError):
            await wire.message()
        refused = await wire.post(request("ping"))
        await bystander.post(request("ping"))
        answer = await bystander.message()

    assert refused.status_code == 401
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


async def test_a_key_made_beside_the_running_server_works(guarded: Guarded) -> None:
    guarded.make("new", "team-n")

    await until_taken(guarded, guarded.holding("new"), status=200)

    assert guarded.ask(("GET", "/mcp/team-n/sse"), guarded.holding("new")).status_code == 200
    assert guarded.ask(STREAM, guarded.holding("new")).status_code == 403


# What is told


async def test_neither_log_nor_audit_nor_errors_hold_a_key_or_what_was_said(guarded: Guarded) -> None:
    canaries = [f"canary-{number}-{'x' * 20}" for number in range(5)]
    async with opened(f"{guarded.url}/mcp/team-a/sse", **guarded.holding("ada")) as wire:
        stored = await wire.call("retain", 1, content=f"Ada likes {canaries[0]}", tags=[canaries[1]])
        found = await wire.call("recall", 2, query=canaries[0])
        missing = await wire.call("get_memory", 3, id=canaries[2])
        unknown = await wire.call(canaries[3], 4)
        wrong = await wire.call("recall", 5, query="x", max_results=canaries[4])
    wrong_key = guarded.ask(STREAM, {"x-api-key": f"hs_{canaries[4]}"})

    memory = structured(stored)["id"]
    lines = [json.loads(line) for line in guarded.audit.read_text("utf-8").splitlines()]
    own = [line for line in lines if line["key"] == "ada" and line["bank"] == "team-a"][-5:]
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


@pytest.fixture
def limited(tmp_path: Path, model_folder: Path) -> Iterator[Serving]:
    """A server that grants five requests a minute."""
    with serving(tmp_path, model_dir=model_folder, requests_per_minute=5) as running:
        yield running


def test_a_request_too_many_is_429_with_retry_after_and_health_is_not_counted(limited: Serving) -> None:
    asked = [httpx.get(f"{limited.url}/metrics", timeout=BOUND) for _ in range(6)]
    alive = [httpx.get(f"{limited.url}/healthz", timeout=BOUND).status_code for _ in range(10)]

    assert [answer.status_code for answer in asked] == [200] * 5 + [429]
    assert asked[-1].json()["error"]["code"] == "RATE_LIMITED"
    assert 1 <= int(asked[-1].headers["retry-after"]) <= 12
    assert set(alive) == {200}


async def test_a_message_too_many_fails_on_its_stream_and_the_session_lives(limited: Serving) -> None:
    async with opened(f"{limited.url}/mcp/a/sse") as wire:
        for number in range(4):
            await wire.post(request("ping", number))
            await wire.message()
        accepted = await wire.post(request("ping", 99))
        refused: JsonObject = await wire.message()

    assert accepted.status_code == 202
    assert refused["id"] == 99
    assert refused["error"]["data"]["code"] == "RATE_LIMITED"
    assert refused["error"]["data"]["retry_after"] >= 1


# Starting


def test_an_open_server_does_not_start_on_the_network_and_says_what_to_do(tmp_path: Path) -> None:
    environment = environment_with({"host": "0.0.0.0", "port": 0, "data_dir": tmp_path})

    ended = subprocess.run([*HINDSIGHT, "serve"], env=environment, capture_output=True, text=True, timeout=BOUND)

    assert ended.returncode == 2
    assert "hindsight keys create" in ended.stderr
    assert "HINDSIGHT_API_KEYS" in ended.stderr
    assert "HINDSIGHT_ALLOW_ANONYMOUS=true" in ended.stderr


def test_a_container_with_keys_in_its_environment_starts_on_the_network(tmp_path: Path, model_folder: Path) -> None:
    key = "k" * 40
    keys = json.dumps([{"name": "ada", "key": key, "banks": ["*"], "scopes": ["read"]}])
    with serving(tmp_path, model_dir=model_folder, host="0.0.0.0", api_keys=keys) as running:
        url = running.url.replace("0.0.0.0", "127.0.0.1")
        without = httpx.get(f"{url}/metrics", timeout=BOUND)
        having = httpx.get(f"{url}/metrics", headers={"x-api-key": key}, timeout=BOUND)

    assert (without.status_code, having.status_code) == (401, 200)


async def test_the_first_key_closes_an_open_server_and_ends_its_sessions(tmp_path: Path, model_folder: Path) -> None:
    with serving(tmp_path, model_dir=model_folder) as running:
        async with opened(f"{running.url}/mcp/a/sse") as wire:
            before = await wire.post(request("ping"))
            answer = await wire.message()
            KeyFile(tmp_path).add(Key.create("ada", ["*"], ["read"], None)[0])
            with pytest.raises(EOFError):
                await wire.message()
            after = await wire.post(request("ping"))

    assert (before.status_code, answer["result"], after.status_code) == (202, {}, 401)
