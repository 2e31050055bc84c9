"""What docs/deploy.md says to run is so: compose files, commands and settings."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from hindsight.cli import main
from hindsight.settings import CLIENT_KEY, PREFIX, Settings, variable
from hindsight.telemetry import Meters, Sights

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
TEXT = (DOCS / "deploy.md").read_text("utf-8")
DOCKERFILE = (ROOT / "Dockerfile").read_text("utf-8")
KNOWN = {
    "image", "restart", "stop_grace_period", "volumes", "ports", "environment", "depends_on"
}  # fmt: skip
PROXIES = {"caddy": "/etc/caddy/Caddyfile", "nginx": "/etc/nginx/nginx.conf"}  # where their images look

Compose = dict[str, Any]


def composed() -> list[Compose]:
    """The compose files, in their order: one team, many behind Caddy, and the proxy alone when it is nginx."""
    return [yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL)]


def services() -> dict[str, Compose]:
    """All services by file and name."""
    return {f"{n} {name}": each for n, file in enumerate(composed()) for name, each in file["services"].items()}


def teams() -> dict[str, Compose]:
    return {name: each for name, each in services().items() if each["image"] == "hindsight"}


def proxies() -> dict[str, Compose]:
    """The proxies by the program that they run."""
    return {each["image"].partition(":")[0]: each for each in services().values() if each["image"] != "hindsight"}


def test_the_compose_files_say_nothing_that_compose_does_not_know() -> None:
    assert [name for name, each in services().items() if not set(each) <= KNOWN] == []
    assert [set(file) - {"services", "volumes", "x-team"} for file in composed()] == [set()] * 3


def test_every_volume_is_declared_and_used_once() -> None:
    for file in composed()[:2]:
        mounted = [volume.split(":")[0] for each in file["services"].values() for volume in each["volumes"]]

        assert sorted(name for name in mounted if "/" not in name) == sorted(file["volumes"])


def test_a_team_s_container_is_run_as_the_dockerfile_wants_it() -> None:
    [volume] = re.findall(r"^VOLUME (\S+)$", DOCKERFILE, re.MULTILINE)
    [port] = re.findall(r"^EXPOSE (\S+)$", DOCKERFILE, re.MULTILINE)

    assert teams()
    for each in teams().values():
        [mounted] = each["volumes"]
        assert mounted.split(":")[1] == volume
        assert int(each["stop_grace_period"].removesuffix("s")) > Settings.model_fields["drain_time"].default + 2
        assert each.get("ports", []) in ([], [f"127.0.0.1:{port}:{port}"])
        assert f":{port}" in (DOCS / "Caddyfile").read_text("utf-8")


def test_each_proxy_reads_its_file_and_knows_every_team() -> None:
    names = [name for name, each in composed()[1]["services"].items() if each["image"] == "hindsight"]

    assert set(proxies()) == set(PROXIES)
    for program, each in proxies().items():
        file, place, mode = each["volumes"][0].split(":")
        text = (DOCS / file).read_text("utf-8")
        assert (place, mode) == (PROXIES[program], "ro")
        assert each["depends_on"] == names
        assert set(re.findall(r"(\w+):8888", text)) == set(names)


def test_the_proxy_s_port_is_the_one_that_nginx_listens_on() -> None:
    [listening] = re.findall(r"^\s+listen (\d+);", (DOCS / "nginx.conf").read_text("utf-8"), re.MULTILINE)

    assert proxies()["nginx"]["ports"] == [f"80:{listening}"]


def test_every_setting_that_is_named_exists() -> None:
    named = set(re.findall(rf"{PREFIX}[A-Z_]+", TEXT))
    given = {name for each in teams().values() for name in each.get("environment", {})}

    assert named | given <= {variable(name) for name in Settings.model_fields} | {CLIENT_KEY}


def test_every_command_about_keys_works(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    commands = re.findall(r"^ {4}docker compose .*? (hindsight keys .*)$", TEXT, re.MULTILINE)
    statuses = [main([*shlex.split(command)[1:], "--data-dir", str(tmp_path)]) for command in commands]

    assert len(commands) >= 4
    assert statuses == [0] * len(commands), capsys.readouterr().err


def test_every_metric_that_is_named_exists() -> None:
    meters = Meters()
    meters.watch("calls_in_flight", "", lambda: 0)
    meters.refused("INTERNAL")
    known = set(re.findall(r"^(hindsight_\w+)", meters.exposition({}, 0, Sights((), 0, 0)).decode(), re.MULTILINE))

    named = set(re.findall(r"`(hindsight_\w+)`", TEXT))
    assert named
    assert named <= known


@pytest.mark.parametrize("snippet", re.findall(r"`(\[\{.*?\}\])`", TEXT))
def test_every_snippet_of_json_is_json(snippet: str) -> None:
    assert json.loads(snippet)
