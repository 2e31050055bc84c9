"""What a running server shows of itself: /readyz and /metrics, on a real data folder."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import anyio
import httpx
import pytest

from hindsight.app import App
from hindsight.embedding import Vectors
from hindsight.keys import KeyFile, Keyring
from hindsight.settings import read_settings
from hindsight.wiring import open_banks
from tests.doubles import Fault, Provider, by_words, providing, rows_of
from tests.hosting import Host, hosted, listener, url_of
from tests.serving import BOUND, Serving, serving

from .doors import call

pytestmark = pytest.mark.anyio


class Loading:
    """An embedder that loads until `may_load` is set."""

    name, dimension, max_tokens = "loading", 64, 256

    def __init__(self) -> None:
        self.may_load = anyio.Event()

    async def ready(self) -> None:
        await self.may_load.wait()

    async def embed(self, texts: Sequence[str]) -> Vectors:
        return rows_of(texts)

    def token_ends(self, text: str) -> list[int]:
        return [len(text)]

    async def aclose(self) -> None:
        pass


@contextmanager
def with_a_service(data: Path) -> Iterator[tuple[Serving, Provider]]:
    """A server whose embedding service can be made to fail."""
    with (
        providing(by_words()) as provider,
        serving(data, embedder="openai", openai_base_url=provider.url, openai_timeout=2) as running,
    ):
        yield running, provider


def retain(url: str, content: str) -> None:
    message = call("retain", content=content)
    httpx.post(f"{url}/mcp/notes", json=message, timeout=BOUND).raise_for_status()


def metrics(url: str) -> dict[str, float]:
    """The values without labels, by name."""
    text = httpx.get(f"{url}/metrics", timeout=BOUND).text
    return {name: float(value) for name, value in re.findall(r"^hindsight_(\w+) (\S+)$", text, re.MULTILINE)}


async def until_told(url: str, what: object) -> None:
    """Wait until /readyz answers 200 with this."""
    async with httpx.AsyncClient(base_url=url, timeout=BOUND) as http:
        with anyio.fail_after(BOUND):
            while (await http.get("/readyz")).json() != what:  # noqa: ASYNC110  # readiness is told to who asks
                await anyio.sleep(0.05)


@pytest.fixture
async def loading(tmp_path: Path) -> AsyncIterator[tuple[str, Loading]]:
    """The URL of a server whose model still loads, and its embedder."""
    settings, embedder = read_settings(data_dir=tmp_path), Loading()
    async with open_banks(settings, tmp_path, embedder) as banks:
        app = App(settings, banks, embedder, Keyring(KeyFile(tmp_path)))
        with listener() as listening:
            async with app.running(), hosted(Host(app, lifespan="off"), listening):
                yield url_of(listening), embedder


async def test_a_server_whose_model_loads_says_so_and_is_ready_then(loading: tuple[str, Loading]) -> None:
    url, embedder = loading
    async with httpx.AsyncClient(base_url=url, timeout=BOUND) as http:
        before = await http.get("/readyz")
        embedder.may_load.set()
        await until_told(url, {"status": "ok"})

    assert before.status_code == 503
    assert before.json() == {"status": "not ready", "not_ready": ["index", "model"]}
    assert before.headers["retry-after"] == "1"


def test_a_server_that_lost_its_data_folder_is_not_ready_until_it_is_back(tmp_path: Path, model_folder: Path) -> None:
    data, away = tmp_path / "data", tmp_path / "away"
    with serving(data, model_dir=model_folder) as running:
        data.rename(away)
        without = httpx.get(f"{running.url}/readyz", timeout=BOUND)
        away.rename(data)
        again = httpx.get(f"{running.url}/readyz", timeout=BOUND)

    assert (without.status_code, without.json()) == (503, {"status": "not ready", "not_ready": ["ledger"]})
    assert (again.status_code, again.json()) == (200, {"status": "ok"})


@pytest.mark.slow
async def test_a_server_whose_embedder_is_down_is_ready_and_says_what_it_catches_up_with(tmp_path: Path) -> None:
    with with_a_service(tmp_path) as (running, provider):
        retain(running.url, "Ada likes tea.")
        provider.always = Fault(status=503)
        retain(running.url, "Bob likes coffee.")
        await until_told(running.url, {"status": "ok", "catching_up": ["embedding", "index"]})
        down = metrics(running.url)
        provider.always = None
        await until_told(running.url, {"status": "ok"})
        up = metrics(running.url)

    assert (down["unembedded_passages"], up["unembedded_passages"]) == (1, 0)
    assert down["index_lag_seconds"] > 5
    assert up["open_banks"] == 1


def test_metrics_show_sizes_and_queues_and_open_no_bank(tmp_path: Path, model_folder: Path) -> None:
    names = ["a", "b", "c"]
    with serving(tmp_path, model_dir=model_folder, open_banks=1) as running:
        for name in names:
            line = json.dumps({"content": f"{name} likes tea."})
            httpx.post(f"{running.url}/banks/{name}/memories", content=line, timeout=BOUND).raise_for_status()
        shown = metrics(running.url)
        retain(running.url, "Ada likes tea.")
        later = metrics(running.url)

    ledgers = [path.stat().st_size for path in tmp_path.glob("banks/*/ledger.db")]
    assert len(ledgers) == len(names) + 1
    assert shown["ledger_bytes"] >= len(names) * min(ledgers) > 0
    assert (shown["open_banks"], later["open_banks"]) == (1, 1)
    assert {name: shown[name] for name in ("texts_waiting", "queries_waiting", "retains_waiting", "loads")} == {
        "texts_waiting": 0, "queries_waiting": 0, "retains_waiting": 0, "loads": 0
    }  # fmt: skip
    assert later["calls_in_flight"] == 0
