"""The command line: one file per group of commands, each with `add` and nothing of its own to decide."""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import sys
from collections.abc import Sequence

from hindsight.cli import banks, check, export, keys, load, reindex, serve, tools
from hindsight.errors import HindsightError
from hindsight.folder import FolderHeld
from hindsight.settings import SettingsError


def main(given: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit status: 0, 1 for a failure, 2 for wrong arguments or settings."""
    parser = argparse.ArgumentParser(prog="hindsight", description="Long-term memory for AI agents over MCP.")
    parser.add_argument("--version", action="version", version=f"hindsight {importlib.metadata.version('hindsight')}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    serve.add(commands)
    load.add(commands)
    export.add(commands)
    tools.add(commands)
    banks.add(commands)
    reindex.add(commands)
    check.add(commands)
    keys.add(commands)
    arguments = parser.parse_args(given)
    os.umask(0o077)  # what is stored is for this user alone
    try:
        status: int = arguments.run(arguments)
    except SettingsError as error:
        print(f"hindsight: {error}", file=sys.stderr)
        return 2
    except HindsightError as error:
        print(f"hindsight: {error.message}. {error.advice}", file=sys.stderr)
        return 1
    except (FolderHeld, OSError) as error:
        print(f"hindsight: {error}", file=sys.stderr)
        return 1
    return status
