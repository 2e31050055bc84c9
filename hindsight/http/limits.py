"""How many requests a key may make in a minute."""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send

from hindsight.caller import caller_of
from hindsight.errors import RateLimited
from hindsight.http.answers import answer_error
from hindsight.http.paths import Route

MOST_CALLERS = 10_000  # of whom it is known what they have left; the one who came least recently is taken for new
_LIMITED_KEY = "hindsight.limited"


class Allowance:
    """A bucket of requests per caller, which fills at an even rate and holds a minute's worth."""

    def __init__(self, per_minute: int, now: Callable[[], float] = time.monotonic) -> None:
        self._most = float(per_minute)
        self._now = now
        self._left: OrderedDict[Hashable, tuple[float, float]] = OrderedDict()

    def take(self, caller: Hashable) -> None:
        """Count a request. Raises RateLimited when the caller has none left."""
        now = self._now()
        left, then = self._left.pop(caller, (self._most, now))
        left = min(self._most, left + (now - then) * self._most / 60)
        self._left[caller] = (max(0.0, left - 1) if left >= 1 else left, now)
        if len(self._left) > MOST_CALLERS:
            self._left.popitem(last=False)
        if left < 1:
            wait = math.ceil((1 - left) * 60 / self._most)
            raise RateLimited(f"this key may make {self._most:.0f} requests a minute", retry_after=max(1, wait))


class RateLimit:
    """Refuses with 429 what is over the allowance.

    With `told` the door behind it does the refusing, with what `limited` gives: on an event stream, where a client
    waits for ever for the answer to a message that was refused by status.
    """

    def __init__(
        self,
        app: ASGIApp,
        allowance: Allowance,
        *,
        told: bool = False,
        refused: Callable[[str], None] = lambda code: None,
    ) -> None:
        self._app = app
        self._allowance = allowance
        self._told = told
        self._refused = refused

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            self._allowance.take(caller_of(scope).key)
        except RateLimited as error:
            self._refused(error.code)
            if not self._told:
                await answer_error(send, error)
                return
            scope[_LIMITED_KEY] = error
        await self._app(scope, receive, send)


def limited(scope: Mapping[str, Any]) -> RateLimited | None:
    """What a door that RateLimit tells is to refuse this request with, if it is to."""
    found = scope.get(_LIMITED_KEY)
    return found if isinstance(found, RateLimited) else None


def limited_doors(routes: Iterable[Route], allowance: Allowance, refused: Callable[[str], None]) -> list[Route]:
    """The routes with a RateLimit before each of their doors."""
    limited_routes = []
    for route in routes:
        told = route.path.endswith("/messages")
        doors = {m: RateLimit(app, allowance, told=told, refused=refused) for m, app in route.methods.items()}
        limited_routes.append(Route(route.path, doors))
    return limited_routes
