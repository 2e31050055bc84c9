"""How a campaign talks to a server that may die at any moment: what came before it died is told, then Died."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator
from contextlib import aclosing
from types import TracebackType
from typing import Any, cast
from urllib.parse import urlsplit

from hindsight.record import JsonObject
from tests.serving import BOUND

_TYPES = "Content-Type: application/json\r\nAccept: application/json, text/event-stream\r\n"


class Died(Exception):
    """The server is gone; what it had not answered may be stored or not."""


class Refused(Exception):
    """The server answered with an error; the text is its code."""


class Wire:
    """One HTTP/1.1 connection, one request at a time, as light as can be: clients share the server's cores."""

    def __init__(self, url: str) -> None:
        self._where = urlsplit(url)

    async def __aenter__(self) -> Wire:
        try:
            self._reader, self._writer = await asyncio.open_connection(self._where.hostname, self._where.port)
        except OSError as error:
            raise Died from error
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._writer.close()

    async def lines(self, method: str, path: str, body: bytes = b"") -> AsyncGenerator[bytes, None]:
        """The lines of an answer, each as it comes. Raises Died, Refused."""
        head = f"{method} {path} HTTP/1.1\r\nHost: {self._where.netloc}\r\nContent-Length: {len(body)}\r\n{_TYPES}\r\n"
        self._writer.write(head.encode() + body)
        rest = b""
        try:
            async with asyncio.timeout(BOUND), aclosing(self._pieces()) as pieces:
                async for piece in pieces:
                    *whole, rest = (rest + piece).split(b"\n")
                    for line in whole:
                        yield line
        except (OSError, EOFError) as error:
            raise Died from error
        if rest:
            yield rest

    async def ask(self, method: str, path: str, body: bytes = b"") -> JsonObject:
        """The object that a request is answered with. Raises Died, Refused."""
        return cast(JsonObject, json.loads(b"\n".join([line async for line in self.lines(method, path, body)])))

    async def call(self, bank: str, tool: str, **arguments: object) -> JsonObject:
        """The structured answer of a tool. Raises Died, Refused."""
        params = {"name": tool, "arguments": arguments}
        request: JsonObject = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        result: Any = (await self.ask("POST", f"/mcp/{bank}", json.dumps(request).encode()))["result"]
        if result["isError"]:
            raise Refused(result["structuredContent"]["error"]["code"])
        return cast(JsonObject, result["structuredContent"])

    async def _pieces(self) -> AsyncGenerator[bytes, None]:
        headers = await self._reader.readuntil(b"\r\n\r\n")
        if not headers.startswith(b"HTTP/1.1 2"):
            raise Refused(headers.split(b"\r\n")[0].decode())
        if found := re.search(rb"content-length: (\d+)", headers, re.IGNORECASE):
            yield await self._reader.readexactly(int(found[1]))
            return
        while size := int((await self._reader.readuntil(b"\r\n")), 16):
            yield (await self._reader.readexactly(size + 2))[:-2]
        await self._reader.readuntil(b"\r\n")
