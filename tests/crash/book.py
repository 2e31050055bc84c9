"""What a bank must hold after a crash, and whether it does: by id, words and meaning, in its export and its links."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random

from hindsight.record import JsonObject
from tests.crash.facts import Fact
from tests.crash.wire import Refused, Wire
from tests.serving import BOUND

_AT_ONCE = 4  # questions
_AGAIN = 0.1  # seconds between two questions whose answer is still on its way

Look = Callable[[Wire, str], Awaitable[list[str]]]


@dataclass
class Book:
    """What a bank has acknowledged, and what it was asked and had not answered when it died.

    `kept` and `gone` are by id; `sent` is by text, each with the id of the one that it shall replace, if any; a group
    of `leaving` goes as a whole or stays. `successors` are the new ones' ids by the old ones'. `fresh` are the ids that
    were not looked at since they were acknowledged.
    """

    bank: str
    kept: dict[str, Fact] = field(default_factory=dict)
    sent: dict[str, tuple[Fact, str | None]] = field(default_factory=dict)
    gone: dict[str, Fact] = field(default_factory=dict)
    leaving: list[frozenset[str]] = field(default_factory=list)
    successors: dict[str, str] = field(default_factory=dict)
    fresh: set[str] = field(default_factory=set)

    def stored(self, id: str, fact: Fact, old: str | None = None) -> None:
        """The bank has acknowledged a fact, in place of an old one if there is one."""
        self.kept[id] = fact
        self.fresh.add(id)
        self.sent.pop(fact.text, None)
        if old is not None:
            self.successors[old] = id
            self.fresh.add(old)

    def forgotten(self, ids: frozenset[str]) -> None:
        """The bank has acknowledged that these are gone."""
        for id in ids & self.kept.keys():
            self.gone[id] = self.kept.pop(id)
            self.successors.pop(id, None)
        self.fresh |= ids
        self.successors = {old: new for old, new in self.successors.items() if new not in ids}
        self.leaving = [group for group in self.leaving if group != ids]

    async def losses(self, url: str, chance: Random, most: int) -> tuple[int, list[str]]:
        """What the bank at `url` lacks, or holds and must not: nothing when all is well; and how many were asked for.

        The export is compared whole; of what is fresh, and of the rest, at most `most` each are asked for one by one.
        What was in flight is settled: it is in the book or out of it from here on.
        """
        losses = await self._of_export(url)
        kept = _some(self.fresh & self.kept.keys(), self.kept, chance, most)
        gone = _some(self.fresh & self.gone.keys(), self.gone, chance, most)
        losses += await _asked(url, kept, self._by_id) + await _asked(url, gone, self._gone_by_id)
        losses += await _asked(url, kept, self._by_words) + await _asked(url, gone, self._gone_by_words)
        await self._given_vectors(url)
        losses += await _asked(url, kept, self._by_meaning) + await _asked(url, gone, self._gone_by_meaning)
        self.fresh.clear()
        return len(kept) + len(gone), losses

    async def _of_export(self, url: str) -> list[str]:
        async with Wire(url) as wire:
            records = [json.loads(line) async for line in wire.lines("GET", f"/banks/{self.bank}/memories")]
        found = {record["id"]: record for record in records}
        losses = list(self._settled(found))
        if not len(records) == len(found) == len({record["text"] for record in records}):
            losses.append("a memory is twice in the export")
        losses += [
            f"{id} was acknowledged and is not exported: {self.kept[id].text}" for id in self.kept.keys() - found
        ]
        losses += [f"{id} was forgotten and is exported" for id in self.gone.keys() & found.keys()]
        losses += [f"{id} was never sent and is exported" for id in found.keys() - self.kept.keys() - self.gone.keys()]
        others = [id for id in self.kept.keys() & found.keys() if found[id]["text"] != self.kept[id].text]
        return [*losses, *(f"{id} is exported with another text" for id in others), *self._of_links(found)]

    def _settled(self, found: dict[str, JsonObject]) -> Iterator[str]:
        for group in self.leaving[:]:
            left = group & found.keys()
            if left and left != group:
                yield f"of {len(group)} to be forgotten by one call {len(left)} are left"
            if not left:
                self.forgotten(group)
        for id, record in found.items():
            if id not in self.kept and record["text"] in self.sent:
                self.stored(id, *self.sent[record["text"]])
        self.leaving.clear()
        self.sent.clear()

    def _of_links(self, found: dict[str, JsonObject]) -> Iterator[str]:
        links = {(record["supersedes"], id) for id, record in found.items() if record["supersedes"] is not None}
        if links ^ {(id, it["superseded_by"]) for id, it in found.items() if it["superseded_by"] is not None}:
            yield "a memory and its successor do not name each other"
        if wrong := links ^ self.successors.items():
            yield f"{len(wrong)} links are not as they were acknowledged"

    async def _given_vectors(self, url: str) -> None:
        """Return once every passage has a vector of the embedder in use."""
        least, end = None, 0.0
        async with Wire(url) as wire:
            while (told := await wire.ask("POST", f"/banks/{self.bank}/reindex"))["waiting"]:
                if told["waiting"] != least:
                    least, end = told["waiting"], time.monotonic() + BOUND
                assert time.monotonic() < end, f"{least} passages wait for their vectors in vain"
                await asyncio.sleep(_AGAIN)

    async def _by_id(self, wire: Wire, id: str) -> list[str]:
        try:
            record = await wire.call(self.bank, "get_memory", id=id)
        except Refused as error:
            return [f"{id} is not found by its id: {error}"]
        return [] if record["text"] == self.kept[id].text else [f"{id} has another text by its id"]

    async def _gone_by_id(self, wire: Wire, id: str) -> list[str]:
        try:
            await wire.call(self.bank, "get_memory", id=id)
        except Refused as error:
            return [] if str(error) == "MEMORY_NOT_FOUND" else [f"a forgotten id gives {error}"]
        return [f"{id} was forgotten and is found by its id"]

    async def _by_words(self, wire: Wire, id: str) -> list[str]:
        losses = []
        if (await self._found(wire, self.kept[id].words, superseded=True))[:1] != [id]:
            losses.append(f"{id} is not found by its words: {self.kept[id].words}")
        if id in self.successors and id in await self._found(wire, self.kept[id].words, superseded=False):
            losses.append(f"{id} is superseded and recall shows it")
        return losses

    async def _by_meaning(self, wire: Wire, id: str) -> list[str]:
        if (await self._found(wire, self.kept[id].meaning, superseded=True))[:1] != [id]:
            return [f"{id} is not found by its meaning: {self.kept[id].meaning}"]
        return []

    async def _gone_by_words(self, wire: Wire, id: str) -> list[str]:
        found = await self._found(wire, self.gone[id].words, superseded=True)
        return [f"{id} was forgotten and is found by its words"] if id in found else []

    async def _gone_by_meaning(self, wire: Wire, id: str) -> list[str]:
        found = await self._found(wire, self.gone[id].meaning, superseded=True)
        return [f"{id} was forgotten and is found by its meaning"] if id in found else []

    async def _found(self, wire: Wire, query: str, *, superseded: bool) -> list[str]:
        end = time.monotonic() + BOUND
        while True:
            answer = await wire.call(self.bank, "recall", query=query, max_results=3, include_superseded=superseded)
            if not any("still opening" in warning for warning in answer.get("warnings", ())):
                return [result["id"] for result in answer["results"]]
            assert time.monotonic() < end, answer["warnings"]
            await asyncio.sleep(_AGAIN)


def _some(fresh: set[str], all: dict[str, Fact], chance: Random, most: int) -> list[str]:
    others = sorted(all.keys() - fresh)
    return chance.sample(sorted(fresh), min(most, len(fresh))) + chance.sample(others, min(most, len(others)))


async def _asked(url: str, ids: Sequence[str], look: Look) -> list[str]:
    """What `look` tells of each, some at a time."""
    left = iter(ids)

    async def one_by_one() -> list[str]:
        async with Wire(url) as wire:
            return [loss for id in left for loss in await look(wire, id)]

    return [loss for losses in await asyncio.gather(*(one_by_one() for _ in range(_AT_ONCE))) for loss in losses]
