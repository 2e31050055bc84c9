"""hindsight check: is every bank sound? Repairs what is not, if told to; purges what was forgotten from the files."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from hindsight.checkup import Checkup, Finding
from hindsight.cli.shown import printable
from hindsight.folder import FolderHeld, held_folder
from hindsight.settings import read_settings
from hindsight.wiring import check_banks

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

_ABOUT = (
    "Verify every bank of a data folder that no server holds: its ledger, and words, vectors, links and index against "
    "it. A sound bank whose files still hold remains of what was forgotten is written anew without them; its index is "
    "made again at its next use. Nothing else is changed without --repair. Exits with 0 when all banks are sound by "
    "now, with 1 when something is wrong or lost, with 2 when the folder can't be checked."
)
_REPAIR = (
    "repair what is wrong: drop what can be made again, and save what can be read of a damaged ledger into a new one; "
    "the damaged one is kept beside it"
)


def add(commands: Subparsers) -> None:
    """Add the command."""
    parser = commands.add_parser("check", help="verify and repair banks, purge what was forgotten", description=_ABOUT)
    parser.add_argument("--repair", action="store_true", help=_REPAIR)
    parser.add_argument("--data-dir", help="data folder [HINDSIGHT_DATA_DIR]")
    parser.set_defaults(run=_check)


def _check(arguments: argparse.Namespace) -> int:
    settings = read_settings(data_dir=arguments.data_dir)
    if not settings.data_dir.is_dir():
        return _refused(f"there is no data folder {settings.data_dir}; name it with --data-dir")
    bad = 0
    try:
        with held_folder(settings.data_dir, "hindsight check") as folder:
            for checkup in check_banks(folder, settings, repair=arguments.repair):
                sys.stdout.writelines(f"{printable(checkup.name)}: {printable(line)}\n" for line in _lines(checkup))
                bad += not checkup.good
    except FolderHeld as error:
        return _refused(f"{error}; stop it first")
    if bad and not arguments.repair:
        print(f"Banks that are not sound: {bad:,}. To repair them: hindsight check --repair")
    return 1 if bad else 0


def _refused(reason: str) -> int:
    print(f"hindsight: {reason}", file=sys.stderr)
    return 2


def _lines(checkup: Checkup) -> Iterator[str]:
    if not checkup.findings:
        yield "sound"
    for finding in checkup.findings:
        yield finding.what
        yield from (f"  {line}" for line in _told(finding))


def _told(finding: Finding) -> Iterator[str]:
    if finding.remedy:
        yield f"{'repaired by' if finding.repaired else 'can be repaired by'} {finding.remedy}"
    yield from finding.notes
