"""What `hindsight load` reads, made ready to be sent: lines of NDJSON, in batches."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from hindsight.loading import Broken, Found
from hindsight.loading.files import How, read, size_of
from hindsight.messages import encode
from hindsight.record import BankId, JsonObject

_LINES = 512
_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Job:
    """Files for a bank; `defaults` are for memories that bring none of their own, `tags` for all."""

    bank_id: BankId
    files: tuple[str, ...]
    how: How
    defaults: Mapping[str, str | None] = field(default_factory=dict)
    tags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Ready:
    """A line to send, and where it comes from."""

    place: str
    line: bytes


@dataclass(slots=True)
class Batch:
    """Lines that are sent together, and what could not be read between them."""

    items: list[Ready] = field(default_factory=list)
    broken: list[Broken] = field(default_factory=list)
    size: int = 0


class Feed:
    """Reads a job's files, in a thread, as fast as the batches are taken. `seen` of `total` bytes are read."""

    def __init__(self, job: Job) -> None:
        sizes = [size_of(name) for name in job.files]
        self.total = None if None in sizes else sum(size for size in sizes if size is not None)
        self.seen = 0
        self._job = job
        self._batches = self.batches()
        self._turn = asyncio.Lock()

    async def next(self) -> Batch | None:
        """The next batch; None at the end."""
        async with self._turn:
            return await asyncio.to_thread(next, self._batches, None)

    def batches(self) -> Iterator[Batch]:
        """All batches, in order. Blocking."""
        batch = Batch()
        for found in self._found():
            if isinstance(found, Broken):
                batch.broken.append(found)
            else:
                line = encode(self._fields(found.fields))
                batch.items.append(Ready(found.place, line))
                batch.size += len(line)
            if len(batch.items) + len(batch.broken) >= _LINES or batch.size >= _BYTES:
                yield batch
                batch = Batch()
        if batch.items or batch.broken:
            yield batch

    def _found(self) -> Iterator[Found]:
        for name in self._job.files:
            yield from read(name, self._job.how, self._count)

    def _count(self, size: int) -> None:
        self.seen += size

    def _fields(self, given: JsonObject) -> JsonObject:
        fields = dict(given)
        for name, column in self._job.how.columns.items():
            if column in fields:
                fields[name] = fields.pop(column)
        for name, default in self._job.defaults.items():
            if default is not None and fields.get(name) is None:
                fields[name] = default
        if self._job.tags:
            fields["tags"] = [*_listed(fields.get("tags")), *self._job.tags]
        return fields


def _listed(tags: object) -> list[object]:
    """Tags as the file has them: a list, or text that reads as one or as words between commas."""
    if isinstance(tags, str):
        try:
            found = json.loads(tags) if tags.lstrip().startswith("[") else tags.split(",")
        except ValueError:
            found = [tags]
        return [tag.strip() if isinstance(tag, str) else tag for tag in found if tag]
    return list(tags) if isinstance(tags, list) else []
