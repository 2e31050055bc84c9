"""The manifest and the tests agree."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from .manifest import PROMISES

HERE = Path(__file__).parent


@pytest.mark.parametrize("file", PROMISES)
def test_every_promise_has_a_test_and_every_test_a_promise(file: str) -> None:
    written = re.findall(r"^(?:async )?def (test_\w+)", (HERE / f"{file}.py").read_text(), re.MULTILINE)

    assert sorted(PROMISES[file].values()) == sorted(written)
