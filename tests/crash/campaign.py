"""A campaign: series of kills on one data folder each, and what came of them.

A server that was killed is followed by another one on the same folder. It has to be ready in time and to have all that
was acknowledged; then it is killed in its turn. The last one of a series is asked for every memory and stopped.
"""

from __future__ import annotations

import asyncio
import dataclasses
import shutil
import sqlite3
import subprocess
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from itertools import cycle, islice
from pathlib import Path
from random import Random

from hindsight.banks import LEDGER
from hindsight.folder import BANKS
from hindsight.record import BankId
from tests.crash import moments
from tests.crash.book import Book
from tests.crash.facts import parcels, sayings
from tests.crash.moments import Scene
from tests.crash.wire import Died, Refused
from tests.mirrored import FIRST, SECOND, mirror
from tests.serving import BOUND, HINDSIGHT, Serving, environment_with, serving

IN_TIME = 5.0  # seconds within which a server must be ready, beside those that it waits for a core
_BANK = "team"
_MODEL = "onnx"
_SERIES = 8  # kills on one folder, at most
_AFTER_A_KILL = 30  # memories that are asked for one by one
_AT_THE_END = 1_000
_STARTING = 2.5  # seconds that a server takes to start, about
_FAILURES = (AssertionError, Died, Refused, TimeoutError)  # what a server that does not do its work shows as
_REPOSITORY = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Moment:
    """`act` kills a server that is ready; without it, one that is just being started is killed.

    `looks` says that the server is asked first for what the ones before it acknowledged.
    """

    act: Callable[[Scene], Awaitable[None]] | None
    looks: bool = True


FIRST_START, FIRST_RETAIN, REINDEX = "first start", "first retain", "reindex"
MOMENTS: Mapping[str, Moment] = {
    FIRST_START: Moment(None),
    FIRST_RETAIN: Moment(moments.first_retain),
    "start": Moment(None),
    "acknowledgement": Moment(moments.acknowledgement),
    "load": Moment(moments.load),
    "persist": Moment(moments.persist),
    "recovery": Moment(moments.recovery, looks=False),
    "forget": Moment(moments.forget),
    "supersede": Moment(moments.supersede),
    REINDEX: Moment(moments.reindex, looks=False),
    "export": Moment(moments.export),
    "any time": Moment(moments.any_time),
}


@dataclass(frozen=True, slots=True)
class Kind:
    """A series' bank: how many records it has at the start, the embedder, and the moments: the first, then the others.

    The records' vectors are the mirrored embedder's. A recovery always comes after the kill that it recovers from.
    """

    records: int
    embedder: str
    first: tuple[str, ...]
    others: tuple[tuple[str, ...], ...]

    def __str__(self) -> str:
        return f"{self.records:,} records" + (", real model" if self.embedder == _MODEL else "")


_CALLS = (("acknowledgement",), ("load",), ("forget",), ("supersede",), ("export",), ("any time",))
_FILES = (("start",), ("persist",), ("persist", "recovery"))
_EMPTY = Kind(0, FIRST, (FIRST_START, FIRST_RETAIN), (*_CALLS, *_FILES, (REINDEX,)))
_SMALL = Kind(1_000, FIRST, (), (*_CALLS, *_FILES, (REINDEX,)))
_LARGE = Kind(20_000, FIRST, (), (*_CALLS, *_FILES))
_MOVED = Kind(20_000, FIRST, (REINDEX,), (*_CALLS, *_FILES))  # its reindex takes a minute
_REAL = Kind(1_000, _MODEL, (REINDEX,), _CALLS)
_KINDS = (_EMPTY, _SMALL, _LARGE, _EMPTY, _SMALL, _REAL, _EMPTY, _SMALL, _MOVED)


@dataclass(frozen=True, slots=True)
class Series:
    """Kills one after another on one folder."""

    kind: Kind
    moments: tuple[str, ...]
    seed: int


