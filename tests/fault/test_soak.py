"""A long run in short: the same clients, restarts and bounds as in scripts/bench/soak."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.measured import within_bounds


@pytest.mark.slow
def test_clients_at_work_over_two_restarts_lose_nothing_and_leave_nothing_behind(model_folder: Path) -> None:
    told = within_bounds("soak", "--minutes", "0.7", seconds=600)

    assert told.splitlines()[-1] == "flat, and nothing lost"
