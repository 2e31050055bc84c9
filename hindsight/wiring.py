"""Names to parts: which embedder, ledger, index and tools a setting means. Imports adapters, and only those in use."""

from __future__ import annotations

import asyncio
import gc
import importlib
import logging
import os
import resource
import shutil
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

import anyio.to_thread

from hindsight.bank import Parts
from hindsight.banks import LEDGER, Banks
from hindsight.checkup import INDEX, Checkup, Ways, bank_folders
from hindsight.drafts import cuts_of
from hindsight.embedding import Embedder
from hindsight.embedding.batching import RUN, BatchingEmbedder
from hindsight.errors import LedgerDamaged
from hindsight.folder import BANKS
from hindsight.gone import clearing
from hindsight.index import Keys, VectorIndex
from hindsight.ledger import Cut, EmbedderMark, Glance, Ledger, Tie
from hindsight.quota import Quota
from hindsight.record import BankId
from hindsight.settings import Settings, SettingsError, variable
from hindsight.store import Store, open_store
from hindsight.tools.bank_stats import BANK_STATS
from hindsight.tools.forget import FORGET
from hindsight.tools.get_memory import GET_MEMORY
from hindsight.tools.list_memories import LIST_MEMORIES
from hindsight.tools.recall import RECALL
from hindsight.tools.retain import RETAIN
from hindsight.tools.update_memory import UPDATE_MEMORY
from hindsight.understanding.dates import date_in

if TYPE_CHECKING:
    from hindsight.index.server import ChromaServer
    from hindsight.oauth import Tokens

TOOLS = (RETAIN, RECALL, GET_MEMORY, LIST_MEMORIES, UPDATE_MEMORY, FORGET, BANK_STATS)
# File descriptors that an open bank takes at most, and how many stay for what is not a bank: connections, say.
_LEDGER_DESCRIPTORS, _INDEX_DESCRIPTORS, _SPARE_DESCRIPTORS = 16, 16, 64
_TRACED = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")

logger = logging.getLogger(__name__)


def make_embedder(settings: Settings) -> Embedder:
    """The embedder that the settings name. Raises EmbedderUnavailable, SettingsError."""
    if settings.embedder == "onnx":
        from hindsight.embedding.onnx import OnnxEmbedder

        if not settings.model_dir.is_dir():
            rule = "a folder with the embedding model, which scripts/install puts into the usual one"
            raise SettingsError(f"{variable('model_dir')}={str(settings.model_dir)!r}: {rule}")
        return OnnxEmbedder(settings.model_dir, settings.embedder_threads)
    if settings.embedder == "openai":
        from hindsight.embedding.openai import OpenAiEmbedder

        return OpenAiEmbedder(settings)
    module, _, factory = settings.embedder.partition(":")
    rule = "onnx, openai, or package.module:factory, which can be imported and makes an embedder of the settings"
    refused = SettingsError(f"{variable('embedder')}={settings.embedder!r}: {rule}")
    try:
        made = getattr(importlib.import_module(module), factory)(settings)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise refused from error
    if not isinstance(made, Embedder):
        raise refused
    return made


def make_tokens(settings: Settings) -> Tokens | None:
    """The access tokens to take besides keys, if the settings name an issuer. Raises SettingsError."""
    if not settings.oauth_issuer:
        return None
    from hindsight.oauth import open_tokens

    return open_tokens(settings)


def start_tracing() -> bool:
    """Send spans to where OTEL_EXPORTER_OTLP_ENDPOINT says; whether it says so."""
    if not any(os.environ.get(name) for name in _TRACED):
        return False
    from opentelemetry import trace
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    return True


def preload(settings: Settings) -> None:
    """Import now what the first call would else wait for, after all that is there already. Blocking, about 2 s."""
    if not settings.chroma_url:
        importlib.import_module("hindsight.index.chroma")
    date_in("today", datetime.now(UTC), UTC)
    # All of it stays; looking through it again, the garbage collector would stop everything for 80 ms now and then.
    gc.collect()
    gc.freeze()


@asynccontextmanager
async def open_banks(settings: Settings, folder: Path, embedder: Embedder) -> AsyncIterator[Banks]:
    """The banks of a data folder that the caller holds."""
    batching = BatchingEmbedder(embedder, settings.openai_batch if settings.embedder == "openai" else RUN)
    parts = Parts(batching, settings.zone)
    quota = Quota(settings.max_memories_per_bank, settings.max_bytes_per_bank)
    affordable = _affordable_banks(settings)
    async with _collections(settings) as collections, clearing(folder / BANKS, collections) as gone:
        open_bank = partial(_open_store, batching, quota, collections)
        banks = Banks(folder / BANKS, parts, open_bank, settings.open_banks, _glance, gone, affordable)
        try:
            yield banks
        finally:
            await batching.aclose()
            await banks.aclose()


