"""The links between memories and their successors, told by both sides: which of them hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Link:
    """What a memory says of its place: its number, the id that it supersedes, and the id that supersedes it."""

    number: int
    supersedes: str | None = None
    superseded_by: str | None = None


def mended(links: Mapping[str, Link]) -> dict[str, Link]:
    """By id, what those memories must say instead whose links do not hold; empty when all do.

    `links` has each memory that names another one or is named. A link holds when both are there, the successor was
    retained later, and both name each other. One that a single side tells is completed, unless the other is taken.
    """
    told = [(link.supersedes, id) for id, link in links.items() if link.supersedes is not None]
    told += [(id, link.superseded_by) for id, link in links.items() if link.superseded_by is not None]
    successor: dict[str, str] = {}
    predecessor: dict[str, str] = {}
    # Those that both sides tell go first.
    for old, new in sorted(told, key=lambda pair: not _mutual(links, *pair)):
        if old not in links or new not in links or links[new].number <= links[old].number:
            continue
        if old not in successor and new not in predecessor:
            successor[old], predecessor[new] = new, old
    whole = {id: Link(link.number, predecessor.get(id), successor.get(id)) for id, link in links.items()}
    return {id: link for id, link in whole.items() if link != links[id]}


def _mutual(links: Mapping[str, Link], old: str, new: str) -> bool:
    there = old in links and new in links
    return there and links[old].superseded_by == new and links[new].supersedes == old
