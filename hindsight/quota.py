"""How much a bank may hold."""

from __future__ import annotations

from dataclasses import dataclass

from hindsight.errors import StorageFull

_ADVICE = "Forget what is no longer needed, or have the operator raise the bank's limit; reading goes on."


@dataclass(frozen=True, slots=True)
class Quota:
    """The most memories, and bytes on disk, that a bank may hold; 0 is any number."""

    memories: int = 0
    bytes: int = 0

    def __bool__(self) -> bool:
        """Whether there is any limit, so that what a bank holds has to be known."""
        return bool(self.memories or self.bytes)

    def room(self, memories: int, size: int) -> int | None:
        """How many more memories a bank may take that holds so many in so many bytes; None is any number.

        A bank is full once it has reached its bytes: what the next memory takes is not known before it is stored.
        """
        if self.bytes and size >= self.bytes:
            return 0
        return max(0, self.memories - memories) if self.memories else None

    def refusal(self) -> StorageFull:
        """What a memory beyond the limit is answered."""
        limits = [f"{self.memories:,} memories"] * bool(self.memories) + [f"{self.bytes:,} bytes"] * bool(self.bytes)
        return StorageFull(f"this bank may hold {' and '.join(limits)}, and is full", next_action=_ADVICE)
