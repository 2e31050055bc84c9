"""Who calls: a name for the logs, what it may do, and an identity that sessions belong to."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any, cast

SCOPE_KEY = "hindsight.caller"


@dataclass(frozen=True, slots=True)
class Caller:
    """One caller. `key` is opaque: equal keys are the same caller, and only that one reaches its sessions."""

    name: str
    may_write: bool = True
    key: Hashable = None


ANYONE = Caller("anyone")


def caller_of(scope: Mapping[str, Any]) -> Caller:
    """Whom authentication found for this request; anyone when there is no authentication."""
    return cast(Caller, scope.get(SCOPE_KEY, ANYONE))
