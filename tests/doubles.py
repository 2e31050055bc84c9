"""Doubles that talk over real sockets: an embedding service that speaks OpenAI's API and fails as it is told to."""

from __future__ import annotations

import hashlib
import json
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from starlette.types import Receive, Scope, Send

from hindsight.embedding import Vectors
from tests.hosting import Host, listener, url_of
from tests.serving import BOUND

Embed = Callable[[Sequence[str]], Awaitable[Vectors]]
Reply = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Fault:
    """What an answer has wrong with it.

    `status` answers with an error, and `retry_after` with it; `hangs` with nothing, until the client has left; `cut`
    breaks off in the middle; `change` makes the body another one.
    """

    status: int = 200
    retry_after: str | None = None
    hangs: bool = False
    cut: bool = False
    change: Callable[[Reply], object] = lambda reply: reply


def backwards(reply: Reply) -> object:
    """The vectors in another order, each with its index."""
    return {**reply, "data": reply["data"][::-1]}


def one_short(reply: Reply) -> object:
    """A vector less than texts."""
    return {**reply, "data": reply["data"][:-1]}


def shorter(reply: Reply) -> object:
    """Vectors of another dimension."""
    return {**reply, "data": [{**each, "embedding": each["embedding"][:-1]} for each in reply["data"]]}


def not_a_number(reply: Reply) -> object:
    """Vectors with a NaN in them."""
    return {**reply, "data": [{**each, "embedding": [float("nan"), *each["embedding"][1:]]} for each in reply["data"]]}


def too_large(reply: Reply) -> object:
    """Vectors with a number that no float holds."""
    return {**reply, "data": [{**each, "embedding": [10**400, *each["embedding"][1:]]} for each in reply["data"]]}


def zeros(reply: Reply) -> object:
    """Vectors of no direction."""
    return {**reply, "data": [{**each, "embedding": [0.0] * len(each["embedding"])} for each in reply["data"]]}


def rows_of(texts: Sequence[str], dimension: int = 64, seed: int = 0) -> Vectors:
    """Vectors that are as near as their texts share words, of any length; another seed is another model."""
    rows = np.zeros((len(texts), dimension), np.float32)
    for row, text in zip(rows, texts, strict=True):
        for word in text.lower().split() or [""]:
            digest = hashlib.blake2b(f"{seed} {word.strip('.,?!:')}".encode(), digest_size=8).digest()
            row += np.random.default_rng(int.from_bytes(digest, "little")).standard_normal(dimension)
    return rows


def by_words(dimension: int = 64, seed: int = 0) -> Embed:
    """`rows_of` as a service embeds."""

    async def embed(texts: Sequence[str]) -> Vectors:
        return rows_of(texts, dimension, seed)

    return embed


@dataclass(eq=False)
class Provider:
    """An embedding service. `faults` are used up one a request, then `always` if it is set; `asked` are the bodies.

    `refused` is a text, and what a request that has it among others is answered with.
    """

    embed: Embed
    faults: deque[Fault] = field(default_factory=deque)
    always: Fault | None = None
    refused: tuple[str, Fault] | None = None
    asked: list[Reply] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    url: str = ""
    was_asked: threading.Event = field(default_factory=threading.Event)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = b""
        while (event := await receive())["type"] == "http.request":
            body += event.get("body", b"")
            if not event.get("more_body"):
                break
        self.keys += [value.decode() for name, value in scope["headers"] if name == b"authorization"]
        self.asked.append(json.loads(body))
        fault = self._fault(self.asked[-1])
        self.was_asked.set()
        if fault.hangs:
            while (await receive())["type"] != "http.disconnect":
                pass
            return
        reply = json.dumps(await self._reply(self.asked[-1], fault)).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(reply)).encode())]
        if fault.retry_after is not None:
            headers.append((b"retry-after", fault.retry_after.encode()))
        await send({"type": "http.response.start", "status": fault.status, "headers": headers})
        # Too few bytes, and uvicorn closes the connection.
        await send({"type": "http.response.body", "body": reply[:10] if fault.cut else reply, "more_body": fault.cut})

    def _fault(self, asked: Reply) -> Fault:
        if self.refused and self.refused[0] in asked["input"]:
            return self.refused[1]
        return self.faults.popleft() if self.faults else self.always or Fault()

    async def _reply(self, asked: Reply, fault: Fault) -> object:
        if fault.status != 200:
            return {"error": {"message": f"no: {asked['input']}", "type": "error", "code": None}}
        rows = await self.embed(asked["input"])
        data = [
            {"object": "embedding", "index": place, "embedding": row[: asked.get("dimensions")].tolist()}
            for place, row in enumerate(rows)
        ]
        return fault.change({"object": "list", "model": asked["model"], "data": data, "usage": {}})


@contextmanager
def providing(embed: Embed, port: int = 0) -> Iterator[Provider]:
    """Run an embedding service at `url`, which ends in /v1, on this port or a free one."""
    with listener(port) as listening:
        provider = Provider(embed, url=f"{url_of(listening)}/v1")
        server = Host(provider, lifespan="off", access_log=False)
        thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
        thread.start()
        try:
            yield provider
        finally:
            server.should_exit = True
            thread.join(BOUND)
