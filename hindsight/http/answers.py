"""Plain HTTP answers: JSON bodies, and our errors with their status and the headers that belong to them."""

from __future__ import annotations

from collections.abc import Iterable

from starlette.types import Send

from hindsight.errors import HindsightError, Overloaded, Unauthorized
from hindsight.messages import encode

CHALLENGE = b'Bearer realm="hindsight"'  # of WWW-Authenticate, to one whose key is not good

Header = tuple[bytes, bytes]


async def answer(
    send: Send, status: int, body: bytes = b"", headers: Iterable[Header] = (), *, kind: bytes = b"application/json"
) -> None:
    """Send a whole response; `kind` is the type of the body when there is one."""
    fixed = [(b"content-length", b"%d" % len(body)), *headers]
    if body:
        fixed.append((b"content-type", kind))
    await send({"type": "http.response.start", "status": status, "headers": fixed})
    await send({"type": "http.response.body", "body": body})


async def answer_error(
    send: Send, error: HindsightError, *, status: int | None = None, headers: Iterable[Header] = ()
) -> None:
    """Send an error as contract section 4 has it; `status` when it is not the error's own."""
    await answer(send, status or error.status, encode(error.as_json()), [*headers, *_companions(error)])


def _companions(error: HindsightError) -> list[Header]:
    if isinstance(error, Unauthorized):
        return [(b"www-authenticate", CHALLENGE)]
    return [(b"retry-after", b"%d" % error.retry_after)] if isinstance(error, Overloaded) else []
