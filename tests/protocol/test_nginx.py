"""Behind a real nginx with the configuration of docs/nginx.conf: two teams, a path each."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import anyio
import httpx
import pytest

from hindsight.keys import Key, KeyFile
from tests.serving import BOUND, serving

from .doors import opened, request, structured

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

CONFIGURATION = Path(__file__).resolve().parents[2] / "docs" / "nginx.conf"
TEAMS = ("alpha", "beta")
PROXY_TIMEOUT = 60  # seconds, as the configuration has it
PING = 5  # seconds; the default is longer than these tests wait for an event


@dataclass(frozen=True, slots=True)
class Proxied:
    """A proxy before a server per team, and each team's key."""

    url: str
    keys: dict[str, str]

    def holding(self, team: str) -> dict[str, str]:
        return {"x-api-key": self.keys[team]}


def configuration(folder: Path, port: int, servers: dict[str, str]) -> Path:
    """The documented one with this machine's ports, and files that a user may write."""
    text = CONFIGURATION.read_text("utf-8").replace("listen 8080;", f"listen 127.0.0.1:{port};")
    for team, url in servers.items():
        text = text.replace(f"http://{team}:8888", url)
    temporary = "".join(f"    {name}_temp_path {folder / name};\n" for name in ("client_body", "proxy", "fastcgi"))
    temporary += "".join(f"    {name}_temp_path {folder / name};\n" for name in ("uwsgi", "scgi"))
    text = text.replace("http {\n", f"http {{\n{temporary}", 1)
    path = folder / "nginx.conf"
    path.write_text(f"daemon off;\npid {folder / 'pid'};\nerror_log {folder / 'error.log'};\n{text}", "utf-8")
    return path


@pytest.fixture(scope="module")
def proxied(tmp_path_factory: pytest.TempPathFactory, model_folder: Path) -> Iterator[Proxied]:
    """nginx, found or failed on: .ci/run installs it."""
    program = shutil.which("nginx", path="/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin:/opt/homebrew/bin")
    if program is None:
        pytest.fail("there is no nginx: install it (apt-get install nginx-light)", pytrace=False)
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    keys, servers, folder = {}, {}, tmp_path_factory.mktemp("nginx")
    with ExitStack() as stack:
        for team in TEAMS:
            data = tmp_path_factory.mktemp(team)
            key, keys[team] = Key.create(team, ["*"], ["read", "write"], None)
            KeyFile(data).add(key)
            servers[team] = stack.enter_context(serving(data, model_dir=model_folder, ping_interval=PING)).url
        command = [program, "-p", str(folder), "-c", str(configuration(folder, port, servers))]
        with subprocess.Popen(command, stderr=subprocess.DEVNULL) as nginx:
            try:
                _wait_for(port)
                yield Proxied(f"http://127.0.0.1:{port}", keys)
            finally:
                nginx.terminate()
                nginx.wait(BOUND)


def _wait_for(port: int) -> None:
    transport = httpx.HTTPTransport(retries=8)
    with httpx.Client(transport=transport, timeout=BOUND) as http:
        http.get(f"http://127.0.0.1:{port}/alpha/healthz").raise_for_status()


async def test_each_team_has_its_path_and_no_other_team_s_key_works_there(proxied: Proxied) -> None:
    async with opened(f"{proxied.url}/alpha/mcp/notes/sse", **proxied.holding("alpha")) as wire:
        stored = await wire.call("retain", content="Alpha meets on Mondays.")
    async with opened(f"{proxied.url}/beta/mcp/notes/sse", **proxied.holding("beta")) as other:
        found = await other.call("recall", query="When does Alpha meet?")
    async with httpx.AsyncClient(base_url=proxied.url, timeout=BOUND) as http:
        refused = await http.get("/beta/mcp/notes/sse", headers=proxied.holding("alpha"))

    assert wire.path.startswith("/alpha/mcp/notes/messages?session_id=")
    assert structured(stored)["status"] == "stored"
    assert structured(found)["results"] == []
    assert refused.status_code == 401


async def test_a_stream_that_is_idle_longer_than_the_proxy_waits_stays_open(proxied: Proxied) -> None:
    async with opened(f"{proxied.url}/alpha/mcp/notes/sse", **proxied.holding("alpha")) as wire:
        events, opened_at = [], anyio.current_time()
        while anyio.current_time() - opened_at < PROXY_TIMEOUT + 10:
            events.append(await wire.event())
        await wire.post(request("ping"))
        answer = await wire.message()

    assert set(events) == {("", "ping")}
    assert answer["result"] == {}
    assert f"proxy_read_timeout {PROXY_TIMEOUT}s;" in CONFIGURATION.read_text("utf-8")


async def test_a_load_and_an_export_pass_through_whole(proxied: Proxied) -> None:
    lines = b"".join(b'{"content": "number %d"}\n' % number for number in range(300))
    async with httpx.AsyncClient(base_url=proxied.url, timeout=BOUND, headers=proxied.holding("alpha")) as http:
        loaded = await http.post("/alpha/banks/load/memories", content=lines)
        exported = await http.get("/alpha/banks/load/memories")

    assert [result["status"] for result in map(json.loads, loaded.text.splitlines())] == ["stored"] * 300
    assert [memory["text"] for memory in map(json.loads, exported.text.splitlines())] == [
        f"number {number}" for number in range(300)
    ]


async def test_metrics_stay_inside(proxied: Proxied) -> None:
    async with httpx.AsyncClient(base_url=proxied.url, timeout=BOUND, headers=proxied.holding("alpha")) as http:
        assert (await http.get("/alpha/metrics")).status_code == 404
        assert (await http.get("/alpha/metrics/")).status_code == 404
        assert (await http.get("/alpha/banks")).status_code == 200


def test_the_configuration_has_a_block_for_each_team() -> None:
    assert re.findall(r"location /(\w+)/ \{", CONFIGURATION.read_text("utf-8")) == list(TEAMS)
