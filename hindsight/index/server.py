"""The vector index on a Chroma server: one collection per bank, whose name only the bank's own ledger knows.

The server may be down at any time, also from the start, and come back with less than it had. So an index is stale with
the first call that fails, and a server that has just failed is left alone for REST seconds, in which calls fail at
once. Requests are awaited and not put into threads, so that one which hangs holds up nothing else. chromadb's own
client is left out: it waits without limits, and takes a second to import.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import httpx
import numpy as np
import numpy.typing as npt
import orjson

from hindsight.embedding import Vectors
from hindsight.errors import IndexUnavailable
from hindsight.index import Keys, Nearest
from hindsight.ledger import Ledger, Tie
from hindsight.record import BankId

CHUNK = 100  # records a write
PAGE = 10_000  # ids a read
SEARCH_EF = 400
REST = 2.0
# Seconds that requests may take: what a recall waits for, what tells whether the server is there at all, a write, and
# the first look at a collection, which loads it.
SEARCH, KNOCK, WRITE, LOAD = 1.0, 2.0, 10.0, 30.0
BROKEN = 5.0  # seconds that a collection fails before it is made anew; less may pass by itself
_COLLECTIONS = "tenants/default_tenant/databases/default_database/collections"
_JSON = {"content-type": "application/json"}
_LOOPBACK = ("localhost", "127.0.0.1", "::1")

_T = TypeVar("_T")

logger = logging.getLogger(__name__)


class ChromaServer:
    """A Chroma server, whose connections all banks share. It is asked for nothing before an index is opened."""

    def __init__(self, url: str) -> None:
        # A proxy of the environment is for the world outside.
        outside = httpx.URL(url).host not in _LOOPBACK
        self._client = httpx.AsyncClient(base_url=f"{url.rstrip('/')}/api/v2/", timeout=None, trust_env=outside)
        self._rest_until = 0.0  # not 0 while the server is down
        self._broken: dict[str, float] = {}  # collections that fail, each since when

    async def open(self, bank: BankId, dimension: int, ledger: Ledger, embedder: str = "") -> ServerIndex:
        """Use the collection that is tied to the ledger, or make one. Raises IndexUnavailable.

        One of another dimension or embedder is replaced, and one of an era that the ledger does not know: a copy of the
        ledger used it, or the ledger was put back, repaired, or used without the server. So is one that the server
        fails on again and again: a kill while it writes its files leaves it such.
        """
        tie = await asyncio.to_thread(ledger.tie) or Tie(uuid.uuid4().hex)
        found = await self._find(tie.uid)
        if found and (fault := self._fault(found, tie, dimension, embedder)):
            logger.warning("the collection of bank %s %s; it is made anew", bank.text, fault)
            await self.drop(tie.uid)
            tie, found = Tie(uuid.uuid4().hex), None
        era = uuid.uuid4().hex
        # Both eras count until the collection knows the new one.
        await asyncio.to_thread(ledger.retie, Tie(tie.uid, (found.era, era) if found else (era,)))
        about = {"bank": bank.text, "dimension": dimension, "embedder": embedder, "era": era}
        id = await self._renew(found.id, about) if found else await self._create(tie.uid, about)
        await asyncio.to_thread(ledger.retie, Tie(tie.uid, (era,)))
        return ServerIndex(self, id, rebuilt=await self._look_at(tie.uid, id) == 0)

    async def drop(self, uid: str) -> None:
        """Remove the collection of a ledger, if there is one. Raises IndexUnavailable."""
        with contextlib.suppress(_Missing):
            await self.ask("DELETE", _name(uid), bound=WRITE)
        self._broken.pop(uid, None)

    async def ask(self, method: str, path: str, body: object = None, *, bound: float) -> Any:
        """What the server answers to a request about collections within `bound` seconds. Raises IndexUnavailable."""
        self._respect_rest()
        content = None if body is None else orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY)
        try:
            async with asyncio.timeout(bound):
                response = await self._client.request(
                    method, f"{_COLLECTIONS}/{path}".rstrip("/"), content=content, headers=_JSON if content else None
                )
        except (httpx.HTTPError, TimeoutError) as error:
            self._rest(error)
            raise IndexUnavailable("the vector index does not answer at the moment") from error
        self._back()
        if response.status_code == 404:
            raise _Missing("the vector index is not there any more")
        if response.status_code != 200:
            logger.debug("the Chroma server answers %d: %s", response.status_code, response.text[:500])
            failure = _Failing if response.status_code == 500 else IndexUnavailable
            raise failure("the vector index does not work at the moment")
        with _understanding():
            return orjson.loads(response.content)

    async def aclose(self) -> None:
        """Close the connections, once no index is used any more."""
        await self._client.aclose()

    async def _find(self, uid: str) -> _Found | None:
        try:
            found = await self.ask("GET", _name(uid), bound=KNOCK)
        except _Missing:
            return None
        with _understanding():
            about = found["metadata"] or {}
            return _Found(str(found["id"]), about.get("dimension"), about.get("embedder"), str(about.get("era")))

    def _fault(self, found: _Found, tie: Tie, dimension: int, embedder: str) -> str:
        if found.era not in tie.eras:
            return "is not of its ledger's latest use"
        if (made_for := (found.dimension, found.embedder)) != (dimension, embedder):
            return f"was made for {made_for}, not {(dimension, embedder)}"
        since = self._broken.get(tie.uid)
        return "does not work" if since is not None and time.monotonic() - since >= BROKEN else ""

    async def _create(self, uid: str, about: dict[str, object]) -> str:
        shape = {"hnsw": {"space": "cosine", "ef_search": SEARCH_EF}}
        made = await self.ask("POST", "", {"name": _name(uid), "metadata": about, "configuration": shape}, bound=WRITE)
        with _understanding():
            return str(made["id"])

    async def _renew(self, id: str, about: dict[str, object]) -> str:
        await self.ask("PUT", id, {"new_metadata": about}, bound=WRITE)
        return id

    async def _look_at(self, uid: str, id: str) -> int:
        """How many records a collection has; remembers whether it works."""
        try:
            with _understanding():
                count = int(await self.ask("GET", f"{id}/count", bound=LOAD))
        except _Failing:
            self._broken.setdefault(uid, time.monotonic())
            raise
        self._broken.pop(uid, None)
        return count

    def _respect_rest(self) -> None:
        now = time.monotonic()
        if now < self._rest_until:
            raise IndexUnavailable("the vector index does not answer at the moment")
        if self._rest_until:
            self._rest_until = now + REST  # this call finds out, the others do not wait with it

    def _rest(self, error: Exception) -> None:
        if not self._rest_until:
            logger.warning("the Chroma server does not answer: %r; vectors are searched in the ledger", error)
        self._rest_until = time.monotonic() + REST

    def _back(self) -> None:
        if self._rest_until:
            logger.info("the Chroma server answers again")
        self._rest_until = 0.0


class ServerIndex:
    """One bank's collection; several calls may run at once. Get one from a ChromaServer."""

    def __init__(self, server: ChromaServer, id: str, *, rebuilt: bool) -> None:
        self.rebuilt = rebuilt
        self.stale = False
        self._server = server
        self._id = id

    async def upsert(self, keys: Keys, vectors: Vectors) -> None:
        """As VectorIndex says."""
        for start in range(0, len(keys), CHUNK):
            part = slice(start, start + CHUNK)
            rows = [base64.b64encode(row.tobytes()).decode() for row in np.asarray(vectors[part], "<f4")]
            await self._ask("POST", "upsert", {"ids": _ids(keys[part]), "embeddings": rows}, bound=WRITE, read=bool)

    async def delete(self, keys: Keys) -> None:
        """As VectorIndex says."""
        for start in range(0, len(keys), CHUNK):
            await self._ask("POST", "delete", {"ids": _ids(keys[start : start + CHUNK])}, bound=WRITE, read=bool)

    async def nearest(self, vector: npt.NDArray[np.float32], count: int) -> Nearest:
        """As VectorIndex says; approximate. Takes SEARCH seconds at most."""
        sought = {"query_embeddings": vector[np.newaxis], "n_results": count, "include": ["distances"]}

        def read(found: Any) -> Nearest:
            return Nearest(np.array(found["ids"][0], np.int64), 1 - np.array(found["distances"][0], np.float32))

        return await self._ask("POST", "query", sought, bound=SEARCH, read=read)

    async def keys(self) -> Keys:
        """As VectorIndex says; a page at a time."""
        pages: list[list[str]] = []
        while not pages or len(pages[-1]) == PAGE:
            page = {"limit": PAGE, "offset": len(pages) * PAGE, "include": []}
            pages.append(await self._ask("POST", "get", page, bound=WRITE, read=lambda found: list(found["ids"])))
        return np.unique(np.array([key for page in pages for key in page], np.int64))

    async def count(self) -> int:
        """As VectorIndex says."""
        return await self._ask("GET", "count", bound=WRITE, read=int)

    async def aclose(self) -> None:
        """As VectorIndex says."""
        self.stale = True

    async def _ask(self, method: str, what: str, body: object = None, *, bound: float, read: Callable[[Any], _T]) -> _T:
        if self.stale:
            raise IndexUnavailable("the vector index is closed")
        try:
            answer = await self._server.ask(method, f"{self._id}/{what}", body, bound=bound)
            with _understanding():
                return read(answer)
        except IndexUnavailable:
            self.stale = True
            raise


@dataclass(frozen=True, slots=True)
class _Found:
    """A collection, with what it was made for and whose it is."""

    id: str
    dimension: object
    embedder: object
    era: str


class _Missing(IndexUnavailable):
    """There is no such collection."""


class _Failing(IndexUnavailable):
    """The server failed on this collection."""


@contextlib.contextmanager
def _understanding() -> Iterator[None]:
    """Whatever answers with something else is no Chroma server."""
    try:
        yield
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise IndexUnavailable("the vector index does not work at the moment") from error


def _name(uid: str) -> str:
    return f"hindsight-{uid}"


def _ids(keys: Keys) -> list[str]:
    return [str(key) for key in keys.tolist()]
