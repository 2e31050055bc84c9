"""The manifest and the tests agree."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from .manifest import PROMISES, REPORTED

TESTS = Path(__file__).parents[1]


@pytest.mark.parametrize("file", PROMISES)
def test_every_promise_has_a_test_and_every_test_a_promise(file: str) -> None:
    assert sorted(PROMISES[file].values()) == sorted(names_in(f"protocol/{file}"))


def test_everything_that_went_wrong_elsewhere_has_a_test() -> None:
    named = {name for names in REPORTED.values() for name in names}
    written = {f"{file}::{name}" for file in {name.partition("::")[0] for name in named} for name in names_in(file)}

    assert named <= written


def names_in(file: str) -> list[str]:
    """The names of the tests in a file, which is given without its suffix."""
    return re.findall(r"^(?:async )?def (test_\w+)", (TESTS / f"{file}.py").read_text("utf-8"), re.MULTILINE)
