"""Every error that a caller can meet, each with a code and what to do next.

    HindsightError
      InvalidArgument        INVALID_ARGUMENT        an argument, a bank id or a message is not what it must be
        InvalidFilter        INVALID_FILTER          a filter expression that can't be parsed
        ConfirmationRequired CONFIRMATION_REQUIRED   a deletion that was not confirmed
      ContentTooLarge        CONTENT_TOO_LARGE       a text, line or body over its limit
      MemoryNotFound         MEMORY_NOT_FOUND        no memory has this id in this bank
      AlreadySuperseded      ALREADY_SUPERSEDED      the memory has a successor
      Unauthorized           UNAUTHORIZED            no key, or one that is not known
      Forbidden              FORBIDDEN               the key does not reach that far
      NotFound               NOT_FOUND               no such URL or session
      Overloaded
        RateLimited          RATE_LIMITED            too many calls a minute by one key
        TooBusy              TOO_BUSY                too many calls or sessions at once
      Unavailable
        EmbedderUnavailable  EMBEDDER_UNAVAILABLE    the embedder is down, slow, or not the bank's own
          TextRefused        EMBEDDER_UNAVAILABLE    the embedder works, but not on this text
        IndexUnavailable     INDEX_UNAVAILABLE       the vector index is down
        StorageFull          STORAGE_FULL            the disk is full
        LedgerUnavailable    INTERNAL                the bank's ledger can't be read or written
          StorageReadOnly    INTERNAL                the bank's files can't be written
          StorageGone        INTERNAL                the bank's files were removed or replaced
          LedgerDamaged      INTERNAL                nor will it be until it is repaired
      DeadlineExceeded       DEADLINE_EXCEEDED       the call took longer than it may
      Internal               INTERNAL                anything else; the log has the rest

Before a session exists an error is an HTTP status (`status`), within one a tool result. What it says reaches the
client, so it never names a path, a secret, or what another bank holds.
"""

from __future__ import annotations

from typing import ClassVar, TypedDict


class ErrorBody(TypedDict):
    """What goes over the wire inside `{"error": ...}`; some errors add fields of their own."""

    code: str
    message: str
    next_action: str


class HindsightError(Exception):
    """The root. `message` says what happened, `next_action` what the caller can do; `extra` are more fields."""

    code: ClassVar[str]
    status: ClassVar[int]
    next_action: ClassVar[str]

    def __init__(self, message: str, *, next_action: str | None = None, **extra: str | int | float) -> None:
        super().__init__(message)
        self.message = message
        self.advice = next_action if next_action is not None else self.next_action
        self.extra = extra

    def as_json(self) -> dict[str, ErrorBody]:
        """The error as it goes over the wire."""
        return {"error": {"code": self.code, "message": self.message, "next_action": self.advice, **self.extra}}  # type: ignore[typeddict-item]  # TypedDict has no open form yet


class InvalidArgument(HindsightError):
    code, status = "INVALID_ARGUMENT", 400
    next_action = "Correct the argument as the message says and call again."


class InvalidFilter(InvalidArgument):
    code = "INVALID_FILTER"
    next_action = "Correct the filter at the position given and call again."


class ConfirmationRequired(InvalidArgument):
    code = "CONFIRMATION_REQUIRED"
    next_action = "Look at what a dry run counts, then call again with dry_run=false and confirm=true."


class ContentTooLarge(HindsightError):
    code, status = "CONTENT_TOO_LARGE", 413
    next_action = "Split it into smaller parts and send them one by one."


class MemoryNotFound(HindsightError):
    code, status = "MEMORY_NOT_FOUND", 404
    next_action = "Find the memory's id with recall or list_memories; ids are valid in one bank only."


class AlreadySuperseded(HindsightError):
    code, status = "ALREADY_SUPERSEDED", 409
    next_action = "Supersede the successor instead."


class Unauthorized(HindsightError):
    code, status = "UNAUTHORIZED", 401
    next_action = "Send a valid key as x-api-key or Authorization: Bearer."


class Forbidden(HindsightError):
    code, status = "FORBIDDEN", 403
    next_action = "Use a key that covers this bank and this kind of call."


class NotFound(HindsightError):
    code, status = "NOT_FOUND", 404
    next_action = "Check the URL; a bank's stream is at /mcp/{bank_id}/sse."


class Overloaded(HindsightError):
    """Too much at once; `retry_after` is in seconds."""

    def __init__(self, message: str, *, retry_after: int = 1) -> None:
        super().__init__(message, retry_after=retry_after)
        self.retry_after = retry_after


class RateLimited(Overloaded):
    code, status = "RATE_LIMITED", 429
    next_action = "Wait for retry_after seconds, then call again."


class TooBusy(Overloaded):
    code, status = "TOO_BUSY", 503
    next_action = "Wait for retry_after seconds, then call again, with fewer calls at once."


class Unavailable(HindsightError):
    """A part that the call needs does not work at the moment."""


class EmbedderUnavailable(Unavailable):
    code, status = "EMBEDDER_UNAVAILABLE", 503
    next_action = "Try again in a few seconds; the operator finds the reason in the server's log."


class TextRefused(EmbedderUnavailable):
    """The embedder takes one of the texts it was given for none that it can embed: asking again does not help."""


class IndexUnavailable(Unavailable):
    code, status = "INDEX_UNAVAILABLE", 503
    next_action = "Try again in a few seconds; the operator finds the reason in the server's log."


class StorageFull(Unavailable):
    code, status = "STORAGE_FULL", 507
    next_action = "Tell the operator to free disk space; reading goes on, and nothing stored is lost."


class LedgerUnavailable(Unavailable):
    code, status = "INTERNAL", 500
    next_action = "Tell the operator to look at the server's log and to run hindsight check."


class StorageReadOnly(LedgerUnavailable):
    next_action = "Tell the operator to make the data folder writable; reading goes on, and nothing stored is lost."


class StorageGone(LedgerUnavailable):
    next_action = "Tell the operator to put the data folder back as it was, or to restart the server."


class LedgerDamaged(LedgerUnavailable):
    next_action = "Tell the operator to stop the server and run hindsight check --repair; other banks go on working."


class DeadlineExceeded(HindsightError):
    code, status = "DEADLINE_EXCEEDED", 504
    next_action = "Call again, with less to do in one call."


class Internal(HindsightError):
    code, status = "INTERNAL", 500
    next_action = "Try again once; if it fails again, give the operator the id in the message."
