"""A server on a free port for each test, in the test's own event loop."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from .doors import Served, served


@pytest.fixture
async def server(anyio_backend: str) -> AsyncIterator[Served]:
    async with served() as running:
        yield running
