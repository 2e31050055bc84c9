"""Many banks in one server: few are open at a time, and all of them are right."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.measured import within_bounds

RIGHT = "all memories are right"


@pytest.mark.slow
def test_banks_that_take_turns_being_open_tell_all_of_their_own_and_nothing_else(model_folder: Path) -> None:
    told = within_bounds("banks", "--banks", "12", "--memories", "12", "--open", "4", "--embedder", "onnx", seconds=120)

    assert told.splitlines()[-1] == RIGHT


@pytest.mark.slow
def test_many_banks_take_the_memory_and_descriptors_of_those_that_may_be_open() -> None:
    told = within_bounds(
        "banks", "--banks", "400", "--memories", "20", "--open", "64", seconds=900
    )  # the script: 1,000

    assert told.splitlines()[-1] == RIGHT