@dataclass
class Tally:
    """What came of kills: how many at each moment, how many torn indexes were met and how many moved aside, how many
    memories were asked for, and what was lost.

    `ready` is the longest that a server took to be ready, in seconds, `own` without what it waited for a core, and
    `answered` from there to its first answer.
    """

    kills: Counter[str] = field(default_factory=Counter)
    torn: int = 0
    rebuilt: int = 0
    ready: float = 0.0
    own: float = 0.0
    answered: float = 0.0
    asked: int = 0
    losses: list[str] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        """Take in another one."""
        self.kills += other.kills
        self.torn += other.torn
        self.rebuilt += other.rebuilt
        self.asked += other.asked
        self.ready, self.own = max(self.ready, other.ready), max(self.own, other.own)
        self.answered = max(self.answered, other.answered)
        self.losses += other.losses

    def table(self) -> str:
        """It as lines for whoever started the campaign."""
        rows = [(f"kills: {name}", f"{self.kills[name]}") for name in MOMENTS if self.kills[name]]
        rows += [("kills in all", f"{self.kills.total()}")]
        rows += [("torn indexes met", f"{self.torn}"), ("indexes moved aside and rebuilt", f"{self.rebuilt}")]
        rows += [("memories asked for one by one", f"{self.asked:,}")]
        rows += [("slowest readiness", f"{self.ready:.1f} s"), ("without waiting for a core", f"{self.own:.1f} s")]
        rows += [("slowest first recall", f"{self.answered:.1f} s")]
        rows += [("losses", f"{len(self.losses)}")]
        return "\n".join(f"{name:40} {value:>8}" for name, value in rows)


def planned(kills: int, seed: int, only: str | None = None) -> list[Series]:
    """Series of so many kills in all, at all moments or at one of them alone."""
    chance = Random(seed)
    series: list[Series] = []
    endless = {kind: _endless(kind.others, chance) for kind in _KINDS}
    kinds = cycle(_KINDS)
    while kills:
        kind = next(kinds)
        names = _of_one(kind, only) if only else [*kind.first, *islice(endless[kind], _SERIES - len(kind.first))]
        if names:
            series.append(Series(kind, tuple(names[:kills]), chance.getrandbits(32)))
            kills -= len(series[-1].moments)
    return series


def run(series: Sequence[Series], lanes: int, tell: Callable[[Series, Tally], None]) -> Tally:
    """Run all series, some at a time; `tell` hears of each one's end."""
    whole = Tally()
    with tempfile.TemporaryDirectory(prefix="crash-") as folder, ProcessPoolExecutor(lanes) as pool:
        bases = {records: _base(Path(folder), records) for records in sorted({each.kind.records for each in series})}
        running = {pool.submit(_run, each, *bases[each.kind.records]): each for each in series}
        for done in as_completed(running):
            tally = done.result()
            whole.add(tally)
            tell(running[done], tally)
    return whole


