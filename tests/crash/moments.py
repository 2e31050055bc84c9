"""The moments at which a server is killed: each does something on a bank, and kills in the middle of it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from random import Random

from hindsight.folder import BANKS
from hindsight.index import segments
from hindsight.record import BankId
from tests.crash.book import Book
from tests.crash.facts import Fact
from tests.crash.wire import Died, Refused, Wire
from tests.serving import BOUND, Serving

_FILES = ("data_level0.bin", "header.bin", "index_metadata.pickle", "length.bin", "link_lists.bin")
_TO_TWO_WRITES = 2_300  # memories: Chroma writes its files every 1,000


@dataclass
class Scene:
    """A server on a folder, a bank of it, and what to retain there next."""

    server: Serving
    folder: Path
    book: Book
    facts: Iterator[Fact]
    chance: Random

    def some(self, most: int) -> list[Fact]:
        """So many new facts."""
        return list(islice(self.facts, most))

    def old(self, most: int) -> list[str]:
        """Ids of memories that have no successor, at most so many."""
        free = sorted(self.book.kept.keys() - self.book.successors)
        return self.chance.sample(free, min(most, len(free)))

    async def retain(self, fact: Fact, old: str | None = None) -> None:
        """Retain a fact, in place of an old one if it is given."""
        given = fact.arguments() if old is None else {**fact.arguments(), "supersedes": old}
        async with Wire(self.server.url) as wire:
            self.book.sent[fact.text] = fact, old
            try:
                answer = await wire.call(self.book.bank, "retain", **given)
            except Refused:
                del self.book.sent[fact.text]  # it must not be stored
                raise
        self.book.stored(answer["id"], fact, old)

    async def load(self, facts: Sequence[Fact], told: Callable[[int], None] = lambda line: None) -> list[str]:
        """Load facts; `told` hears of each line that is answered. Returns the codes of the lines that are refused."""
        refused = []
        body = b"".join(json.dumps(fact.arguments()).encode() + b"\n" for fact in facts)
        async with Wire(self.server.url) as wire:
            self.book.sent |= {fact.text: (fact, None) for fact in facts}
            async for line in wire.lines("POST", f"/banks/{self.book.bank}/memories", body):
                result = json.loads(line)
                fact = facts[result["line"] - 1]
                if "error" in result:
                    refused.append(result["error"]["code"])
                    del self.book.sent[fact.text]
                else:
                    self.book.stored(result["id"], fact)
                told(result["line"])
        return refused

    async def forget(self, ids: frozenset[str], **named: object) -> None:
        """Forget these, which `named` names."""
        async with Wire(self.server.url) as wire:
            self.book.leaving.append(ids)
            answer = await wire.call(self.book.bank, "forget", **named)
        assert answer == {"count": len(ids)}
        self.book.forgotten(ids)

    async def recall(self) -> None:
        """Recall anything."""
        async with Wire(self.server.url) as wire:
            await wire.call(self.book.bank, "recall", query="which parcel holds a lantern")

    def kill(self) -> None:
        """The end; fails when the server has come to an end of its own before."""
        status = self.server.process.poll()
        self.server.kill()
        assert status is None, f"the server ended by itself with {status}:\n" + "".join(self.server.log.lines)

    async def amid(self, *calls: Awaitable[object]) -> None:
        """Kill after some of the calls are answered, or a moment after they were sent."""
        if self.chance.random() < 0.5:
            await self.within(0.04, *calls)
            return
        tasks = [asyncio.create_task(_until_death(call)) for call in calls]
        for answer in islice(asyncio.as_completed(tasks), self.chance.randrange(len(tasks))):
            await answer
        self.kill()
        await asyncio.gather(*tasks)

    async def within(self, seconds: float, *calls: Awaitable[object]) -> None:
        """Kill at any time within these seconds after the calls were sent."""
        tasks = [asyncio.create_task(_until_death(call)) for call in calls]
        await asyncio.sleep(self.chance.uniform(0, seconds))
        self.kill()
        await asyncio.gather(*tasks)


async def acknowledgement(scene: Scene) -> None:
    """Right after a retain was acknowledged."""
    for fact in scene.some(scene.chance.randint(1, 4)):
        await scene.retain(fact)
    scene.kill()


async def first_retain(scene: Scene) -> None:
    """While a bank comes into being."""
    await scene.within(0.1, *map(scene.retain, scene.some(3)))


async def load(scene: Scene) -> None:
    """In the middle of a bulk load, right after the answer to a line."""
    facts, enough = scene.some(300), asyncio.Event()
    last = scene.chance.randrange(len(facts))
    loading = asyncio.create_task(_until_death(scene.load(facts, lambda line: enough.set() if line > last else None)))
    await asyncio.wait_for(enough.wait(), BOUND)
    scene.kill()
    await loading


async def persist(scene: Scene) -> None:
    """While Chroma writes a collection's files."""
    index = scene.folder / BANKS / BankId.parse(scene.book.bank).folder / "index"
    name, times, delay = scene.chance.choice(_FILES), scene.chance.randint(1, 2), scene.chance.choice((0, 0.001, 0.003))
    loading = asyncio.create_task(_until_death(scene.load(scene.some(_TO_TWO_WRITES))))

    def kill_amid_a_write() -> None:
        _wait_until_written(index, name, times)
        time.sleep(delay)
        scene.kill()

    await asyncio.to_thread(kill_amid_a_write)  # a write takes milliseconds; the event loop has other things to do
    await loading


