"""A bug at a door beside MCP, over a real socket: what its client is told, and what the log and the audit file have."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from io import StringIO
from pathlib import Path

import anyio
import httpx
import pytest
from starlette.types import Receive, Scope, Send

from hindsight.bank import Bank
from hindsight.http.edge import Edge
from hindsight.http.paths import BankRoutes, Route
from hindsight.http.requests import Requests
from hindsight.record import BankId
from hindsight.session import MemoryServer
from hindsight.settings import read_settings
from hindsight.telemetry import AuditFile, TextLines
from tests.hosting import Host, hosted, listener, url_of
from tests.serving import BOUND

pytestmark = pytest.mark.anyio

CANARY = "what-a-client-said"


@asynccontextmanager
async def _no_bank(bank_id: BankId) -> AsyncIterator[Bank]:
    raise AssertionError("nobody asks for a bank")
    yield


async def _broken(scope: Scope, receive: Receive, send: Send) -> None:
    raise LookupError(CANARY)


async def _broken_half_way(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"half ", "more_body": True})
    raise LookupError(CANARY)


class Held:
    """A door that never answers; `entered` once somebody stands there."""

    def __init__(self) -> None:
        self.entered = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.entered.set()
        await asyncio.Event().wait()


@asynccontextmanager
async def served(edge: Edge) -> AsyncIterator[str]:
    with listener() as listening:
        async with hosted(Host(edge, lifespan="off", timeout_graceful_shutdown=0), listening):
            yield url_of(listening)


@pytest.fixture
async def doors(tmp_path: Path) -> AsyncIterator[tuple[str, list[str]]]:
    """The URL of doors that break, watched and audited, and the codes of errors that were counted."""
    counted: list[str] = []
    audit = AuditFile(tmp_path / "audit.jsonl", 1_000_000)
    requests = Requests(MemoryServer([], _no_bank, read_settings(), observer=audit))
    routes = [
        requests.watched("broken", Route("/broken", {"GET": _broken})),
        requests.watched("half", Route("/half", {"GET": _broken_half_way})),
        Route("/unwatched", {"GET": _broken}),
    ]
    async with served(Edge(BankRoutes(routes), counted.append)) as url:
        yield url, counted
    audit.close()


@pytest.fixture
def log() -> Iterator[StringIO]:
    """What uvicorn logs, as the server writes it."""
    written = StringIO()
    handler, logger = logging.StreamHandler(written), logging.getLogger("uvicorn.error")
    handler.setFormatter(TextLines("%(message)s"))
    logger.addHandler(handler)
    yield written
    logger.removeHandler(handler)


def audited(folder: Path) -> list[tuple[str, str]]:
    lines = [json.loads(line) for line in (folder / "audit.jsonl").read_text("utf-8").splitlines()]
    return [(line["tool"], line["outcome"]) for line in lines]


@pytest.mark.parametrize("path", ["/broken", "/unwatched"])
async def test_a_bug_is_told_as_an_error_under_an_id_that_the_log_has_too(
    doors: tuple[str, list[str]], path: str, log: StringIO
) -> None:
    url, counted = doors
    async with httpx.AsyncClient(base_url=url, timeout=BOUND) as http:
        met = await http.get(path)

    error = met.json()["error"]
    name = error["message"].split()[-1]
    assert (met.status_code, met.headers["content-type"]) == (500, "application/json")
    assert error == {
        "code": "INTERNAL",
        "message": f"internal error; the log has it under {name}",
        "next_action": "Try again once; if it fails again, give the operator the id in the message.",
    }
    assert counted == ["INTERNAL"]
    assert f"LookupError call={name}" in log.getvalue()
    assert "in _broken\n" in log.getvalue()
    assert CANARY not in log.getvalue()


async def test_a_bug_after_the_answer_began_breaks_it_off_and_is_logged(
    doors: tuple[str, list[str]], log: StringIO
) -> None:
    async with httpx.AsyncClient(base_url=doors[0], timeout=BOUND) as http:
        with pytest.raises(httpx.RemoteProtocolError):
            await http.get("/half")

    assert "in _broken_half_way\n" in log.getvalue()
    assert CANARY not in log.getvalue()


async def test_a_bug_is_audited_as_an_internal_error(doors: tuple[str, list[str]], tmp_path: Path) -> None:
    async with httpx.AsyncClient(base_url=doors[0], timeout=BOUND) as http:
        await http.get("/broken")
        with pytest.raises(httpx.RemoteProtocolError):
            await http.get("/half")

    assert audited(tmp_path) == [("broken.get", "INTERNAL"), ("half.get", "INTERNAL")]


async def test_a_request_that_is_cut_off_at_the_end_of_the_server_is_no_fault_in_the_log(
    log: StringIO,
) -> None:
    held = Held()
    edge = Edge(held)
    async with AsyncExitStack() as stack:
        async with served(edge) as url:
            at = httpx.URL(url)
            client = await stack.enter_async_context(await anyio.connect_tcp(at.host, at.port or 0))
            await client.send(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            with anyio.fail_after(BOUND):
                await held.entered.wait()
            edge.stopped = True
        with anyio.fail_after(BOUND):
            told = b"".join([part async for part in client])

    assert told.startswith(b"HTTP/1.1 500 ")
    assert "CancelledError" not in log.getvalue()
