"""An index whose files were damaged, or whose process was killed while it wrote them, never crashes or lies."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import hindsight
from hindsight.checkup import INDEX
from hindsight.drafts import Draft
from hindsight.errors import IndexUnavailable
from hindsight.folder import BANKS
from hindsight.index import chroma, segments
from hindsight.index.chroma import ChromaIndex, keys_in, open_chroma
from hindsight.record import BankId
from hindsight.settings import read_settings
from hindsight.wiring import make_embedder, open_banks
from tests.mirrored import DIMENSION as DIMENSION_OF_TEXTS
from tests.mirrored import FIRST
from tests.serving import until

pytestmark = pytest.mark.anyio

BANK = BankId.parse("torn")
DIMENSION = 16
HELD = 1_030  # past 1,000, where Chroma writes its files
FILES = ["data_level0.bin", "header.bin", "index_metadata.pickle", "length.bin", "link_lists.bin"]

Damage = Callable[[Path], None]

# What a process does that is killed, and what the next one does on the same folder.
ROWS = """
import sys, anyio, numpy as np
from pathlib import Path
from hindsight.index.chroma import open_chroma
from hindsight.record import BankId
folder, keys = Path(sys.argv[1]), np.arange(4_000, dtype=np.int64)
rows = np.random.default_rng(1).standard_normal((4_000, 384)).astype(np.float32)
rows /= np.linalg.norm(rows, axis=1, keepdims=True)
"""
MAKER = f"""{ROWS}
async def main():
    index = await open_chroma(folder, BankId("torn"), {DIMENSION})
    await index.upsert(keys[:{HELD}], rows[:{HELD}, :{DIMENSION}])
    await index.aclose()
anyio.run(main)
"""
WRITER = f"""{ROWS}
async def main():
    index = await open_chroma(folder, BankId("torn"), 384)
    for start in range(0, 2_500, 50):
        await index.upsert(keys[start:start + 50], rows[start:start + 50])
        print(start + 50, flush=True)
anyio.run(main)
"""
READER = f"""{ROWS}
import json
async def main():
    index = await open_chroma(folder, BankId("torn"), 384)
    held = await index.count()
    found = [int((await index.nearest(rows[key], 1)).keys[0]) == key for key in range(0, held, 97)]
    await index.upsert(keys[2_500:], rows[2_500:])
    print(json.dumps([index.rebuilt, held, all(found), await index.count()]))
    await index.aclose()
anyio.run(main)
"""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a good, closed index of HELD records."""
    folder = tmp_path_factory.mktemp("whole") / "index"
    with start(MAKER, folder) as maker:
        maker.communicate(timeout=60)
    assert maker.returncode == 0
    # Chroma may leave a log behind, which would make up for damage. Whoever closes last puts it away.
    with contextlib.closing(sqlite3.connect(folder / segments.DATABASE)) as database:
        database.execute("SELECT count(*) FROM sqlite_master").fetchone()
    return folder


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> Path:
    """A copy of it for one test."""
    return Path(shutil.copytree(whole, tmp_path / "index"))


async def upsert(index: ChromaIndex, count: int) -> None:
    rows = np.random.default_rng(1).standard_normal((count, DIMENSION)).astype(np.float32)
    await index.upsert(np.arange(count, dtype=np.int64), rows)


def segment_of(folder: Path) -> Path:
    return next(path for path in folder.iterdir() if path.is_dir())


