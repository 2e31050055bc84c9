"""The manifest and the tests agree."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from .manifest import PROMISES


@pytest.mark.parametrize("file", PROMISES)
def test_every_promise_has_a_test_and_every_test_a_promise(file: str) -> None:
    tree = ast.parse((Path(__file__).parent / f"{file}.py").read_text())
    functions = (node for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    written = sorted(node.name for node in functions if node.name.startswith("test_"))

    assert sorted(PROMISES[file].values()) == written
