"""hindsight banks: which banks there are, on a server or in a data folder."""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NotRequired, TypedDict

from hindsight.cli.shown import printable, table
from hindsight.cli.targets import add_target
from hindsight.cli.tools import FAILURES, Refused, body_of, http_client, told
from hindsight.folder import BANKS, held_folder
from hindsight.ledger import Glance
from hindsight.messages import encode
from hindsight.record import BankId
from hindsight.settings import read_settings
from hindsight.wiring import make_embedder, open_banks

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]


class Listed(TypedDict):
    """A bank in the list; `bytes` on disk, which only the data folder tells. A `damaged` one can't be counted."""

    bank_id: str
    memories: int
    bytes: NotRequired[int]
    damaged: NotRequired[bool]


def add(commands: Subparsers) -> None:
    """Add the command."""
    parser = commands.add_parser("banks", help="list the banks", description="Lists the banks with their sizes.")
    parser.add_argument("--json", action="store_true", help="print the list as JSON")
    add_target(parser)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    try:
        banks = asyncio.run((_of_server if arguments.url else _of_folder)(arguments))
    except FAILURES as error:
        return told(error, arguments.url)
    if arguments.json:
        sys.stdout.buffer.write(encode({"banks": banks}) + b"\n")
    else:
        rows = [("BANK", "MEMORIES", "BYTES"), *map(_row, banks)]
        sys.stdout.writelines(f"{printable(line)}\n" for line in (table(rows) if banks else ["No banks."]))
    return 0


async def _of_server(arguments: argparse.Namespace) -> list[Listed]:
    async with http_client(arguments) as client:
        found: list[Listed] = body_of(await client.get("/banks"))["banks"]
    return found


async def _of_folder(arguments: argparse.Namespace) -> list[Listed]:
    settings = read_settings(data_dir=arguments.data_dir)
    if not settings.data_dir.is_dir():
        raise Refused(f"there is no data folder {settings.data_dir}", next_action="Name it with --data-dir.")
    with held_folder(settings.data_dir, "hindsight banks") as folder:
        async with open_banks(settings, folder, make_embedder(settings)) as banks:
            glances = await banks.glances()
        return [_listed(glance, folder / BANKS) for glance in glances]


def _listed(glance: Glance, folder: Path) -> Listed:
    listed = Listed(bank_id=glance.bank_id, memories=glance.memories, bytes=_size(folder, glance.bank_id))
    if glance.damaged:
        listed["damaged"] = True
    return listed


def _row(bank: Listed) -> tuple[str, ...]:
    memories = "damaged" if bank.get("damaged") else f"{bank['memories']:,}"
    return bank["bank_id"], memories, f"{bank['bytes']:,}" if "bytes" in bank else "-"


def _size(folder: Path, bank_id: str) -> int:
    return sum(path.stat().st_size for path in (folder / BankId(bank_id).folder).rglob("*") if path.is_file())
