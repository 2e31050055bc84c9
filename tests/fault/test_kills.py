"""kill -9 at every moment that matters: what was acknowledged is there afterwards, and what was forgotten is not."""

from __future__ import annotations

import re

import pytest

from tests.crash.campaign import MOMENTS
from tests.measured import within_bounds


@pytest.mark.slow
def test_of_sixty_kills_at_every_moment_none_loses_anything() -> None:
    told = within_bounds("crash", "--kills", "60", seconds=1_800)  # three minutes, on two cores of its own
    found = {name.strip(): int(count) for name, count in re.findall(r"^(\D+?) +(\d+)$", told, re.MULTILINE)}

    assert found["losses"] == 0
    assert found["kills in all"] == 60
    assert [name for name in MOMENTS if not found.get(f"kills: {name}")] == []
    assert 0 < found["torn indexes met"] <= found["indexes moved aside and rebuilt"]
