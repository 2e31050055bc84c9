"""hindsight load: files into a bank, on a server or in a data folder; safe to repeat."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from hindsight.cli.export import INDEX
from hindsight.cli.feeding import Batch, Feed, Job
from hindsight.cli.progress import Progress, Tally
from hindsight.cli.targets import Target, add_target, hint, open_target
from hindsight.errors import InvalidArgument
from hindsight.folder import FolderHeld
from hindsight.loading.files import FORMATS, How
from hindsight.loading.tables import FIELDS
from hindsight.record import BankId, MemoryType

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

_INTERRUPTED = 130
_ABOUT = (
    "Loads memories from NDJSON, JSON, CSV, TSV, Markdown, plain text, chat exports or folders of these; - is standard"
    " input. Repeating a load stores nothing twice, so after a stop the same command goes on."
)


def add(commands: Subparsers) -> None:
    """Add the command."""
    parser = commands.add_parser("load", help="load files into a bank", description=_ABOUT)
    parser.add_argument("files", nargs="*", metavar="FILE", help="files, folders, or - for standard input")
    parser.add_argument("--bank", help="the bank to load into")
    parser.add_argument("--all", metavar="DIR", type=Path, help="load all banks of a folder that export --all made")
    add_target(parser)
    parser.add_argument("--map", action="append", default=[], metavar="FIELD=COLUMN", help="which column is a field")
    parser.add_argument("--context", help="context of memories that bring none")
    parser.add_argument("--type", choices=list(MemoryType), help="type of memories that bring none")
    parser.add_argument("--session", help="session_id of memories that bring none")
    parser.add_argument("--tag", action="append", default=[], help="a tag for every memory")
    parser.add_argument("--format", choices=FORMATS, help="how to read the files, whatever their names")
    parser.add_argument("--by", choices=("heading", "paragraph"), default="heading", help="how to cut Markdown")
    parser.add_argument("--dry-run", action="store_true", help="store nothing; show the first five and count errors")
    parser.add_argument("--errors", type=Path, metavar="FILE", help="write lines that failed here, to be corrected")
    parser.add_argument(
        "--concurrency", type=int, default=1, metavar="N", help="batches sent at once; above 1, order is not kept"
    )
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    jobs = list(_jobs(arguments))
    tally = Tally(arguments.errors)
    try:
        with tally:
            for job in jobs if arguments.dry_run else ():
                _dry_run(job, tally)
            if not arguments.dry_run:
                asyncio.run(_load(arguments, jobs, tally))
    except KeyboardInterrupt:
        print(f"\nstopped; {tally.summary()}; the same command goes on from here", file=sys.stderr)
        return _INTERRUPTED
    except FolderHeld as error:
        raise FolderHeld(hint(error)) from error
    print(("would load: " if arguments.dry_run else "") + tally.summary(), file=sys.stderr)
    return 1 if tally.failed else 0


def _jobs(arguments: argparse.Namespace) -> Iterator[Job]:
    if arguments.all:
        for entry in json.loads((arguments.all / INDEX).read_text(encoding="utf-8"))["banks"]:
            file = str(arguments.all / Path(entry["file"]).name)
            yield Job(BankId.parse(entry["bank_id"]), (file,), How(format="ndjson"))
        return
    if not arguments.files or not (arguments.bank or arguments.dry_run):
        raise InvalidArgument("say which files to load and, with --bank, into which bank")
    if missing := [name for name in arguments.files if name != "-" and not Path(name).exists()]:
        raise InvalidArgument(f"there is no {missing[0]}")
    yield Job(
        BankId.parse(arguments.bank or "dry run"),
        tuple(arguments.files),
        How(format=arguments.format, columns=_columns(arguments.map), by=arguments.by),
        defaults={"context": arguments.context, "type": arguments.type, "session_id": arguments.session},
        tags=tuple(arguments.tag),
    )


def _columns(given: list[str]) -> dict[str, str]:
    columns = dict[str, str]()
    for each in given:
        field, equals, column = each.partition("=")
        if not equals or field not in FIELDS:
            raise InvalidArgument(f"--map {each}: must be FIELD=COLUMN with a field of {', '.join(sorted(FIELDS))}")
        columns[field] = column
    return columns


async def _load(arguments: argparse.Namespace, jobs: list[Job], tally: Tally) -> None:
    async with open_target(arguments) as target:
        for job in jobs:
            feed = Feed(job)
            with Progress(tally, feed, str(job.bank_id.text) if len(jobs) > 1 else ""):
                await _side_by_side(arguments.concurrency, partial(_work, target, job, feed, tally))


async def _side_by_side(many: int, work: Callable[[], Coroutine[object, object, None]]) -> None:
    """Run `work` so many times at once; raises the first error as it is."""
    try:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(max(1, many)):
                tasks.create_task(work())
    except BaseExceptionGroup as group:
        error: BaseException = group
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        raise error from None


async def _work(target: Target, job: Job, feed: Feed, tally: Tally) -> None:
    while (batch := await feed.next()) is not None:
        _note_broken(batch, tally)
        await target.load(job.bank_id, [item.line for item in batch.items], tally.listener(batch.items))


def _note_broken(batch: Batch, tally: Tally) -> None:
    for broken in batch.broken:
        tally.fail(broken.place, broken.reason, broken.raw)


def _dry_run(job: Job, tally: Tally) -> None:
    for batch in Feed(job).batches():
        _note_broken(batch, tally)
        for item in batch.items:
            if tally.try_out(item) and tally.stored <= 5:
                print(f"{item.place}: {item.line.decode()}")
