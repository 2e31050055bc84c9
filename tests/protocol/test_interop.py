"""Clients that others published, at their pinned versions, against a real `hindsight serve` that wants a key.

`scripts/interop` installs them into tests/interop and build/interop; what drives them is in tests/interop.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, cast

import pytest

from hindsight.record import JsonObject
from tests.serving import Log, Serving, serving

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
DRIVERS = ROOT / "tests/interop"
PUBLISHED = DRIVERS / "node_modules"
VENVS = ROOT / "build/interop"
INSTALLING = 600.0  # seconds that all downloads together may take
BOUND = 60.0  # seconds that one client may take
KEY = "a-key-of-more-than-thirty-two-characters"
KEYS = json.dumps([{"name": "interop", "key": KEY, "banks": ["*"], "scopes": ["read", "write"]}])

CLIENTS = {
    "python-sdk-1": (str(VENVS / "mcp1/bin/python"), "python_sdk.py"),
    "fastmcp": (str(VENVS / "fastmcp/bin/python"), "fastmcp_client.py"),
    "typescript-sdk-1": ("node", "typescript.mjs", "1"),
    "typescript-sdk-2": ("node", "typescript.mjs", "2"),
    "typescript-sdk-2-modern": ("node", "typescript.mjs", "2-modern"),
    "mcp-remote": ("node", "typescript.mjs", "bridge"),
}
TOOLS = ["retain", "recall", "get_memory", "list_memories", "update_memory", "forget", "bank_stats"]
SEEN = {
    "server": "hindsight",
    "tools": TOOLS,
    "retained": "Memory stored successfully",
    "recalled": ["Ada drinks green tea."],
}

# What the conformance suite asks of its own example server and can't find here, by scenario and check, and why.
MISSING = {
    "tools-call-*/tools-call-*": "asks for the example server's tools, which answer with images, sounds and questions",
    "elicitation-*/elicitation-*": "asks for a tool that asks the user",
    "json-schema-2020-12/json-schema-2020-12-tool-found": "asks for the example server's tool by its name",
    "input-required-result-*/sep-2322-*": "asks for tools that ask back",
    "http-custom-header-server-validation/sep-2243-server-*": "asks for a tool with an argument that is a header too",
    "server-stateless/sep-2575-*-capability*": "asks for a tool that needs something of the client",
    "tasks-*/tasks-*": "asks for tools that run as tasks, an extension that is not offered",
    "tasks-*/sep-2663-*": "asks for tools that run as tasks, an extension that is not offered",
    "resources-*/resources-*": "asks for resources; a bank has tools only",
    "prompts-*/prompts-*": "asks for prompts; a bank has tools only",
    "caching/sep-2549-prompts-*": "asks for prompts; a bank has tools only",
    "caching/sep-2549-resources-*": "asks for resources; a bank has tools only",
    "completion-complete/completion-complete": "completes prompts and resources, of which there are none",
    "logging-set-level/logging-set-level": "asks for a log that is sent to the client, which is not offered",
}


@pytest.fixture(scope="module")
def clients() -> None:
    """The clients, installed."""
    _run(str(ROOT / "scripts/interop"), "--install", seconds=INSTALLING, PYTHON=sys.executable)


@pytest.fixture(scope="module")
def server(clients: None, model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with serving(tmp_path_factory.mktemp("data"), api_keys=KEYS) as served:
        yield served


@pytest.mark.parametrize("door", ["sse", "http"])
@pytest.mark.parametrize("client", CLIENTS)
def test_a_published_client_retains_and_recalls(server: Serving, tmp_path: Path, client: str, door: str) -> None:
    program, driver, *arguments = CLIENTS[client]

    url = _url(server, f"{client}-{door}", door)

    seen = _run(program, str(DRIVERS / driver), *arguments, door, url, KEY, home=tmp_path)

    assert json.loads(seen) == SEEN


@pytest.mark.parametrize("door", ["sse", "http"])
def test_the_inspector_lists_the_tools_and_calls_them(server: Serving, tmp_path: Path, door: str) -> None:
    url = _url(server, f"inspector-{door}", door)

    def inspect(*arguments: str) -> JsonObject:
        program, key = str(PUBLISHED / ".bin/mcp-inspector"), ("--header", f"x-api-key: {KEY}")
        command = (program, "--cli", url, "--transport", door, *key, "--method", *arguments)
        return cast(JsonObject, json.loads(_run(*command, home=tmp_path)))

    listed = inspect("tools/list")
    inspect("tools/call", "--tool-name", "retain", "--tool-arg", "content=Ada drinks green tea.")
    recalled = inspect("tools/call", "--tool-name", "recall", "--tool-arg", "query=tea", "max_results=3")

    assert [tool["name"] for tool in listed["tools"]] == TOOLS
    assert [memory["text"] for memory in recalled["structuredContent"]["results"]] == ["Ada drinks green tea."]


def test_a_typescript_client_lives_through_a_kill_of_the_server(
    clients: None, model_folder: Path, tmp_path: Path
) -> None:
    with serving(tmp_path) as first:
        url, port = _url(first, "team", "sse"), int(first.url.rpartition(":")[2])
        command = ("node", str(DRIVERS / "reconnecting.mjs"), url)
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as client:
            assert client.stdin is not None
            assert client.stdout is not None
            try:
                said = Log(client.stdout)
                said.wait_for("connected")
                first.kill()
                with serving(tmp_path, port=port):
                    client.stdin.write("\n")
                    client.stdin.flush()
                    recalled = said.wait_for("results")
            finally:
                client.kill()

    assert json.loads(recalled) == {"results": []}


def test_the_conformance_suite_finds_nothing_wrong_but_what_only_its_example_server_has(
    clients: None, model_folder: Path, tmp_path: Path
) -> None:
    checks = {}
    with serving(tmp_path / "data") as server:  # the suite has no key
        for revision in ("2025-11-25", "2026-07-28"):
            _conform(_url(server, "conformance", "http"), revision, tmp_path)
            checks[revision] = list(_checks(tmp_path / revision))

    failed = [name for found in checks.values() for name, status in found if status == "FAILURE"]
    passed = {revision: sum(status == "SUCCESS" for _, status in found) for revision, found in checks.items()}
    assert [name for name in failed if not any(fnmatch(name, pattern) for pattern in MISSING)] == []
    assert [pattern for pattern in MISSING if not any(fnmatch(name, pattern) for name in failed)] == []
    assert passed == {"2025-11-25": 37, "2026-07-28": 105}


def test_no_client_made_the_server_log_more_than_a_warning(server: Serving) -> None:
    loud = [line for line in server.log.lines if " ERROR " in line or "Traceback" in line]

    assert loud == []


def _url(server: Serving, bank: str, door: str) -> str:
    return f"{server.url}/mcp/{bank}" + ("/sse" if door == "sse" else "")


def _conform(url: str, revision: str, folder: Path) -> None:
    suite = str(PUBLISHED / "@modelcontextprotocol/conformance/dist/index.js")
    arguments = ("server", "--url", url, "--requirements", revision, "--output-dir", str(folder / revision))
    # Its status says that some checks failed, which ones is in the folder.
    _run("node", "--import", str(DRIVERS / "node20.mjs"), suite, *arguments, home=folder, expected=1)


def _checks(folder: Path) -> Iterator[tuple[str, str]]:
    for file in sorted(folder.glob("server-*/checks.json")):
        scenario = re.sub(r"-[0-9]{4}-[0-9]{2}-[0-9]{2}T.*", "", file.parent.name.removeprefix("server-"))
        for check in json.loads(file.read_text("utf-8")):
            yield f"{scenario}/{check['id']}", check["status"]


def _run(*command: str, seconds: float = BOUND, home: Path | None = None, expected: int = 0, **environment: Any) -> str:
    """What a program prints; it keeps its files in `home`."""
    environment = {**os.environ, **environment, **({"HOME": str(home), "TMPDIR": str(home)} if home else {})}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=seconds, check=False)
    assert done.returncode == expected, f"{command} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
    return done.stdout
