"""hindsight reindex: gives banks to the configured embedder; on a server, which answers recalls meanwhile, or a folder.

Ctrl-C ends the telling, not the work: whoever opens the bank next goes on with it.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, cast
from urllib.parse import quote

from hindsight.bank import Reindexing
from hindsight.cli.shown import printable
from hindsight.cli.targets import add_target
from hindsight.cli.tools import FAILURES, Refused, body_of, http_client, told
from hindsight.errors import InvalidArgument
from hindsight.folder import held_folder
from hindsight.record import BankId
from hindsight.settings import read_settings
from hindsight.wiring import make_embedder, open_banks

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

_PAUSE = 0.5  # seconds between two looks at how far it is

Ask = Callable[[BankId], Awaitable[Reindexing]]


def add(commands: Subparsers) -> None:
    """Add the command."""
    about = "Makes the vectors of a bank, or of all, anew with the configured embedder. Texts are not touched."
    parser = commands.add_parser("reindex", help="move banks to the configured embedder", description=about)
    parser.add_argument("--bank", help="the bank to reindex")
    parser.add_argument("--all", action="store_true", help="reindex all banks that come from another embedder")
    add_target(parser)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    if bool(arguments.bank) == arguments.all:
        return told(InvalidArgument("say which bank with --bank, or --all"), arguments.url)
    try:
        asyncio.run(_reindex(arguments))
    except FAILURES as error:
        return told(error, arguments.url)
    return 0


async def _reindex(arguments: argparse.Namespace) -> None:
    only = [BankId.parse(arguments.bank)] if arguments.bank else None
    async with (_on_server if arguments.url else _in_folder)(arguments) as (ask, banks):
        for bank_id in only or banks:
            await _follow(ask, bank_id)


@asynccontextmanager
async def _on_server(arguments: argparse.Namespace) -> AsyncIterator[tuple[Ask, list[BankId]]]:
    async with http_client(arguments) as client:

        async def ask(bank_id: BankId) -> Reindexing:
            return cast(Reindexing, body_of(await client.post(f"/banks/{quote(bank_id.text, safe='')}/reindex")))

        found = body_of(await client.get("/banks"))["banks"]
        yield ask, [BankId.parse(bank["bank_id"]) for bank in found]


@asynccontextmanager
async def _in_folder(arguments: argparse.Namespace) -> AsyncIterator[tuple[Ask, list[BankId]]]:
    settings = read_settings(data_dir=arguments.data_dir)
    if not settings.data_dir.is_dir():  # nothing else runs yet
        raise Refused(f"there is no data folder {settings.data_dir}", next_action="Name it with --data-dir.")
    with held_folder(settings.data_dir, "hindsight reindex") as folder:
        async with open_banks(settings, folder, make_embedder(settings)) as banks:

            async def ask(bank_id: BankId) -> Reindexing:
                async with banks.lease(bank_id) as bank:
                    return await bank.reindex()

            yield ask, [BankId(glance.bank_id) for glance in await banks.glances()]


async def _follow(ask: Ask, bank_id: BankId) -> None:
    """Start it, and tell how far it is until it is done."""
    before = -1
    while (now := await ask(bank_id))["waiting"]:
        if now["waiting"] != before:
            _tell(bank_id, now, end="" if sys.stderr.isatty() else "\n")
        before = now["waiting"]
        await asyncio.sleep(_PAUSE)
    _tell(bank_id, now, end="\n")


def _tell(bank_id: BankId, now: Reindexing, end: str) -> None:
    start = "\r\x1b[K" if sys.stderr.isatty() else ""
    done, total = now["passages"] - now["waiting"], now["passages"]
    part = f"{done / total:.0%} " if total else ""
    line = f"{bank_id.text}: {part}{done:,} of {total:,} passages have vectors of {now['embedder']}"
    print(f"{start}{printable(line)}", end=end, file=sys.stderr, flush=True)
