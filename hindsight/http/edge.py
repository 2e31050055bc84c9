"""The outermost door: what nobody foresaw is told as an error of ours, and the end of the server is quiet."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from starlette.middleware.errors import ServerErrorMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from hindsight.errors import Internal
from hindsight.messages import encode
from hindsight.telemetry import begin_call, current_call


class Edge:
    """Answers 500 when the app breaks before it has answered, and hands the error on to be logged under the same id.

    Set `stopped` once there is nothing more to wait for. `refused` is told the error's code.
    """

    def __init__(self, app: ASGIApp, refused: Callable[[str], None] = lambda code: None) -> None:
        self.stopped = False
        self._app = ServerErrorMiddleware(app, handler=self._broken)
        self._refused = refused

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._app(scope, receive, send)
        except asyncio.CancelledError:
            # At its end uvicorn cancels what is left, and logs what does not return then as a fault of ours.
            if not self.stopped:
                raise

    async def _broken(self, request: Request, error: Exception) -> Response:
        self._refused(Internal.code)
        name = current_call()
        told = Internal(f"internal error; the log has it under {begin_call() if name == '-' else name}")
        return Response(encode(told.as_json()), told.status, media_type="application/json")
