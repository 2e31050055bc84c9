"""How many requests a key may make in a minute."""

from __future__ import annotations

import pytest

from hindsight.errors import RateLimited
from hindsight.http import limits
from hindsight.http.limits import Allowance


class Clock:
    """A time that a test sets."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


def taken(allowance: Allowance, caller: str, times: int) -> int:
    """How many of so many requests are let through."""
    good = 0
    for _ in range(times):
        try:
            allowance.take(caller)
            good += 1
        except RateLimited:
            pass
    return good


def test_a_minute_s_worth_may_come_at_once_and_then_at_an_even_rate() -> None:
    clock = Clock()
    allowance = Allowance(60, clock)

    at_once = taken(allowance, "ada", 100)
    clock.seconds += 10
    after_ten_seconds = taken(allowance, "ada", 100)
    clock.seconds += 3600
    after_an_hour = taken(allowance, "ada", 100)

    assert (at_once, after_ten_seconds, after_an_hour) == (60, 10, 60)


def test_who_is_refused_is_told_how_long_to_wait_and_waiting_helps() -> None:
    clock = Clock()
    allowance = Allowance(6, clock)
    taken(allowance, "ada", 6)

    with pytest.raises(RateLimited, match="6 requests a minute") as refused:
        allowance.take("ada")
    clock.seconds += refused.value.retry_after

    assert refused.value.retry_after == 10
    assert taken(allowance, "ada", 2) == 1


def test_one_caller_does_not_use_up_another_s() -> None:
    allowance = Allowance(5, Clock())
    taken(allowance, "ada", 5)

    assert taken(allowance, "bob", 5) == 5


def test_it_remembers_a_bounded_number_of_callers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MOST_CALLERS", 3)
    allowance = Allowance(1, Clock())

    for name in ("a", "b", "c", "d"):
        allowance.take(name)

    assert taken(allowance, "b", 1) == 0
    assert taken(allowance, "a", 1) == 1
