"""Names to parts: which embedder, ledger, index and tools a setting means. Imports adapters, and only those in use."""

from __future__ import annotations

import importlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import cast

import anyio.to_thread

from hindsight.bank import Parts
from hindsight.banks import LEDGER, Banks
from hindsight.embedding import Embedder
from hindsight.embedding.batching import BatchingEmbedder
from hindsight.folder import BANKS
from hindsight.index import VectorIndex
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

TOOLS = (RETAIN, RECALL, GET_MEMORY, LIST_MEMORIES, UPDATE_MEMORY, FORGET, BANK_STATS)
INDEX = "index"


def make_embedder(settings: Settings) -> Embedder:
    """The embedder that the settings name. Raises EmbedderUnavailable, SettingsError."""
    if settings.embedder == "onnx":
        from hindsight.embedding.onnx import OnnxEmbedder

        return OnnxEmbedder(settings.model_dir, settings.embedder_threads)
    module, _, factory = settings.embedder.partition(":")
    try:
        return cast(Embedder, getattr(importlib.import_module(module), factory)(settings))
    except (ImportError, AttributeError, ValueError) as error:
        rule = "onnx, or package.module:factory that can be imported"
        raise SettingsError(f"{variable('embedder')}={settings.embedder!r}: {rule}") from error


def preload() -> None:
    """Import now what the first call would else wait for. Blocking, about two seconds."""
    importlib.import_module("hindsight.index.chroma")
    date_in("today", datetime.now(UTC), UTC)


@asynccontextmanager
async def open_banks(settings: Settings, folder: Path, embedder: Embedder) -> AsyncIterator[Banks]:
    """The banks of a data folder that the caller holds."""
    batching = BatchingEmbedder(embedder)
    parts = Parts(batching, settings.zone)
    banks = Banks(folder / BANKS, parts, partial(_open_store, batching), settings.open_banks)
    try:
        yield banks
    finally:
        await banks.aclose()
        await batching.aclose()


async def _open_store(embedder: BatchingEmbedder, bank_id: BankId, folder: Path) -> Store:
    from hindsight.ledger.sqlite import open_sqlite

    ledger = await anyio.to_thread.run_sync(open_sqlite, folder / LEDGER, bank_id.text)
    return await open_store(bank_id.text, ledger, embedder, partial(_open_index, bank_id, folder))


async def _open_index(bank_id: BankId, folder: Path, dimension: int) -> VectorIndex:
    # Chroma takes a second to import, so it is left to the first index that is opened.
    chroma = await anyio.to_thread.run_sync(importlib.import_module, "hindsight.index.chroma")
    return cast(VectorIndex, await chroma.open_chroma(folder / INDEX, bank_id, dimension))
