"""Which door a URL leads to, to which bank, and with which tools.

The raw path is split before it is decoded: an encoded slash cannot change where a segment ends, and a dot segment is a
bank id that breaks the rule, never a way up. Nothing redirects: behind a proxy we do not know our own URL.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import cast
from urllib.parse import parse_qs, quote, unquote_to_bytes

from starlette.types import ASGIApp, Receive, Scope, Send

from hindsight.errors import HindsightError, InvalidArgument, NotFound
from hindsight.http.answers import answer, answer_error
from hindsight.record import BANK_ID_RULE, BankId
from hindsight.settings import is_prefix

BANK_KEY = "hindsight.bank"
MOUNT_KEY = "hindsight.mount"
_BANK = "{bank_id}"


@dataclass(frozen=True, slots=True)
class Route:
    """A door: its path, such as '/mcp/{bank_id}/sse', and an app per method."""

    path: str
    methods: Mapping[str, ASGIApp]


class MethodNotAllowed(HindsightError):
    code, status = "INVALID_ARGUMENT", 405
    next_action = "Use one of the methods named in the Allow header."


def bank_of(scope: Scope) -> BankId:
    """The bank that the URL names."""
    return cast(BankId, scope[BANK_KEY])


def mount_of(scope: Scope) -> str:
    """What stands before our own path in the URL that the client sees; '' or '/prefix'."""
    return cast(str, scope.get(MOUNT_KEY, ""))


def tools_of(scope: Scope) -> str | None:
    """The names of the only tools that the URL asks for, by commas; None when it asks for all."""
    if not scope["query_string"]:
        return None
    given = parse_qs(scope["query_string"].decode("latin-1"), keep_blank_values=True).get("tools")
    return None if given is None else ",".join(given)


class BankRoutes:
    """Routes a request by its raw path; a route's app finds the bank with `bank_of` and the prefix with `mount_of`.

    `root_path`, '' or '/prefix', is what a proxy puts before our paths, whether it strips it or not. A server's
    root_path (uvicorn's, or of an app that mounts this one) and X-Forwarded-Prefix count too. `otherwise` answers where
    no route leads; without it that is an error.
    """

    def __init__(self, routes: Sequence[Route], *, root_path: str = "", otherwise: ASGIApp | None = None) -> None:
        self._routes = {tuple(route.path.split("/")[1:]): route.methods for route in routes}
        self._places = sorted({path.index(_BANK) for path in self._routes if _BANK in path})
        self._otherwise = otherwise
        self._root_path = root_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1000})
            return
        try:
            methods = self._enter(scope)
        except HindsightError as error:
            if self._otherwise is not None:
                await self._otherwise(scope, receive, send)
            else:
                await answer_error(send, error)
            return
        app = methods.get(scope["method"])
        if app is not None:
            await app(scope, receive, send)
        else:
            await _other_method(scope["method"], methods, send)

    def _enter(self, scope: Scope) -> Mapping[str, ASGIApp]:
        mounted, forwarded = scope.get("root_path", "").rstrip("/"), _forwarded_prefix(scope)
        own = mounted or self._root_path
        scope[MOUNT_KEY] = own if forwarded == own else forwarded + own
        path = _without(raw_path(scope), mounted)
        for prefix in dict.fromkeys(("", own, forwarded)):
            found = self._match(_without(path, prefix))
            if found is not None:
                methods, bank = found
                if bank is not None:
                    scope[BANK_KEY] = _bank_id(bank)
                return methods
        raise NotFound("there is nothing at this URL")

    def _match(self, path: str) -> tuple[Mapping[str, ASGIApp], str | None] | None:
        segments = path.removesuffix("/").split("/")[1:]
        methods = self._routes.get(tuple(segments))
        if methods is not None and _BANK not in segments:
            return methods, None
        for place in self._places:
            methods = self._routes.get((*segments[:place], _BANK, *segments[place + 1 :]))
            if methods is not None and place < len(segments):
                return methods, segments[place]
        return None


@lru_cache(maxsize=4096)
def _bank_id(segment: str) -> BankId:
    try:
        return BankId.parse(unquote_to_bytes(segment).decode())
    except UnicodeDecodeError as error:
        raise InvalidArgument(BANK_ID_RULE, next_action="Encode the bank id in the URL as UTF-8.") from error


def raw_path(scope: Scope) -> str:
    """The URL's path as it came, still encoded."""
    raw = scope.get("raw_path")
    return quote(scope["path"]) if raw is None else raw.partition(b"?")[0].decode("latin-1")


def _without(path: str, prefix: str) -> str:
    return path.removeprefix(prefix) if prefix and path.startswith(f"{prefix}/") else path


def _forwarded_prefix(scope: Scope) -> str:
    for name, value in scope["headers"]:
        if name == b"x-forwarded-prefix":
            prefix = "/" + value.decode("latin-1").strip().strip("/")
            return prefix if is_prefix(prefix) else ""
    return ""


async def _other_method(method: str, methods: Mapping[str, ASGIApp], send: Send) -> None:
    allow = [(b"allow", ", ".join(sorted({*methods, "OPTIONS"})).encode())]
    if method == "OPTIONS":
        await answer(send, 204, headers=allow)
    else:
        await answer_error(send, MethodNotAllowed(f"{method[:20]} is not possible here"), headers=allow)
