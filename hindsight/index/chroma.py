"""The vector index on an embedded Chroma: one folder per bank.

Chroma holds the GIL while it writes, so a write goes in chunks small enough that the event loop never waits long; and
whatever rewrites an index's files must seal them (`segments`), so nothing but this module may write to one.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TypeVar, cast

import anyio
import anyio.to_thread
import chromadb
import numpy as np
import numpy.typing as npt
from chromadb.api.client import Client
from chromadb.api.shared_system_client import SharedSystemClient
from chromadb.config import Settings
from chromadb.errors import ChromaError, NotFoundError

from hindsight.embedding import Vectors
from hindsight.errors import IndexUnavailable
from hindsight.index import Keys, Nearest, segments
from hindsight.record import BankId

CHUNK = 50  # records a write: 25 stalls the loop as long and is a third slower, 100 stalls it for over 60 ms
PAGE = 10_000  # ids a read: from 32,767 on SQLite has too few variables
MIN_FREE = 32 * 1024 * 1024  # bytes: an upsert on a full disk does not return for minutes
SEARCH_EF = 400

_log = logging.getLogger(__name__)
_T = TypeVar("_T")


class ChromaIndex:
    """One bank's collection, one call at a time. Get one from `open_chroma`.

    `client` holds what `aclose` lets go of. What it holds stays known whatever fails, so it is never stale.
    """

    stale = False

    def __init__(self, client: ExitStack, collection: chromadb.Collection, folder: Path, *, rebuilt: bool) -> None:
        self.rebuilt = rebuilt
        self._client = client
        self._collection = collection
        self._folder = folder
        self._turns = anyio.CapacityLimiter(1)
        self._closed = False

    async def upsert(self, keys: Keys, vectors: Vectors) -> None:
        """As VectorIndex says; refuses while less than MIN_FREE bytes are free."""
        for start in range(0, len(keys), CHUNK):
            part = slice(start, start + CHUNK)
            await self._call(partial(self._upsert, _ids(keys[part]), vectors[part]))

    async def delete(self, keys: Keys) -> None:
        """As VectorIndex says; refuses while less than MIN_FREE bytes are free."""
        for start in range(0, len(keys), CHUNK):
            await self._call(partial(self._delete, _ids(keys[start : start + CHUNK])))

    async def nearest(self, vector: npt.NDArray[np.float32], count: int) -> Nearest:
        """As VectorIndex says; approximate."""
        return await self._call(partial(self._nearest, vector, count))

    async def keys(self) -> Keys:
        """As VectorIndex says; a page at a time, others get their turn in between."""
        pages: list[list[str]] = []
        while not pages or len(pages[-1]) == PAGE:
            pages.append(await self._call(partial(self._page, len(pages) * PAGE)))
        return np.unique(np.array([key for page in pages for key in page], dtype=np.int64))

    async def count(self) -> int:
        """As VectorIndex says."""
        return await self._call(self._collection.count)

    async def aclose(self) -> None:
        """As VectorIndex says."""
        with _Adapting():
            await anyio.to_thread.run_sync(self._close, limiter=self._turns)

    async def _call(self, work: Callable[[], _T]) -> _T:
        # The thread is waited for even when the caller is cancelled: nothing may close under a running call.
        with _Adapting():
            return await anyio.to_thread.run_sync(partial(self._unless_closed, work), limiter=self._turns)

    def _unless_closed(self, work: Callable[[], _T]) -> _T:
        if self._closed:
            raise IndexUnavailable("the vector index is closed")
        return work()

    def _upsert(self, ids: list[str], vectors: Vectors) -> None:
        _check_space(self._folder)
        with _sealing(self._folder):
            self._collection.upsert(ids=ids, embeddings=vectors)

    def _delete(self, ids: list[str]) -> None:
        _check_space(self._folder)
        with _sealing(self._folder):
            self._collection.delete(ids=ids)

    def _nearest(self, vector: npt.NDArray[np.float32], count: int) -> Nearest:
        found = self._collection.query(query_embeddings=vector[np.newaxis], n_results=count, include=["distances"])
        distances = np.array((found["distances"] or [[]])[0], dtype=np.float32)
        return Nearest(np.array(found["ids"][0], dtype=np.int64), 1 - distances)

    def _page(self, start: int) -> list[str]:
        return self._collection.get(limit=PAGE, offset=start, include=[])["ids"]

    def _close(self) -> None:
        self._closed = True
        self._client.close()  # an ExitStack: the second time it does nothing


async def open_chroma(folder: Path, bank: BankId, dimension: int, embedder: str = "") -> ChromaIndex:
    """Open the embedded index of `bank` under `folder`, or make it. One that is torn, or of another dimension or
    embedder, is moved aside and an empty one made; `rebuilt` then says so.

    At most one may be open on a folder, in all processes. Raises IndexUnavailable.
    """
    with _Adapting():
        return await anyio.to_thread.run_sync(_open_or_replace, folder, bank, dimension, embedder)


async def keys_in(folder: Path, bank: BankId, dimension: int) -> Keys:
    """The keys that the embedded index under `folder` holds; one that can't be used is left as it is.

    Call it only when no segment is torn. Raises IndexUnavailable, also when it is another bank's or dimension's.
    """
    with _Adapting():
        index = await anyio.to_thread.run_sync(_open_as_it_is, folder, bank, dimension)
    try:
        return await index.keys()
    finally:
        await index.aclose()


class _Adapting:
    """Turns what Chroma raises into IndexUnavailable.

    Besides its own errors these are SQLite's, ValueError, a plain Exception where it knows no better, and for a failed
    Rust assertion a BaseException that no `except` here could name.
    """

    _errors = (ChromaError, sqlite3.Error, OSError, ValueError)

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is Exception or isinstance(error, self._errors) or (kind and kind.__name__ == "PanicException"):
            raise IndexUnavailable("the vector index does not work at the moment") from error


def _open_or_replace(folder: Path, bank: BankId, dimension: int, embedder: str) -> ChromaIndex:
    folder.mkdir(exist_ok=True)  # but not the bank's own: one that was removed stays so
    if not (folder / segments.DATABASE).exists():
        _check_space(folder)
    if torn := segments.torn_segments(folder):
        _replace(folder, f"torn: {', '.join(path.name for path in torn)}")
        return _open(folder, bank, dimension, embedder)
    try:
        return _open(folder, bank, dimension, embedder)
    except (ChromaError, _OtherVectors) as error:
        # Not what is only so now: a locked or unreadable database was found before, a full disk is by _replace.
        _replace(folder, f"unusable: {error}")
        return _open(folder, bank, dimension, embedder)


def _replace(folder: Path, reason: str) -> None:
    _check_space(folder)
    _log.warning("the vector index %s is %s; it is rebuilt", folder.parent.name, reason)
    segments.quarantine(folder)
    folder.mkdir()


def _open(folder: Path, bank: BankId, dimension: int, embedder: str) -> ChromaIndex:
    database = folder / segments.DATABASE
    if not (database.exists() and database.stat().st_size):
        _make_database(database)
    with ExitStack() as opened:
        collection = _collection(_client(folder, opened), bank, dimension, embedder)
        return _loaded(folder, collection, opened)


def _open_as_it_is(folder: Path, bank: BankId, dimension: int) -> ChromaIndex:
    with ExitStack() as opened:
        collection = _client(folder, opened).get_collection(bank.folder, embedding_function=None)
        if (collection.metadata or {}).get("dimension") != dimension:
            raise IndexUnavailable("the vector index was made for another dimension")
        return _loaded(folder, collection, opened)


def _client(folder: Path, opened: ExitStack) -> Client:
    opened.callback(_forget, folder)
    client = cast(Client, chromadb.PersistentClient(folder, _settings()))
    opened.callback(client.close)
    return client


def _loaded(folder: Path, collection: chromadb.Collection, opened: ExitStack) -> ChromaIndex:
    with _sealing(folder):
        held = collection.count()  # loads the segment: what cannot be loaded shows here
    return ChromaIndex(opened.pop_all(), collection, folder, rebuilt=held == 0)


def _settings() -> Settings:
    return Settings(anonymized_telemetry=False)


class _OtherVectors(Exception):
    """The collection holds vectors of another embedder or dimension. To remove them all and put others in their places
    would leave some that a search can't reach: 0.7 % of 20,000."""


