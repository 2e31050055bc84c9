"""A ledger's conditions as SQL over its tables; what SQL can't say is judged by the predicate."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from hindsight.ledger import Conditions
from hindsight.record import JsonObject


def as_sql(conditions: Conditions) -> tuple[str, list[Any]]:
    """The conditions but for the predicate as SQL and its values."""
    parts: list[tuple[str, Sequence[Any]]] = [("1", ())]
    for column, wanted in (("type", conditions.types), ("context", conditions.contexts)):
        if wanted:
            parts.append((f"{column} IN ({marks(wanted)})", wanted))
    if conditions.tags:
        least = len(conditions.tags) if conditions.all_tags else 1
        having = f"SELECT number FROM tag WHERE tag IN ({marks(conditions.tags)}) GROUP BY 1 HAVING count(*) >= ?"
        parts.append((f"number IN ({having})", (*conditions.tags, least)))
    if conditions.since is not None:
        # An instant at `since` counts, a day that ends there does not.
        parts.append(("(time_end > ? OR time_start >= ?)", (conditions.since, conditions.since)))
    if conditions.until is not None:
        parts.append(("time_start < ?", (conditions.until,)))
    if conditions.session_id is not None:
        parts.append(("session_id = ?", (conditions.session_id,)))
    if not conditions.superseded:
        parts.append(("superseded_by IS NULL", ()))
    return " AND ".join(part for part, _ in parts), [value for _, values in parts for value in values]


def marks(values: Sequence[object]) -> str:
    """Placeholders for as many values."""
    return ",".join("?" * len(values))


class Judge:
    """A predicate over metadata as it is stored; equal texts are judged once."""

    def __init__(self, predicate: Callable[[JsonObject], bool]) -> None:
        self._predicate = predicate
        self._known: dict[str, bool] = {}

    def __call__(self, metadata: str) -> bool:
        verdict = self._known.get(metadata)
        if verdict is None:
            verdict = self._known[metadata] = self._predicate(json.loads(metadata))
        return verdict
