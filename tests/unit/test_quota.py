"""How much a bank may hold."""

from __future__ import annotations

import pytest

from hindsight.quota import Quota


@pytest.mark.parametrize(
    ("quota", "memories", "size", "room"),
    [
        (Quota(), 10**9, 10**15, None),
        (Quota(memories=10), 0, 10**15, 10),
        (Quota(memories=10), 9, 0, 1),
        (Quota(memories=10), 10, 0, 0),
        (Quota(memories=10), 12, 0, 0),
        (Quota(bytes=1000), 10**9, 999, None),
        (Quota(bytes=1000), 0, 1000, 0),
        (Quota(memories=10, bytes=1000), 0, 1000, 0),
        (Quota(memories=10, bytes=1000), 4, 10, 6),
    ],
)
def test_a_bank_takes_as_many_more_as_both_limits_leave(
    quota: Quota, memories: int, size: int, room: int | None
) -> None:
    assert quota.room(memories, size) == room


def test_a_full_bank_says_what_its_limits_are_and_what_to_do() -> None:
    refusal = Quota(memories=1000, bytes=5_000_000).refusal().as_json()["error"]

    assert refusal["code"] == "STORAGE_FULL"
    assert refusal["message"] == "this bank may hold 1,000 memories and 5,000,000 bytes, and is full"
    assert "operator" in refusal["next_action"]
    assert not Quota()
