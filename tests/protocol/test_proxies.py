"""Behind a real nginx with docs/nginx.conf, and a real Caddy with docs/Caddyfile: two teams, a path each."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import anyio
import httpx
import pytest

from hindsight.keys import Key, KeyFile
from tests.serving import BOUND, serving

from .doors import opened, request, structured

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

DOCS = Path(__file__).resolve().parents[2] / "docs"
TEAMS = ("alpha", "beta")
PROXY_TIMEOUT = 60  # seconds, as docs/nginx.conf has it; Caddy has none
PING = 5  # seconds; the default is longer than these tests wait for an event
FOUND_IN = "/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin:/opt/homebrew/bin"


@dataclass(frozen=True, slots=True)
class Proxied:
    """A proxy before a server per team, and each team's key."""

    name: str
    url: str
    keys: dict[str, str]

    def holding(self, team: str) -> dict[str, str]:
        return {"x-api-key": self.keys[team]}


def nginx(folder: Path, port: int, servers: dict[str, str]) -> list[str]:
    """The command that runs nginx as documented, with this machine's ports and files that a user may write."""
    text = (DOCS / "nginx.conf").read_text("utf-8").replace("listen 8080;", f"listen 127.0.0.1:{port};")
    for team, url in servers.items():
        text = text.replace(f"http://{team}:8888", url)
    temporary = "".join(
        f"    {name}_temp_path {folder / name};\n" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    text = text.replace("http {\n", f"http {{\n{temporary}", 1)
    path = folder / "nginx.conf"
    path.write_text(f"daemon off;\npid {folder / 'pid'};\nerror_log {folder / 'error.log'};\n{text}", "utf-8")
    return ["nginx", "-p", str(folder), "-c", str(path)]


def caddy(folder: Path, port: int, servers: dict[str, str]) -> list[str]:
    """The command that runs Caddy as documented, with this machine's ports and without TLS."""
    text = (DOCS / "Caddyfile").read_text("utf-8").replace("memory.example.com {", f"http://127.0.0.1:{port} {{", 1)
    for team, url in servers.items():
        text = text.replace(f"{team}:8888", url.removeprefix("http://"))
    path = folder / "Caddyfile"
    path.write_text(f"{{\n\tadmin off\n}}\n{text}", "utf-8")
    return ["caddy", "run", "--config", str(path)]


@pytest.fixture(scope="module", params=[nginx, caddy], ids=["nginx", "caddy"])
def proxied(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, model_folder: Path
) -> Iterator[Proxied]:
    """A proxy, found or failed on: .ci/run installs both."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    keys, servers, folder = {}, {}, tmp_path_factory.mktemp("proxy")
    with ExitStack() as stack:
        for team in TEAMS:
            data = tmp_path_factory.mktemp(team)
            key, keys[team] = Key.create(team, ["*"], ["read", "write"], None)
            KeyFile(data).add(key)
            servers[team] = stack.enter_context(serving(data, model_dir=model_folder, ping_interval=PING)).url
        name, *arguments = request.param(folder, port, servers)
        program = shutil.which(name, path=FOUND_IN)
        if program is None:
            pytest.fail(f"there is no {name}: install it with apt-get, as .ci/run does", pytrace=False)
        environment = {**os.environ, "HOME": str(folder), "XDG_DATA_HOME": str(folder)}
        with subprocess.Popen([program, *arguments], env=environment, stderr=subprocess.DEVNULL) as proxy:
            try:
                _wait_for(port)
                yield Proxied(name, f"http://127.0.0.1:{port}", keys)
            finally:
                proxy.terminate()
                proxy.wait(BOUND)


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
        while anyio.current_time() - opened_at < (PROXY_TIMEOUT + 10 if proxied.name == "nginx" else 3 * PING):
            events.append(await wire.event())
        await wire.post(request("ping"))
        answer = await wire.message()

    assert set(events) == {("", "ping")}
    assert answer["result"] == {}
    assert f"proxy_read_timeout {PROXY_TIMEOUT}s;" in (DOCS / "nginx.conf").read_text("utf-8")


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


@pytest.mark.parametrize("bank", ["a b", "Ünïcode", "at@team:1+2"])
async def test_every_bank_id_goes_through_as_it_is(proxied: Proxied, bank: str) -> None:
    url = f"{proxied.url}/beta/mcp/{quote(bank, safe='')}/sse"
    async with opened(url, **proxied.holding("beta")) as wire:
        stored = await wire.call("retain", content=f"This is {bank}.")
    async with httpx.AsyncClient(base_url=proxied.url, timeout=BOUND, headers=proxied.holding("beta")) as http:
        listed = (await http.get("/beta/banks")).json()["banks"]

    assert structured(stored)["status"] == "stored"
    assert {"bank_id": bank, "memories": 1} in listed


@pytest.mark.parametrize(
    ("file", "block"), [("nginx.conf", r"location /(\w+)/ \{"), ("Caddyfile", r"handle_path /(\w+)/\* \{")]
)
def test_the_configurations_have_a_block_for_each_team(file: str, block: str) -> None:
    assert re.findall(block, (DOCS / file).read_text("utf-8")) == list(TEAMS)
