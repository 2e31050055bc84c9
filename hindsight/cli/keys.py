"""hindsight keys: creates, lists and revokes API keys, also while a server holds the data folder."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from hindsight.keys import Key, KeyFile, parse_day
from hindsight.settings import read_settings

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]


def add(commands: Subparsers) -> None:
    """Add the command with its own: create, list, revoke."""
    about = "create, list and revoke API keys"
    keys = commands.add_parser("keys", help=about, description="API keys; a running server follows within a second.")
    actions = keys.add_subparsers(title="commands", required=True, metavar="COMMAND")
    create = actions.add_parser("create", help="make a key and print it, this once")
    create.add_argument("--name", required=True, help="what the key is called in lists, logs and the audit file")
    create.add_argument("--banks", required=True, help="banks it may use, by commas; * stands for any text: 'team-*'")
    create.add_argument("--scopes", default="read,write", help="read, or read,write (default)")
    create.add_argument("--expires", metavar="DATE", help="last day on which it is good, UTC: 2027-01-31")
    revoke = actions.add_parser("revoke", help="end a key and its sessions")
    revoke.add_argument("name", metavar="NAME")
    listed = actions.add_parser("list", help="show the keys, without what is secret")
    for parser, run in ((create, _create), (listed, _list), (revoke, _revoke)):
        parser.add_argument("--data-dir", help="folder that holds everything stored [HINDSIGHT_DATA_DIR]")
        parser.set_defaults(run=_on_file(run))


def _create(arguments: argparse.Namespace, file: KeyFile) -> None:
    expires = parse_day(arguments.expires) if arguments.expires is not None else None
    key, secret = Key.create(arguments.name, _listed(arguments.banks), _listed(arguments.scopes), expires)
    file.add(key)
    print(secret)
    print(
        "This is the only time that the key is shown. Send it as x-api-key or Authorization: Bearer.", file=sys.stderr
    )


def _list(arguments: argparse.Namespace, file: KeyFile) -> None:
    rows = [("NAME", "SCOPES", "BANKS", "EXPIRES", "CREATED")]
    for key in file.read() or ():
        scopes = "read,write" if key.may_write else "read"
        until = key.expires.isoformat() if key.expires else "never"
        rows.append((key.name, scopes, ",".join(key.banks), until, key.created))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _revoke(arguments: argparse.Namespace, file: KeyFile) -> None:
    file.remove(arguments.name)
    print(f"revoked {arguments.name}")


def _on_file(run: Callable[[argparse.Namespace, KeyFile], None]) -> Callable[[argparse.Namespace], int]:
    def running(arguments: argparse.Namespace) -> int:
        run(arguments, KeyFile(read_settings(data_dir=arguments.data_dir).data_dir))
        return 0

    return running


def _listed(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]
