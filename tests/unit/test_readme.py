"""What README says is so: its commands, URLs, snippets and tables."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import urllib.error
import urllib.request
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from hindsight.settings import CLIENT_KEY, PREFIX, Settings, variable
from hindsight.wiring import TOOLS
from tests.serving import BOUND, serving

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text("utf-8")
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text("utf-8")


def commands(text: str) -> list[str]:
    """The indented lines."""
    return re.findall(r"^ {4}(\S.*)$", re.sub(r"```.*?```", "", text, flags=re.DOTALL), re.MULTILINE)


def arguments_of(arguments: type) -> str:
    """The names of a tool's arguments, required ones first and bold."""
    fields = dataclasses.fields(arguments)
    required = [f"**{field.name}**" for field in fields if field.default is dataclasses.MISSING]
    return ", ".join(required + [field.name for field in fields if field.default is not dataclasses.MISSING])


def test_the_tools_are_those_of_the_server_with_their_arguments() -> None:
    rows = re.findall(r"^\| `([a-z_]+)` \| .+ \| (.*) \|$", README, re.MULTILINE)

    assert rows == [(tool.name, arguments_of(tool.arguments)) for tool in TOOLS]


def test_every_setting_that_is_named_exists() -> None:
    named = set(re.findall(rf"{PREFIX}[A-Z_]+", README + (ROOT / "Dockerfile").read_text("utf-8")))

    assert named <= {variable(name) for name in Settings.model_fields} | {CLIENT_KEY}


@pytest.mark.parametrize("text", [README, CONTRIBUTING], ids=["README", "CONTRIBUTING"])
def test_every_script_that_is_named_can_be_run_and_every_file_exists(text: str) -> None:
    scripts = set(re.findall(r"scripts/[a-z_.]+\b", text))
    links = set(re.findall(r"\]\(([^):]+)\)", text))

    assert scripts
    assert [name for name in scripts if not os.access(ROOT / name, os.X_OK)] == []
    assert [name for name in links if not (ROOT / name).exists()] == []


def test_every_snippet_of_a_configuration_is_json_that_names_a_bank_of_the_server() -> None:
    snippets = [json.loads(text) for text in re.findall(r"```json\n(.*?)```", README, re.DOTALL)]

    cursor, desktop = (snippet["mcpServers"]["memory"] for snippet in snippets)
    assert cursor == {"url": "http://127.0.0.1:8888/mcp/my-team/sse"}
    assert desktop["command"] == "npx"
    assert "http://127.0.0.1:8888/mcp/my-team/sse" in desktop["args"]


def test_every_url_of_the_server_leads_somewhere(tmp_path: Path) -> None:
    port = Settings.model_fields["port"].default
    urls = {urlsplit(url) for url in re.findall(r"http://127\.0\.0\.1:[^\s`\")]+", README)}
    with serving(tmp_path, ready=False) as server:
        answers = {url.path: status_of(f"{server.url}{url.path}") for url in urls}

    assert {url.port for url in urls} == {port}
    # The first is the bare server; the last two are not for HEAD.
    assert answers == {"": 404, "/mcp/my-team/sse": 200, "/mcp/my-team": 405, "/banks/my-team/memories": 405}


def status_of(url: str) -> int:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=BOUND) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def test_the_container_is_run_as_the_dockerfile_wants_it() -> None:
    [run] = [command for command in commands(README) if command.startswith("docker run")]
    dockerfile = (ROOT / "Dockerfile").read_text("utf-8")

    [volume] = re.findall(r"^VOLUME (\S+)$", dockerfile, re.MULTILINE)
    [port] = re.findall(r"^EXPOSE (\S+)$", dockerfile, re.MULTILINE)
    assert f":{volume} " in run
    assert f"-p 127.0.0.1:{port}:{port} " in run
    assert int(re.findall(r"--stop-timeout (\d+)", run)[0]) > Settings.model_fields["drain_time"].default + 2


def test_the_changelog_has_a_place_for_what_is_not_released() -> None:
    headings = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)

    assert headings[0] == "[Unreleased]"