def _collection(client: Client, bank: BankId, dimension: int, embedder: str) -> chromadb.Collection:
    """The bank's collection, made when it is missing. Raises _OtherVectors, ChromaError."""
    # Not get_or_create: it would overwrite the dimension that is compared here.
    try:
        collection = client.get_collection(bank.folder, embedding_function=None)
    except NotFoundError:
        metadata = {
            "bank": bank.text,
            "dimension": dimension,
            "embedder": embedder,
            "hnsw:space": "cosine",
            "hnsw:search_ef": SEARCH_EF,
        }
        return client.create_collection(bank.folder, metadata=metadata, embedding_function=None)
    about = collection.metadata or {}
    if (found := (about.get("dimension"), about.get("embedder"))) != (dimension, embedder):
        raise _OtherVectors(f"made for {found}, not {(dimension, embedder)}")
    return collection


def _forget(folder: Path) -> None:
    # A client that fails while it starts stays registered, and the next one for the same path would get its ruins.
    SharedSystemClient._identifier_to_system.pop(str(folder), None)


def _make_database(database: Path) -> None:
    """Make it with a log that is written ahead; before Chroma opens it, which brings an SQLite of its own."""
    with contextlib.closing(sqlite3.connect(database)) as connection:
        connection.execute("PRAGMA journal_mode=WAL")


@contextlib.contextmanager
def _sealing(folder: Path) -> Iterator[None]:
    """Seal the files if they change within; not when that fails, since nobody knows what they are then."""
    before = segments.stamp(folder)
    yield
    if segments.stamp(folder) != before and not segments.seal(folder):
        _log.warning("Chroma left files of the vector index %s cut short; opening it rebuilds it", folder.parent.name)


def _check_space(folder: Path) -> None:
    if shutil.disk_usage(folder).free < MIN_FREE:
        raise IndexUnavailable("the vector index waits for free disk space")


def _ids(keys: Keys) -> list[str]:
    return [str(key) for key in keys.tolist()]
