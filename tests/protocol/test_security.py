"""Who gets in where, over a real socket: every door with every kind of key, and what is told to whom."""

from __future__ import annotations

import json
import logging
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import cast
from urllib.parse import urlsplit

import anyio
import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from hindsight.cli import main
from hindsight.record import JsonObject
from hindsight.settings import Settings
from hindsight.telemetry import TextLines
from tests.serving import BOUND, Serving, environment_with, serving

from .doors import Wire, call, code, opened, request, served, structured

pytestmark = pytest.mark.anyio

STREAM = ("GET", "/mcp/team-a/sse")
MESSAGES = ("POST", "/mcp/team-a/messages?session_id=00000000000000000000000000000000")
STREAMABLE = ("POST", "/mcp/team-a")
WRITING = [("POST", "/banks/team-a/memories"), ("PUT", "/banks/team-a/memories"), ("DELETE", "/banks/team-a")]
OF_A_BANK = [STREAM, ("HEAD", "/mcp/team-a/sse"), MESSAGES, STREAMABLE, ("GET", "/banks/team-a/memories"), *WRITING]
DOORS = [*OF_A_BANK, ("GET", "/banks"), ("GET", "/metrics")]
NOWHERE = [
    ("GET", "/"),
    ("GET", "/nothing"),
    ("GET", "/mcp/a%2Fb/sse"),
    ("GET", "/mcp/../metrics"),
    ("GET", "/healthz/../metrics"),
    ("GET", "/mcp/healthz"),
    ("POST", "/mcp/healthz"),
    ("PATCH", "/mcp/team-a"),
    ("OPTIONS", "/mcp/team-a"),
]
CANARY = "canary-in-the-content"
NO_KEY: dict[str, str] = {}


@dataclass(frozen=True, slots=True)
class Guarded:
    """A server with keys: headers by what the key is, its data folder and its audit file."""

    serving: Serving
    data: Path
    audit: Path
    keys: dict[str, str]

    @property
    def url(self) -> str:
        return self.serving.url

    def headers(self, name: str) -> dict[str, str]:
        """The headers that carry a key."""
        return {"x-api-key": self.keys[name]}

    def ask(self, door: tuple[str, str], headers: dict[str, str], **more: object) -> httpx.Response:
        """Knock at a door; of a stream, its status and headers are enough."""
        method, path = door
        with httpx.stream(method, self.url + path, headers=headers, timeout=BOUND, **more) as response:  # type: ignore[arg-type]  # httpx's own
            if response.headers.get("content-type") != "text/event-stream":
                response.read()
            return response


def create(data: Path, capsys: pytest.CaptureFixture[str] | None, name: str, *more: str) -> str:
    """Make a key with the command line; what it prints is the key."""
    raise NotImplementedError
