"""Few file descriptors and many banks: each of them answers, one after another and many at once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash.wire import Wire
from tests.footprint import Footprint
from tests.mirrored import FIRST
from tests.serving import HINDSIGHT, Serving, serving

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

LIMIT = 256
BANKS = [f"bank-{number}" for number in range(200)]
AT_ONCE = 32
_LIMITED = ("sh", "-c", f'ulimit -n {LIMIT} && exec "$0" "$@"')  # soft and hard


@pytest.fixture
def limited(tmp_path: Path) -> Iterator[Serving]:
    with serving(tmp_path, command=(*_LIMITED, *HINDSIGHT, "serve"), embedder=FIRST) as server:
        yield server


async def retain(wire: Wire, bank: str, number: int) -> None:
    await wire.call(bank, "retain", content=f"The {bank} holds parcel {number}.")


async def recall(wire: Wire, bank: str) -> list[str]:
    found = await wire.call(bank, "recall", query="which parcel")
    return [result["text"] for result in found["results"]]


async def test_two_hundred_banks_answer_with_two_hundred_and_fifty_six_descriptors(limited: Serving) -> None:
    async with Wire(limited.url) as wire:
        for bank in BANKS:
            await retain(wire, bank, 1)
        one_by_one = [await recall(wire, bank) for bank in BANKS]
    left = iter(BANKS)
    at_once: dict[str, list[str]] = {}

    async def some() -> None:
        async with Wire(limited.url) as wire:
            for bank in left:
                await retain(wire, bank, 2)
                at_once[bank] = await recall(wire, bank)

    await asyncio.gather(*(some() for _ in range(AT_ONCE)))
    used = Footprint.of(limited).descriptors

    assert one_by_one == [[f"The {bank} holds parcel 1."] for bank in BANKS]
    assert {bank: sorted(texts) for bank, texts in at_once.items()} == {
        bank: [f"The {bank} holds parcel {number}." for number in (1, 2)] for bank in BANKS
    }
    assert used < LIMIT
    assert any("of 256 file descriptors leaves room for 6 open banks, not the 64" in line for line in limited.log.lines)
    assert [line for line in limited.log.lines if "ERROR" in line] == []
