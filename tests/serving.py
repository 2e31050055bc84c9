"""A real `hindsight serve` in a process of its own, and the official client to talk to it."""

from __future__ import annotations

import http.client
import os
import signal
import ssl
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, cast
from urllib.parse import quote

import anyio
import httpx
import httpx2
from mcp import ClientSession
from mcp.client.sse import sse_client
from mcp.types import CallToolResult, TextContent

from hindsight.record import JsonObject
from hindsight.settings import PREFIX, variable

BOUND = 60.0  # seconds that any wait of a test may take
HINDSIGHT = (sys.executable, "-m", "hindsight")
# Nothing here speaks TLS. A client with a context of its own loads all certificates first, which takes 25 ms.
NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class Log:
    """What a process writes to a pipe, line by line as it comes."""

    def __init__(self, pipe: IO[str]) -> None:
        self.lines: list[str] = []
        self._news = threading.Condition()
        self._ended = False
        self._reader = threading.Thread(target=self._read, args=(pipe,), daemon=True)
        self._reader.start()

    def wait_for(self, words: str) -> str:
        """The first line with these words in it. Fails with the whole log when the process ends without one."""
        with self._news:
            self._news.wait_for(lambda: self._ended or self._found(words), BOUND)
            found = self._found(words)
        assert found is not None, f"no line with {words!r} in:\n" + "".join(self.lines)
        return found

    def close(self) -> None:
        """Return once everything is read that the process wrote."""
        self._reader.join(BOUND)

    def _found(self, words: str) -> str | None:
        return next((line for line in self.lines if words in line), None)

    def _read(self, pipe: IO[str]) -> None:
        for line in pipe:
            with self._news:
                self.lines.append(line)
                self._news.notify_all()
        with self._news:
            self._ended = True
            self._news.notify_all()


@dataclass(eq=False)
class Serving:
    """A server that listens at `url`, which has no slash at its end."""

    process: subprocess.Popen[str]
    log: Log
    url: str = field(init=False)

    def __post_init__(self) -> None:
        self.url = self.log.wait_for("listening on http://").split("listening on ")[1].strip()

    def wait_until_ready(self) -> None:
        """Return once /readyz says that every part is ready."""
        end = time.monotonic() + BOUND
        while (status := get(f"{self.url}/readyz")[0]) != 200:
            assert time.monotonic() < end, f"/readyz answers {status}"
            time.sleep(0.05)  # between two questions: readiness is only told to those who ask

    def stop(self) -> int:
        """End it with SIGTERM; the exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self._ended()

    def kill(self) -> None:
        """End it with SIGKILL."""
        self.process.kill()
        self._ended()

    def _ended(self) -> int:
        status = self.process.wait(BOUND)
        self.log.close()
        return status


@contextmanager
def serving(
    data: Path,
    *,
    ready: bool = True,
    command: Sequence[str] = (*HINDSIGHT, "serve"),
    environment: Mapping[str, str] | None = None,
    **settings: object,
) -> Iterator[Serving]:
    """Serve `data` on a free port with these settings; killed at the end when it still runs.

    A whole `environment` replaces this process's and the settings.
    """
    if environment is None:
        environment = environment_with({"port": 0, "data_dir": data, **settings})
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True, encoding="utf-8") as process:
        assert process.stderr is not None
        log = Log(process.stderr)
        try:
            served = Serving(process, log)
            if ready:
                served.wait_until_ready()
            yield served
        finally:
            process.kill()
            log.close()  # before the pipe is closed under its reader


def environment_with(settings: Mapping[str, object]) -> dict[str, str]:
    """This process's environment with these settings of the server and no others."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
    return {**kept, **{variable(name): str(value) for name, value in settings.items()}}


def get(url: str) -> tuple[int, bytes]:
    """The status and body that a GET answers with; status 0 when nobody listens."""
    try:
        with _DIRECT.open(url, timeout=BOUND) as response:
            return response.status, response.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()
    except (urllib.error.URLError, http.client.HTTPException, ConnectionError):
        return 0, b""


async def until(condition: Callable[[], bool]) -> None:
    """Wait until something that nobody announces has come about."""
    with anyio.fail_after(BOUND):
        while not condition():  # noqa: ASYNC110  # what is waited for has no event
            await anyio.sleep(0.005)


def browser(url: str = "", **options: Any) -> httpx.AsyncClient:
    """An HTTP client, of the server at `url` unless it is asked for whole URLs."""
    return httpx.AsyncClient(base_url=url, **{"timeout": BOUND, "trust_env": False, "verify": NO_TLS, **options})


def sdk_browser(
    headers: dict[str, str] | None = None, timeout: httpx2.Timeout | None = None, auth: httpx2.Auth | None = None
) -> httpx2.AsyncClient:
    """The HTTP client of the official client's own library."""
    return httpx2.AsyncClient(headers=headers, timeout=timeout, auth=auth, trust_env=False, verify=NO_TLS)


@asynccontextmanager
async def client(url: str, bank: str, query: str = "") -> AsyncIterator[ClientSession]:
    """An initialised session of the official client on a bank; `query` ends the URL, from its question mark on."""
    door = f"{url}/mcp/{quote(bank, safe='')}/sse{query}"
    async with (
        sse_client(door, timeout=BOUND, sse_read_timeout=BOUND, httpx_client_factory=sdk_browser) as (reading, writing),
        ClientSession(reading, writing, read_timeout_seconds=BOUND) as session,
    ):
        await session.initialize()
        yield session


async def answer(session: ClientSession, tool: str, **arguments: object) -> JsonObject:
    """The structured answer of a call that succeeds."""
    result = await session.call_tool(tool, arguments)
    assert not result.is_error, text_of(result)
    return cast(JsonObject, result.structured_content)


async def texts(session: ClientSession, query: str, **arguments: object) -> list[str]:
    """The texts that a recall finds, best first."""
    found = await answer(session, "recall", query=query, **arguments)
    return [result["text"] for result in found["results"]]


async def refusal(session: ClientSession, tool: str, **arguments: object) -> JsonObject:
    """The error of a call that is refused: its code, message and next action."""
    result = await session.call_tool(tool, arguments)
    assert result.is_error, text_of(result)
    error: Any = cast(JsonObject, result.structured_content)["error"]
    return cast(JsonObject, error)


def text_of(result: CallToolResult) -> str:
    """The text of an answer."""
    [content] = result.content
    assert isinstance(content, TextContent)
    return content.text
