"""hindsight check: is every bank sound, and is everything that was forgotten gone from the files?"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from hindsight.cli.shown import printable
from hindsight.folder import BANKS, held_folder
from hindsight.settings import read_settings
from hindsight.wiring import check_bank

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

_ABOUT = (
    "Verify every bank of a data folder that no server holds, and write its files anew without the remains of what was "
    "forgotten; the index of such a bank is made again at its next use. Exits with 1 when a bank is damaged; a damaged "
    "one is left as it is."
)


def add(commands: Subparsers) -> None:
    """Add the command."""
    parser = commands.add_parser("check", help="verify the banks and purge what was forgotten", description=_ABOUT)
    parser.add_argument("--data-dir", help="data folder [HINDSIGHT_DATA_DIR]")
    parser.set_defaults(run=_check)


def _check(arguments: argparse.Namespace) -> int:
    settings = read_settings(data_dir=arguments.data_dir)
    status = 0
    with held_folder(settings.data_dir, "hindsight check") as folder:
        for bank in sorted(path for path in (folder / BANKS).glob("*") if path.is_dir()):
            name, faults = check_bank(bank)
            sys.stdout.writelines(f"{printable(name)}: {printable(line)}\n" for line in faults or ["sound"])
            status = 1 if faults else status
    return status
