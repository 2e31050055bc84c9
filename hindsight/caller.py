"""Who calls: a name for the logs, what it may do, where, and an identity that sessions belong to."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from hindsight.record import BankId

SCOPE_KEY = "hindsight.caller"


@dataclass(frozen=True, slots=True)
class Caller:
    """One caller. `key` is opaque: equal keys are the same caller, and only that one reaches its sessions.

    `banks` are patterns of the bank ids it may use, in which a * stands for any text.
    """

    name: str
    may_write: bool = True
    key: Hashable = None
    banks: tuple[str, ...] = ("*",)

    def reaches(self, bank_id: BankId) -> bool:
        """Whether this caller may use the bank."""
        return any(fits(pattern, bank_id.text) for pattern in self.banks)


ANYONE = Caller("anyone")


def caller_of(scope: Mapping[str, Any]) -> Caller:
    """Whom authentication found for this request; anyone when there is no authentication."""
    return cast(Caller, scope.get(SCOPE_KEY, ANYONE))


def fits(pattern: str, text: str) -> bool:
    """Whether `text` is the pattern, each * in it standing for any text or none. Takes linear time."""
    first, *rest = pattern.split("*")
    if not rest:
        return text == pattern
    *middle, last = rest
    place, end = len(first), len(text) - len(last)
    if place > end or not text.startswith(first) or not text.endswith(last):
        return False
    for part in middle:
        found = text.find(part, place, end)
        if found < 0:
            return False
        place = found + len(part)
    return True
