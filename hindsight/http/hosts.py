"""Which Host and Origin may talk to the server, against DNS rebinding; and CORS for the browsers that may.

A page on the web can make a browser send requests to a server on this machine. It can't choose the Host and Origin
headers that the browser sends, so these are what is checked.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hindsight.errors import Forbidden, HindsightError
from hindsight.http.answers import Header, answer, answer_error
from hindsight.settings import Settings

LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
_EXPOSED = b"Mcp-Session-Id, MCP-Protocol-Version, WWW-Authenticate, Retry-After"
# A prober asks by whatever address it has, and learns nothing that a stranger may not know.
_FOR_ALL = ("/healthz", "/readyz")
_TOKENS = re.compile(rb"[A-Za-z0-9!#$%&'*+.^_`|~, -]{0,2000}")


class WrongHost(HindsightError):
    code, status = "FORBIDDEN", 421
    next_action = "Use a host name that the server knows, or have it added to HINDSIGHT_ALLOWED_HOSTS."


class WrongOrigin(Forbidden):
    next_action = "Have the page's origin added to HINDSIGHT_ALLOWED_ORIGINS."


class HostGuard:
    """Lets through requests to an allowed Host, from no Origin or an allowed one: else 421 or 403.

    A name without a port allows every port, `*.example.com` every name below it, `*` everything.
    """

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app = app
        default_hosts = LOOPBACK if settings.on_loopback else ("*",)
        default_origins = [f"{scheme}://{name}" for name in LOOPBACK for scheme in ("http", "https")]
        self._hosts = _listed(settings.allowed_hosts) or frozenset(default_hosts)
        self._origins = _listed(settings.allowed_origins) or frozenset(default_origins if settings.on_loopback else ())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in _FOR_ALL:
            await self._app(scope, receive, send)
            return
        host, origin, asked = _named(scope["headers"])
        if "*" not in self._hosts and not _allowed(host, self._hosts):
            await answer_error(send, WrongHost("this host name is not allowed"))
        elif origin is None:
            await self._app(scope, receive, send)
        elif not self._from_allowed(origin):
            await answer_error(send, WrongOrigin("this origin is not allowed"), headers=[(b"vary", b"origin")])
        elif scope["method"] == "OPTIONS" and asked is not None:
            await answer(send, 204, headers=[*_cors(origin), *_preflight(asked)])
        else:
            await self._app(scope, receive, _Marked(send, _cors(origin)))

    def _from_allowed(self, origin: bytes) -> bool:
        if "*" in self._origins:
            return True
        try:
            parts = urlsplit(origin.decode("ascii").lower())
        except ValueError:
            return False
        schemes = (known.partition("://") for known in self._origins)
        hosts = frozenset(host for scheme, _, host in schemes if scheme == parts.scheme)
        return _allowed(parts.netloc.encode(), hosts)


class _Marked:
    """A `send` that adds headers to the start of the response and hands on the rest untouched."""

    __slots__ = ("_headers", "_send")

    def __init__(self, send: Send, headers: list[Header]) -> None:
        self._send = send
        self._headers = headers

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), *self._headers]
        await self._send(message)


def _listed(names: str) -> frozenset[str]:
    return frozenset(name.strip().lower().rstrip("/") for name in names.split(",") if name.strip())


def _named(headers: Iterable[Header]) -> tuple[bytes, bytes | None, bytes | None]:
    host, origin, asked = b"", None, None
    wants_method = False
    for name, value in headers:
        if name == b"host":
            host = value.strip()
        elif name == b"origin":
            origin = value.strip()
        elif name == b"access-control-request-method":
            wants_method = True
        elif name == b"access-control-request-headers":
            asked = value
    return host, origin, (asked or b"") if wants_method else None


@lru_cache(maxsize=1024)
def _allowed(host: bytes, known: frozenset[str]) -> bool:
    full = host.decode("latin-1").lower()
    name = re.sub(r":[0-9]*\Z", "", full)
    return bool(name) and (full in known or name in known or any(k[:2] == "*." and name.endswith(k[1:]) for k in known))


def _cors(origin: bytes) -> list[Header]:
    return [
        (b"access-control-allow-origin", origin),
        (b"access-control-expose-headers", _EXPOSED),
        (b"vary", b"origin"),
    ]


def _preflight(asked: bytes) -> list[Header]:
    return [
        (b"access-control-allow-methods", b"GET, POST, PUT, DELETE, OPTIONS"),
        (b"access-control-allow-headers", asked if _TOKENS.fullmatch(asked) else b"content-type"),
        (b"access-control-allow-private-network", b"true"),
        (b"access-control-max-age", b"600"),
    ]