def cut(file: Path) -> None:
    os.truncate(file, file.stat().st_size // 2)


def flip_a_bit(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def make_a_tebibyte_long(file: Path) -> None:
    os.truncate(file, 2**40)


def empty(file: Path) -> None:
    os.truncate(file, 0)


def fill_with_noise(file: Path) -> None:
    file.write_bytes(b"noise" * 2_000)


def blank_the_middle(file: Path) -> None:
    with file.open("r+b") as stream:
        stream.seek(8 * 4096)
        stream.write(bytes(100 * 4096))


async def assert_it_starts_again(folder: Path) -> None:
    index = await open_chroma(folder, BANK, DIMENSION)
    assert (index.rebuilt, await index.count()) == (True, 0)

    await upsert(index, 60)
    await index.aclose()

    assert segments.torn_segments(folder) == []


async def test_a_copied_index_opens_with_all_it_holds(folder: Path) -> None:
    index = await open_chroma(folder, BANK, DIMENSION)

    assert (index.rebuilt, await index.count()) == (False, HELD)
    await index.aclose()


@pytest.mark.parametrize("damage", [Path.unlink, cut, flip_a_bit, make_a_tebibyte_long])
@pytest.mark.parametrize("name", FILES)
async def test_a_damaged_segment_is_recognised_and_started_again(folder: Path, name: str, damage: Damage) -> None:
    damage(segment_of(folder) / name)

    assert segments.torn_segments(folder) == [segment_of(folder)]
    await assert_it_starts_again(folder)


@pytest.mark.parametrize("damage", [Path.unlink, empty, cut, fill_with_noise, blank_the_middle])
async def test_a_damaged_database_is_started_again(folder: Path, damage: Damage) -> None:
    damage(folder / segments.DATABASE)

    await assert_it_starts_again(folder)


async def test_a_removed_segment_is_started_again(folder: Path) -> None:
    shutil.rmtree(segment_of(folder))

    await assert_it_starts_again(folder)


@pytest.mark.parametrize("content", ["", "[]", '{"a": 1}', "\0"])
def test_files_without_a_good_seal_are_torn(folder: Path, content: str) -> None:
    (folder / segments.SEAL).write_text(content)

    assert segment_of(folder) in segments.torn_segments(folder)


@pytest.mark.parametrize("name", FILES)
def test_files_that_a_full_disk_cut_short_are_not_sealed(folder: Path, name: str) -> None:
    before = (folder / segments.SEAL).read_bytes()
    cut(segment_of(folder) / name)

    assert not segments.seal(folder)
    assert (folder / segments.SEAL).read_bytes() == before


async def test_a_torn_index_waits_for_space_to_be_started_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cut(segment_of(folder) / "header.bin")

    with monkeypatch.context() as full:
        full.setattr(chroma, "MIN_FREE", 2**62)
        with pytest.raises(IndexUnavailable):
            await open_chroma(folder, BANK, DIMENSION)
    await assert_it_starts_again(folder)


async def test_a_database_that_cannot_be_opened_is_unavailable_and_stays(folder: Path) -> None:
    os.rename(folder / segments.DATABASE, folder.parent / "away")
    (folder / segments.DATABASE).mkdir()

    with pytest.raises(IndexUnavailable):
        await open_chroma(folder, BANK, DIMENSION)
    assert segment_of(folder).exists()


def test_only_the_last_torn_index_is_kept(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / "index").mkdir()
        (tmp_path / "index" / str(number)).touch()
        segments.quarantine(tmp_path / "index")

    assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")] == ["index.torn-3", "index.torn-3/2"]
    assert segments.quarantine(tmp_path / "index") is None


async def test_what_an_index_lost_to_a_power_cut_comes_back_when_its_bank_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("hindsight.store.HELD", 5)  # as in a bank of many thousands, which opens its index by itself
    settings = read_settings(data_dir=tmp_path, embedder=FIRST)
    index = tmp_path / BANKS / BANK.folder / INDEX
    embedder = make_embedder(settings)
    async with open_banks(settings, tmp_path, embedder) as banks, banks.lease(BANK) as bank:
        await asyncio.gather(*(bank.retain(Draft(content=f"fact {number}")) for number in range(60)))
        await until(lambda: bank.lag.unindexed == 0)
    changed = await open_chroma(index, BANK, DIMENSION_OF_TEXTS, embedder.name)
    await changed.delete(np.array([3, 30, 59], np.int64))
    await changed.upsert(np.array([99], np.int64), np.ones((1, DIMENSION_OF_TEXTS), np.float32))
    await changed.aclose()
    async with open_banks(settings, tmp_path, make_embedder(settings)) as banks, banks.lease(BANK) as bank:
        await until(lambda: "lost 3 vectors and has 1 too many" in caplog.text)
        await until(lambda: bank.lag.unindexed == 0)

    assert (await keys_in(index, BANK, DIMENSION_OF_TEXTS)).tolist() == list(range(1, 61))


@pytest.mark.slow
@pytest.mark.parametrize("attempt", range(12))
def test_a_kill_while_files_are_written_neither_crashes_nor_loses(tmp_path: Path, attempt: int) -> None:
    folder = tmp_path / "index"
    with start(WRITER, folder) as writer:
        kill_when_written(writer, folder, FILES[attempt % len(FILES)], times=1 + attempt % 2)
        acknowledged = [int(line) for line in (writer.stdout or [])]

    with start(READER, folder) as reader:
        output, _ = reader.communicate(timeout=60)

    assert reader.returncode == 0
    rebuilt, held, found, total = json.loads(output)
    assert held == 0 if rebuilt else held >= acknowledged[-1]
    assert found
    assert total == held + 1_500


@pytest.mark.slow
def test_a_kill_between_two_writes_of_the_files_costs_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "index"
    with start(WRITER, folder) as writer:
        assert writer.stdout is not None
        assert any(line == "1250\n" for line in writer.stdout)
        writer.kill()

    with start(READER, folder) as reader:
        output, _ = reader.communicate(timeout=60)

    rebuilt, held, found, _ = json.loads(output)
    assert (rebuilt, found) == (False, True)
    assert 1_250 <= held < 2_000


def start(code: str, folder: Path) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(Path(hindsight.__file__).parents[1])}
    command = [sys.executable, "-c", code, str(folder)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


def kill_when_written(writer: subprocess.Popen[str], folder: Path, name: str, times: int) -> None:
    """Kill as soon as file `name` was written `times` times after its segment was made."""
    deadline = time.monotonic() + 60
    # The others are there, empty, from the first record on.
    seen = [(0, 0)] if name == "index_metadata.pickle" else []
    while len(seen) <= times and writer.poll() is None and time.monotonic() < deadline:
        for file in folder.glob(f"*/{name}"):
            status = file.stat()
            state = (status.st_size, status.st_mtime_ns)
            if state not in seen:
                seen.append(state)
    writer.kill()
    assert len(seen) > times