def _affordable_banks(settings: Settings) -> int:
    """How many banks the limit of file descriptors leaves room for; says so when it is less than may be open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:  # Chroma keeps a fifth of the soft limit in collections; what it evicts loses records
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if hard == resource.RLIM_INFINITY:
        return sys.maxsize
    each = _LEDGER_DESCRIPTORS if settings.chroma_url else _LEDGER_DESCRIPTORS + _INDEX_DESCRIPTORS
    found = max((hard - _SPARE_DESCRIPTORS) // each, 1)
    if found < settings.open_banks:
        logger.warning(
            "the limit of %d file descriptors leaves room for %d open banks, not the %d of %s; raise it with ulimit -n",
            hard, found, settings.open_banks, variable("open_banks"),
        )  # fmt: skip
    return found


class _Collections:
    """The banks' collections on a Chroma server; fulfils Outside."""

    def __init__(self, server: ChromaServer) -> None:
        self._server = server

    def name(self, folder: Path) -> str:
        from hindsight.ledger.sqlite import tie_of

        try:
            tie = tie_of(folder / LEDGER)
        except LedgerDamaged:
            logger.warning("a bank is deleted whose ledger is damaged: its vectors stay on the Chroma server")
            return ""
        return tie.uid if tie else ""

    async def drop(self, name: str) -> None:
        await self._server.drop(name)

    async def open(self, bank_id: BankId, folder: Path, ledger: Ledger, mark: EmbedderMark) -> VectorIndex:
        index = await self._server.open(bank_id, mark.dimension, ledger, mark.name)
        # From here on an index in the folder is out of date.
        await anyio.to_thread.run_sync(_remove_indexes, folder)
        return index


@asynccontextmanager
async def _collections(settings: Settings) -> AsyncIterator[_Collections | None]:
    if not settings.chroma_url:
        yield None
        return
    from hindsight.index.server import ChromaServer

    server = ChromaServer(settings.chroma_url)
    try:
        yield _Collections(server)
    finally:
        await server.aclose()


async def _open_store(
    embedder: BatchingEmbedder, quota: Quota, collections: _Collections | None, bank_id: BankId, folder: Path
) -> Store:
    from hindsight.ledger.sqlite import open_sqlite

    ledger = await anyio.to_thread.run_sync(open_sqlite, folder / LEDGER, bank_id.text)
    open_index = collections.open if collections else _open_embedded
    return await open_store(bank_id.text, ledger, embedder, partial(open_index, bank_id, folder, ledger), quota)


def _glance(path: Path) -> Glance:
    from hindsight.ledger.sqlite import glance

    return glance(path)


def check_banks(folder: Path, settings: Settings, *, repair: bool) -> Iterator[Checkup]:
    """Look at the banks of a data folder that the caller holds, one after another. Blocking."""
    cutting = _Cutting(settings)
    keys_in = None if settings.chroma_url else _keys_in
    ways = Ways(make_cuts=cutting, keys_in=keys_in, remove_index=partial(remove_index, settings=settings))
    try:
        for bank in bank_folders(folder / BANKS):
            checkup = Checkup(bank, ways, repair=repair)
            checkup.run()
            yield checkup
    finally:
        cutting.close()


class _Cutting:
    """Cuts texts as the embedder in use has it, which is made at the first text."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._embedder: Embedder | None = None

    def __call__(self, text: str) -> Sequence[Cut]:
        self._embedder = self._embedder or make_embedder(self._settings)
        return cuts_of(text, self._embedder)

    def close(self) -> None:
        if self._embedder is not None:
            asyncio.run(self._embedder.aclose())


def _keys_in(folder: Path, bank_id: BankId, dimension: int) -> Keys:
    from hindsight.index.chroma import keys_in

    return asyncio.run(keys_in(folder, bank_id, dimension))


async def _open_embedded(bank_id: BankId, folder: Path, ledger: Ledger, mark: EmbedderMark) -> VectorIndex:
    tie = await anyio.to_thread.run_sync(ledger.tie)
    if tie and tie.eras:
        # From here on a collection on a server is out of date.
        await anyio.to_thread.run_sync(ledger.retie, Tie(tie.uid))
    # Chroma takes a second to import, so it is left to the first index that is opened.
    chroma = await anyio.to_thread.run_sync(importlib.import_module, "hindsight.index.chroma")
    return cast(VectorIndex, await chroma.open_chroma(folder / INDEX, bank_id, mark.dimension, mark.name))


def remove_index(folder: Path, settings: Settings) -> None:
    """Remove a bank's index, in its folder and on the Chroma server in use. Nobody may have the bank open. Blocking.

    Raises IndexUnavailable.
    """
    asyncio.run(_remove_collection(folder, settings))
    _remove_indexes(folder)


async def _remove_collection(folder: Path, settings: Settings) -> None:
    async with _collections(settings) as collections:
        if collections and (name := await anyio.to_thread.run_sync(collections.name, folder)):
            await collections.drop(name)


def _remove_indexes(folder: Path) -> None:
    for index in folder.glob(f"{INDEX}*"):
        shutil.rmtree(index)
