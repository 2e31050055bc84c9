"""What docs/reliability.md says is so: each promise names a test or a measurement, and each of these exists."""

from __future__ import annotations

import ast
import os
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "reliability.md").read_text("utf-8")
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")
MEASURED = re.compile(r"scripts/bench/[a-z]+\b")


def promises() -> list[tuple[str, str]]:
    """The rows of the tables of promises: the promise, and what keeps it."""
    tables = re.findall(r"^\| promise \| kept by \|\n\|[-| ]+\|\n((?:\|.*\n)+)", PAGE, re.MULTILINE)
    rows = [line.strip("|").split(" | ") for table in tables for line in table.splitlines()]
    return [(promise.strip(), keeper.strip()) for promise, keeper in rows]


@cache
def names_in(file: str) -> set[str]:
    """The names of the tests in a file."""
    tree = ast.parse((ROOT / file).read_text("utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_every_promise_names_what_keeps_it() -> None:
    rows = promises()

    assert len(rows) > 20
    assert [promise for promise, keeper in rows if not NAMED.search(keeper)] == []


def test_every_test_that_is_named_exists() -> None:
    named = NAMED.findall(PAGE)

    assert [f"{file}::{name}" for file, name in named if not (ROOT / file).exists() or name not in names_in(file)] == []
    assert PAGE.count("::test_") == len(named)


def test_every_script_that_is_named_can_be_run() -> None:
    assert [name for name in MEASURED.findall(PAGE) if not os.access(ROOT / name, os.X_OK)] == []
