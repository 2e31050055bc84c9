"""Knocks with wrong keys, at an even rate, until its standard input ends.

    python -m tests.protocol.flood PORT RATE

Says when it has begun, and in the end how many were refused in how many seconds. A process of its own, or it would slow
down those whose time is taken.
"""

from __future__ import annotations

import secrets
import select
import socket
import sys
import time

AT_ONCE = 20  # requests that are sent together
_REFUSED = b"HTTP/1.1 401 "


def flood(port: int, rate: int) -> tuple[int, float]:
    """How many were refused, and in how many seconds."""
    refused, began = 0, time.monotonic()
    with socket.create_connection(("127.0.0.1", port)) as connection:
        while not select.select([sys.stdin], [], [], max(0.0, began + refused / rate - time.monotonic()))[0]:
            connection.sendall(b"".join(_knock() for _ in range(AT_ONCE)))
            refused += _answered(connection)
            if refused == AT_ONCE:
                print("knocking", flush=True)
    return refused, time.monotonic() - began


def _knock() -> bytes:
    return b"GET /banks HTTP/1.1\r\nHost: localhost\r\nx-api-key: hs_%b\r\n\r\n" % secrets.token_urlsafe(32).encode()


def _answered(connection: socket.socket) -> int:
    received = b""
    while received.count(_REFUSED) < AT_ONCE or not received.endswith(b"}}"):
        part = connection.recv(65_536)
        if not part:
            raise EOFError(f"the server hung up after {received!r}")
        received += part
    return received.count(_REFUSED)


if __name__ == "__main__":
    print(*flood(int(sys.argv[1]), int(sys.argv[2])))