async def forget(scene: Scene) -> None:
    """Among calls of forget, by id and by filter."""
    if not scene.book.kept:
        await scene.load(scene.some(40))
    ids = scene.old(8)
    lot = scene.book.kept[ids[0]].lot
    group = frozenset(id for id, fact in scene.book.kept.items() if fact.lot == lot)
    by_lot = scene.forget(group, filter=f"CAST(val('$.lot') AS text) = '{lot}'", dry_run=False, confirm=True)
    await scene.amid(by_lot, *(scene.forget(frozenset({id}), id=id) for id in ids if id not in group))


async def supersede(scene: Scene) -> None:
    """Among corrections, two of each memory at once: one of them is taken."""
    if not scene.book.kept:
        await scene.load(scene.some(40))
    olds = scene.old(5) * 2
    await scene.amid(*(scene.retain(fact, old) for old, fact in zip(olds, scene.some(len(olds)), strict=True)))


async def reindex(scene: Scene) -> None:
    """While a bank is given to another embedder, and retains go on."""
    await scene.amid(_reindexed(scene), *(scene.retain(fact) for fact in scene.some(3)))


async def export(scene: Scene) -> None:
    """While memories are exported, and retains go on."""
    await scene.amid(_exported(scene), *(scene.retain(fact) for fact in scene.some(3)))


async def any_time(scene: Scene) -> None:
    """At any time while everything goes on at once."""
    ids = scene.old(12)
    calls: list[Awaitable[object]] = [scene.recall(), _exported(scene)]
    calls += [scene.load(scene.some(lines)) for lines in (150, 20)]
    calls += [scene.retain(fact) for fact in scene.some(10)]
    calls += [scene.forget(frozenset({id}), id=id) for id in ids[:6]]
    calls += [scene.retain(fact, old) for old, fact in zip(ids[6:], scene.some(6), strict=False)]
    await scene.within(0.5, *calls)


async def recovery(scene: Scene) -> None:
    """While the server recovers from the last kill: it opens the bank, and rebuilds a torn index."""
    await scene.within(1, scene.recall(), *map(scene.retain, scene.some(2)))


async def _until_death(call: Awaitable[object]) -> None:
    with contextlib.suppress(Died, Refused):  # refused: another call was faster
        await call


async def _reindexed(scene: Scene) -> None:
    async with Wire(scene.server.url) as wire:
        waiting = 1
        while waiting:
            waiting = (await wire.ask("POST", f"/banks/{scene.book.bank}/reindex"))["waiting"]


async def _exported(scene: Scene) -> None:
    async with Wire(scene.server.url) as wire:
        async for _ in wire.lines("GET", f"/banks/{scene.book.bank}/memories"):
            pass


def _wait_until_written(index: Path, name: str, times: int) -> None:
    """Return as soon as the file of this name was written so many times from here on."""
    end, seen = time.monotonic() + BOUND, list[tuple[int, int]]()
    while len(seen) <= times:
        assert time.monotonic() < end, f"{name} was not written"
        found = {file: status for file, status in _stamp(index).items() if file.endswith(name)}
        # The pickle is made by the first write; the others are there, empty, from the first record on.
        for status in found.values() if found or name != "index_metadata.pickle" else [(0, 0)]:
            if status not in seen:
                seen.append(status)


def _stamp(index: Path) -> segments.Stamp:
    try:
        return segments.stamp(index)
    except FileNotFoundError:  # it is being made
        return {}