def _of_one(kind: Kind, only: str) -> list[str]:
    if only in kind.first:
        return list(kind.first[: kind.first.index(only) + 1])
    least = min((names for names in kind.others if only in names), key=len, default=())
    return list(least) * (_SERIES // 2)


def _endless(others: Sequence[tuple[str, ...]], chance: Random) -> Iterator[str]:
    while True:
        for names in chance.sample(others, len(others)):
            yield from names


def _base(folder: Path, records: int) -> tuple[Path, Book]:
    """The folder of a bank of so many records that was closed cleanly, with all of them in its index."""
    data, book = folder / f"{records}", Book(_BANK)
    data.mkdir()
    if records:
        with _served(data, FIRST) as server:
            scene = Scene(server, data, book, parcels(Random(records), mirror), Random())
            asyncio.run(scene.load(scene.some(records)))
            _wait_until_indexed(data / BANKS / BankId.parse(_BANK).folder / LEDGER)
            server.stop()
    book.fresh.clear()
    return data, book


def _wait_until_indexed(ledger: Path) -> None:
    end = time.monotonic() + BOUND
    with closing(sqlite3.connect(ledger)) as database:
        while database.execute("SELECT count(*) FROM passage WHERE NOT indexed").fetchone()[0]:
            assert time.monotonic() < end, "the index does not catch up"
            time.sleep(0.1)  # only the file tells


def _run(series: Series, base: Path, book: Book) -> Tally:
    """Run a series on a copy of a base; the folder is left for a look at it when anything was lost."""
    folder = Path(tempfile.mkdtemp(prefix="crashed-"))
    shutil.copytree(base, folder, dirs_exist_ok=True)
    running = _Running(series, folder, book)
    try:
        asyncio.run(running.all())
    except _FAILURES:
        running.lost([traceback.format_exc()])
    if not running.tally.losses:
        shutil.rmtree(folder)
    return running.tally


class _Running:
    """A series under way."""

    def __init__(self, series: Series, folder: Path, book: Book) -> None:
        self.tally = Tally()
        self._series, self._folder, self._book = series, folder, book
        self._chance = Random(series.seed)
        self._embedder = series.kind.embedder
        if self._embedder == _MODEL:
            self._facts = sayings(self._chance)
            # It finds by their meaning what was loaded for another one: only their own texts mean them.
            book.kept = {id: dataclasses.replace(fact, meaning=fact.text) for id, fact in book.kept.items()}
        else:
            self._facts = parcels(self._chance, mirror)

    async def all(self) -> None:
        """Kill at each of the moments, then look at everything."""
        for name in self._series.moments:
            await self._kill(name, MOMENTS[name])
            self.tally.kills[name] += 1
        with self._timed() as server:
            await self._look(server, _AT_THE_END)
            if status := server.stop():
                self.lost([f"the server stopped with {status}"])

    def lost(self, losses: Sequence[str]) -> None:
        """Note what was lost, and when."""
        done = self.tally.kills.total()
        moment = f"{self._folder}, seed {self._series.seed}, after {self._series.moments[:done]}"
        self.tally.losses += [f"{moment}: {loss}" for loss in losses]

    async def _kill(self, name: str, moment: Moment) -> None:
        if moment.act is None:
            self._kill_a_start()
            return
        if name == REINDEX and self._embedder != _MODEL:
            self._embedder = SECOND if self._embedder == FIRST else FIRST
        with self._timed() as server:
            if moment.looks:
                await self._look(server, _AFTER_A_KILL)
            await moment.act(Scene(server, self._folder, self._book, self._facts, self._chance))

    def _kill_a_start(self) -> None:
        with subprocess.Popen([*HINDSIGHT, "serve"], env=_environment(self._folder, self._embedder)) as process:
            try:
                status = process.wait(self._chance.uniform(0, _STARTING))
            except subprocess.TimeoutExpired:
                process.kill()
            else:
                self.lost([f"a server that started ended by itself with {status}"])

    @contextmanager
    def _timed(self) -> Iterator[Serving]:
        start = time.monotonic()
        with _served(self._folder, self._embedder) as server:
            took = time.monotonic() - start
            own = took - _waited_for_a_core(server.process.pid)
            self.tally.ready, self.tally.own = max(self.tally.ready, took), max(self.tally.own, own)
            if own > IN_TIME:
                self.lost([f"the server was ready after {took:.1f} s, of which {took - own:.1f} it waited for a core"])
            try:
                yield server
            except _FAILURES as error:
                error.add_note("".join(server.log.lines))
                raise
        self.tally.torn += sum(" is torn: " in line for line in server.log.lines)
        self.tally.rebuilt += sum("; it is rebuilt" in line for line in server.log.lines)
        if [line for line in server.log.lines if "Traceback" in line or " ERROR " in line]:
            self.lost(["".join(server.log.lines)])

    async def _look(self, server: Serving, most: int) -> None:
        start = time.monotonic()
        await Scene(server, self._folder, self._book, self._facts, self._chance).recall()
        self.tally.answered = max(self.tally.answered, time.monotonic() - start)
        asked, losses = await self._book.losses(server.url, self._chance, most)
        self.tally.asked += asked
        self.lost(losses)


def _waited_for_a_core(process: int) -> float:
    """Seconds in which a process that starts, one thread after another, could have run and others did."""
    files = Path(f"/proc/{process}/task").glob("*/schedstat")
    waited = {file.parent.name: int(file.read_text().split()[1]) for file in files}
    return (waited.pop(f"{process}") + max(waited.values(), default=0)) / 1e9


@contextmanager
def _served(folder: Path, embedder: str) -> Iterator[Serving]:
    with serving(folder, environment=_environment(folder, embedder)) as server:
        yield server


def _environment(folder: Path, embedder: str) -> dict[str, str]:
    settings = environment_with({"port": 0, "data_dir": folder, "embedder": embedder})
    return {**settings, "PYTHONPATH": str(_REPOSITORY)}
