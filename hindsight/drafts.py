"""A draft: what a caller wants to retain, on its way to be stored.

First it is identified, which tells whether the bank knows it already; only what is new is understood: its type, its
date, the pieces that get vectors.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, tzinfo

import numpy as np

from hindsight.embedding import Embedder, Parted, Vectors
from hindsight.embedding.batching import BatchingEmbedder
from hindsight.errors import InvalidArgument
from hindsight.ledger import Cut, Entry, Span
from hindsight.record import JsonObject, Memory, MemoryType
from hindsight.retrieval.passages import pieces
from hindsight.retrieval.sentences import packed, stops
from hindsight.retrieval.traits import traits_of
from hindsight.understanding.category import category_of
from hindsight.understanding.dates import date_in
from hindsight.understanding.when import When, parse_when


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """What a memory brings along from an earlier life; what is None it gets anew.

    `retained_at` is as `parse_when` reads it. `identity` is set where the draft's own would be another. `dated` says
    that the draft's event_date stands even when it is None.
    """

    id: str | None = None
    retained_at: str | None = None
    identity: bytes | None = None
    dated: bool = False


NEW = Origin()


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """What a caller wants to retain. `event_date` is as `parse_when` reads it; a `type` of None is to be found."""

    content: str
    context: str = "general"
    type: MemoryType | None = None
    event_date: str | None = None
    session_id: str | None = None
    document_id: str | None = None
    tags: tuple[str, ...] = ()
    metadata: JsonObject = field(default_factory=dict)
    supersedes: str | None = None
    origin: Origin = NEW


@dataclass(frozen=True, slots=True)
class Identified:
    """A draft with its date, as given, its identity, and when it came."""

    draft: Draft
    given: When | None
    identity: bytes
    now: datetime


@dataclass(frozen=True, slots=True)
class Understood:
    """A draft made ready to be stored, but for its vectors."""

    memory: Memory
    identity: bytes
    time: Span
    cuts: tuple[Cut, ...]

    def parted(self, most: int) -> list[Parted]:
        """The texts of its first `most` passages; a single one parted into sentences."""
        text = self.memory.text
        if len(self.cuts) == 1:
            return [Parted(text, stops(text))]
        return [Parted(text[cut.start : cut.end]) for cut in self.cuts[:most]]

    def entry(self, found: Sequence[Vectors] | None) -> Entry:
        """It with what was found for its first passages: the vector of each, then those of its parts; or without."""
        traits = traits_of(self.memory.text)
        vectors = None if found is None else np.stack([rows[0] for rows in found])
        sentences = packed(found[0][1:]) if found and len(found[0]) > 1 else b""
        return Entry(self.memory, traits, self.identity, self.time, self.cuts, vectors, sentences)


def identify(draft: Draft, now: datetime, zone: tzinfo) -> Identified:
    """Read a draft's date and tell its identity. Raises InvalidArgument."""
    given = None if draft.event_date is None else read_when("event_date", draft.event_date, zone)
    date = given.text if given else None
    own = draft.origin.identity or identity_of(
        draft.content, draft.context, date, draft.session_id, draft.document_id, draft.supersedes
    )
    return Identified(draft, given, own, now)


def understand(identified: Identified, zone: tzinfo, embedder: BatchingEmbedder) -> Understood:
    """Make a draft a memory, but for its vectors. Blocking. Raises InvalidArgument."""
    draft, origin = identified.draft, identified.draft.origin
    now = identified.now if origin.retained_at is None else read_when("retained_at", origin.retained_at, zone).start
    when = identified.given or (None if origin.dated else date_in(draft.content, now, zone))
    memory = Memory(
        id=origin.id or str(uuid.uuid4()),
        text=draft.content,
        type=draft.type or category_of(draft.content),
        context=draft.context,
        retained_at=now.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z"),
        event_date=when.text if when else None,
        session_id=draft.session_id,
        document_id=draft.document_id,
        tags=draft.tags,
        metadata=draft.metadata,
        supersedes=draft.supersedes,
    )
    time = Span.between(when.start, when.end) if when else Span.between(now, now)
    return Understood(memory, identified.identity, time, cuts_of(draft.content, embedder))


def cuts_of(text: str, embedder: Embedder | BatchingEmbedder) -> tuple[Cut, ...]:
    """The pieces of a text that get vectors. Blocking."""
    found = pieces(text, embedder.max_tokens, embedder.token_ends)
    return (Cut(*found.whole, worded=not found.passages), *(Cut(*bounds) for bounds in found.passages))


def read_when(name: str, text: str, zone: tzinfo) -> When:
    """The date that the argument `name` gives. Raises InvalidArgument."""
    try:
        return parse_when(text, zone)
    except ValueError as error:
        raise InvalidArgument(f"{name}: {error}", argument=name) from error


def identity_of(
    content: str,
    context: str,
    date: str | None,
    session_id: str | None,
    document_id: str | None,
    supersedes: str | None,
) -> bytes:
    """Equal for two that are the same memory; `date` counts as given, not as read out of the text."""
    parts = [content, context, date, session_id, document_id]
    if supersedes is not None:  # a correction is a memory of its own: what became true again must be stored again
        parts.append(supersedes)
    return hashlib.sha256(json.dumps(parts).encode()).digest()
