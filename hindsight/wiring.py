"""Names to parts: which embedder, ledger, index and tools a setting means. Imports adapters, and only those in use."""

from __future__ import annotations

import importlib
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

import anyio.to_thread

from hindsight.bank import Parts
from hindsight.banks import LEDGER, Banks
from hindsight.embedding import Embedder
from hindsight.embedding.batching import RUN, BatchingEmbedder
from hindsight.folder import BANKS
from hindsight.index import VectorIndex
from hindsight.ledger import Glance
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
    from hindsight.oauth import Tokens

TOOLS = (RETAIN, RECALL, GET_MEMORY, LIST_MEMORIES, UPDATE_MEMORY, FORGET, BANK_STATS)
INDEX = "index"
_TRACED = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")


def make_embedder(settings: Settings) -> Embedder:
    """The embedder that the settings name. Raises EmbedderUnavailable, SettingsError."""
    if settings.embedder == "onnx":
        from hindsight.embedding.onnx import OnnxEmbedder

        return OnnxEmbedder(settings.model_dir, settings.embedder_threads)
    if settings.embedder == "openai":
        from hindsight.embedding.openai import OpenAiEmbedder

        return OpenAiEmbedder(settings)
    module, _, factory = settings.embedder.partition(":")
    try:
        return cast(Embedder, getattr(importlib.import_module(module), factory)(settings))
    except (ImportError, AttributeError, ValueError) as error:
        rule = "onnx, openai, or package.module:factory that can be imported"
        raise SettingsError(f"{variable('embedder')}={settings.embedder!r}: {rule}") from error


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


def preload() -> None:
    """Import now what the first call would else wait for. Blocking, about two seconds."""
    importlib.import_module("hindsight.index.chroma")
    date_in("today", datetime.now(UTC), UTC)


@asynccontextmanager
async def open_banks(settings: Settings, folder: Path, embedder: Embedder) -> AsyncIterator[Banks]:
    """The banks of a data folder that the caller holds."""
    batching = BatchingEmbedder(embedder, settings.openai_batch if settings.embedder == "openai" else RUN)
    parts = Parts(batching, settings.zone)
    quota = Quota(settings.max_memories_per_bank, settings.max_bytes_per_bank)
    banks = Banks(folder / BANKS, parts, partial(_open_store, batching, quota), settings.open_banks, _glance)
    try:
        yield banks
    finally:
        await batching.aclose()
        await banks.aclose()


async def _open_store(embedder: BatchingEmbedder, quota: Quota, bank_id: BankId, folder: Path) -> Store:
    from hindsight.ledger.sqlite import open_sqlite

    ledger = await anyio.to_thread.run_sync(open_sqlite, folder / LEDGER, bank_id.text)
    return await open_store(bank_id.text, ledger, embedder, partial(_open_index, bank_id, folder), quota)


def _glance(path: Path) -> Glance:
    from hindsight.ledger.sqlite import glance

    return glance(path)


def check_bank(folder: Path) -> tuple[str, list[str]]:
    """The id of the bank in a folder, and what is wrong with it. A sound one loses the remains of what was forgotten.

    Nobody may have the bank open. Blocking.
    """
    from hindsight.ledger import upkeep

    ledger = folder / LEDGER
    faults = upkeep.faults(ledger)
    if faults:
        return folder.name, faults
    if upkeep.has_forgotten(ledger):
        upkeep.unindex(ledger)
        for index in folder.glob(f"{INDEX}*"):
            shutil.rmtree(index)
    upkeep.compact(ledger)
    return _glance(ledger).bank_id, []


async def _open_index(bank_id: BankId, folder: Path, dimension: int) -> VectorIndex:
    # Chroma takes a second to import, so it is left to the first index that is opened.
    chroma = await anyio.to_thread.run_sync(importlib.import_module, "hindsight.index.chroma")
    return cast(VectorIndex, await chroma.open_chroma(folder / INDEX, bank_id, dimension))
