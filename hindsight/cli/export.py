"""hindsight export: a bank, or all of them, as NDJSON that `hindsight load` takes back."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from contextlib import aclosing
from pathlib import Path
from typing import IO, TYPE_CHECKING

from hindsight.cli.targets import Target, add_target, bank_file, hint, open_target
from hindsight.errors import InvalidArgument
from hindsight.folder import FolderHeld
from hindsight.record import BankId

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

INDEX = "banks.json"


def add(commands: Subparsers) -> None:
    """Add the command."""
    about = "Writes a bank's memories as NDJSON, or all banks into a folder; keys are not part of it."
    parser = commands.add_parser("export", help="write banks as NDJSON", description=about)
    parser.add_argument("--bank", help="the bank to export")
    parser.add_argument("--all", metavar="DIR", type=Path, help="export all banks into this folder")
    parser.add_argument("-o", "--output", metavar="FILE", type=Path, help="write here instead of to standard output")
    add_target(parser)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    if bool(arguments.bank) == bool(arguments.all):
        raise InvalidArgument("say which bank to export with --bank, or --all DIR for all of them")
    if arguments.all:
        arguments.all.mkdir(parents=True, exist_ok=True)
    try:
        asyncio.run(_export(arguments))
    except FolderHeld as error:
        raise FolderHeld(hint(error)) from error
    return 0


async def _export(arguments: argparse.Namespace) -> None:
    async with open_target(arguments) as target:
        if arguments.all:
            await _export_all(target, arguments.all)
            return
        bank_id = BankId.parse(arguments.bank)
        if bank_id not in await target.banks():
            raise InvalidArgument(f"there is no bank {bank_id.text}; hindsight banks lists those there are")
        if arguments.output:
            count = await _to_file(target, bank_id, arguments.output)
            print(f"{count:,} memories", file=sys.stderr)
        else:
            await _write(target, bank_id, sys.stdout.buffer)


async def _export_all(target: Target, folder: Path) -> None:
    entries = []
    for bank_id in await target.banks():
        file = bank_file(folder, bank_id)
        count = await _to_file(target, bank_id, file)
        entries.append({"bank_id": bank_id.text, "file": file.name, "memories": count})
        print(f"{bank_id.text}: {count:,} memories", file=sys.stderr)
    if not entries:
        raise InvalidArgument("there are no banks to export")
    # Last, so that a folder with it is whole.
    (folder / INDEX).write_text(json.dumps({"banks": entries}, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


async def _to_file(target: Target, bank_id: BankId, file: Path) -> int:
    """Write an export under its name once it is whole; returns how many memories it has."""
    part = file.with_name(f"{file.name}.part")
    with part.open("wb") as open_file:
        count = await _write(target, bank_id, open_file)
        open_file.flush()
        os.fsync(open_file.fileno())
    part.replace(file)
    return count


async def _write(target: Target, bank_id: BankId, file: IO[bytes]) -> int:
    count = 0
    async with aclosing(target.export(bank_id)) as chunks:
        async for chunk in chunks:
            count += chunk.count(b"\n")
            await asyncio.to_thread(file.write, chunk)
    await asyncio.to_thread(file.flush)
    return count
