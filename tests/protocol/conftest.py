"""A server for all tests that leave it as it is, and one for each test of the transports alone."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.commands import Run, run_here
from tests.serving import Serving, serving

from .doors import Served, served


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data folder of `running`."""
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="session")
def running(data: Path, model_folder: Path) -> Iterator[Serving]:
    """A server as it is without settings, in a process of its own; each test uses banks of its own."""
    with serving(data, model_dir=model_folder) as server:
        yield server


@pytest.fixture
def bank() -> str:
    """The name of a bank that no other test uses."""
    return f"bank-{uuid.uuid4()}"


@pytest.fixture
async def server(anyio_backend: str) -> AsyncIterator[Served]:
    """The transports alone, in the test's own event loop."""
    async with served() as running:
        yield running


@pytest.fixture
def command(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, model_folder: Path) -> Run:
    """Runs a command in this process."""
    return run_here(capfd, monkeypatch)
