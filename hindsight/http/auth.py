"""Who may come in, and to which bank: 401 before a path, body or session is looked at, 403 once the bank is known.

`Authentication` stands before the routes and names the caller in the scope; `guarded` puts a check of the bank before
every door. Nothing waits between the two and the opening of a session: a key revoked meanwhile would leave one behind.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send

from hindsight.caller import SCOPE_KEY, Caller, caller_of
from hindsight.errors import Forbidden, Unauthorized
from hindsight.http.answers import CHALLENGE, Header, answer, answer_error
from hindsight.http.paths import BANK_KEY, Route, raw_path
from hindsight.keys import Keyring
from hindsight.messages import encode

_READING = frozenset({"GET", "HEAD"})
_STILL_KEY = "hindsight.still"
_NO_KEY = "a valid key is needed"

ByToken = Callable[[str], Awaitable[Caller | None]]
Challenge = Callable[[str], bytes]
Refused = Callable[[str], None]


class Authentication:
    """Lets through who has a key, or anyone while there are none; everyone else gets to `public` alone.

    A key comes as `x-api-key: K` or `Authorization: Bearer K`. `by_token` says whose access token a bearer is that is
    no key. `public` is to answer with `refuse` where it has nothing.
    """

    def __init__(self, app: ASGIApp, public: ASGIApp, keyring: Keyring, by_token: ByToken | None = None) -> None:
        self._app = app
        self._public = public
        self._keyring = keyring
        self._by_token = by_token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not (self._keyring.closed or self._by_token):
            scope[_STILL_KEY] = lambda: not self._keyring.closed
            await self._app(scope, receive, send)
            return
        caller = await self._caller(scope)
        if caller is not None:
            scope[SCOPE_KEY] = caller
        await (self._public if caller is None else self._app)(scope, receive, send)

    async def _caller(self, scope: Scope) -> Caller | None:
        secret, bearer = _credentials(scope["headers"])
        if secret is None:
            return None
        caller = self._keyring.find(secret)
        if caller is not None:
            scope[_STILL_KEY] = lambda: self._keyring.find(secret) == caller
        elif bearer and self._by_token:
            return await self._by_token(secret)
        return caller


def require_still(scope: Mapping[str, Any]) -> None:
    """Raises Unauthorized when the caller has lost its key since the request began.

    To be asked once a body has arrived, which takes as long as its client likes. An access token is not asked about
    again: nobody can take it back, and it was good when the request began.
    """
    still: Callable[[], bool] | None = scope.get(_STILL_KEY)
    if still is not None and not still():
        raise Unauthorized(_NO_KEY)


class Refusal:
    """401, in the same words whether a key is missing, wrong, expired or revoked.

    `challenge` gives the WWW-Authenticate for a path; `refused` is told the error's code.
    """

    def __init__(self, challenge: Challenge | None = None, refused: Refused = lambda code: None) -> None:
        self._challenge = challenge
        self._refused = refused

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        error = Unauthorized(_NO_KEY)
        self._refused(error.code)
        challenge = self._challenge(raw_path(scope)) if self._challenge else CHALLENGE
        await answer(send, error.status, encode(error.as_json()), [(b"www-authenticate", challenge)])


class BankGuard:
    """Lets through a caller that may use the bank which the URL names, and may write where `writes`: else 403."""

    def __init__(self, app: ASGIApp, *, writes: bool, refused: Refused) -> None:
        self._app = app
        self._writes = writes
        self._refused = refused

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        caller, bank_id = caller_of(scope), scope.get(BANK_KEY)
        if bank_id is not None and not caller.reaches(bank_id):
            await self._forbid(send, "this key does not cover this bank")
        elif self._writes and not caller.may_write:
            await self._forbid(send, "this key may read but not write")
        else:
            await self._app(scope, receive, send)

    async def _forbid(self, send: Send, message: str) -> None:
        self._refused(Forbidden.code)
        await answer_error(send, Forbidden(message))


def guarded(route: Route, refused: Refused = lambda code: None) -> Route:
    """The route with a BankGuard before each of its doors.

    A door under /mcp takes reading and writing calls alike, and a session tells them apart; any other one writes when
    its method is not GET or HEAD.
    """
    mixed = route.path.startswith("/mcp/")
    doors = {
        method: BankGuard(app, writes=not mixed and method not in _READING, refused=refused)
        for method, app in route.methods.items()
    }
    return Route(route.path, doors)


def _credentials(headers: Iterable[Header]) -> tuple[str | None, bool]:
    """The key that came, and whether it came as a bearer; the header made for keys counts first."""
    bearer = None
    for name, value in headers:
        if name == b"x-api-key":
            return value.decode("latin-1").strip(), False
        if name == b"authorization" and value[:7].lower() == b"bearer ":
            bearer = value[7:].decode("latin-1").strip()
    return bearer, True


class ResourceMetadata:
    """GET /.well-known/oauth-protected-resource/mcp/{bank_id}: to whom a client must go for a token for this bank."""

    def __init__(self, describe: Callable[[str], bytes]) -> None:
        self._describe = describe

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = raw_path(scope).rstrip("/")
        await answer(send, 200, self._describe(path[path.index("/mcp/") :]), [(b"cache-control", b"max-age=3600")])
