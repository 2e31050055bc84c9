"""POST /mcp/{bank_id}: MCP streamable HTTP without sessions or streams; one message in, one JSON answer out.

Serves both protocol eras. A version header of 2025-11-25 or earlier, or none, is the handshake era, where `initialize`
is answered and forgotten; anything else is held to the header rules of 2026-07-28.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from mcp.shared.inbound import (
    ERROR_CODE_HTTP_STATUS,
    MCP_PROTOCOL_VERSION_HEADER,
    InboundLadderRejection,
    classify_inbound_request,
    find_duplicated_routing_header,
    unsupported_protocol_version_rejection,
)
from mcp_types.jsonrpc import HEADER_MISMATCH, METHOD_NOT_FOUND
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from starlette.types import Receive, Scope, Send

from hindsight.caller import caller_of
from hindsight.errors import ContentTooLarge, HindsightError, InvalidArgument, NotFound
from hindsight.http.answers import answer, answer_error
from hindsight.http.auth import require_still
from hindsight.http.bodies import CLOSE, Bodies, ClientGone, NotJson, Oversized, Stopped, TooSlow, gone, require_json
from hindsight.http.paths import bank_of, tools_of
from hindsight.messages import Message, NotAMessage, decode, encode, failure, id_at_the_edges, refusal
from hindsight.record import JsonObject
from hindsight.session import MemoryServer, Session, enveloped

ASSUMED_VERSION = "2025-03-26"  # what the transport prescribes for a request without the version header
WATCH_AFTER = 0.05  # seconds until a call counts as slow and its client is watched for leaving

Headers = Mapping[str, str]


class Refused(Exception):
    """An answer with an error status instead of a result."""

    def __init__(self, status: int, body: JsonObject) -> None:
        super().__init__(status)
        self.status = status
        self.body = body


class Streamable:
    """The door for POST. GET and DELETE have none, which is how a server says it has no streams and no sessions."""

    def __init__(self, server: MemoryServer, bodies: Bodies) -> None:
        self._server = server
        self._bodies = bodies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            status, body = await self._exchange(scope, receive)
        except ClientGone:
            return
        except Refused as refused:
            status, body = refused.status, refused.body
        except (TooSlow, Stopped) as error:
            await answer_error(send, error, headers=CLOSE)
            return
        except HindsightError as error:
            await answer_error(send, error)
            return
        await answer(send, status, encode(body) if body is not None else b"")

    async def _exchange(self, scope: Scope, receive: Receive) -> tuple[int, JsonObject | None]:
        headers = {name.decode("latin-1"): value.decode("latin-1").strip(" \t") for name, value in scope["headers"]}
        _check_types(scope, headers)
        body = await self._bodies.read(receive)
        require_still(scope)
        message = self._read(body)
        if message is None:
            return 202, None
        version = headers.get(MCP_PROTOCOL_VERSION_HEADER)
        modern = enveloped(message.params) and message.method != "initialize"
        if modern or (version is not None and version not in HANDSHAKE_PROTOCOL_VERSIONS):
            modern = True
            _check_envelope(scope, headers, message, version)
        else:
            _check_session(headers, message)
        session = self._server.session(
            bank_of(scope),
            caller_of(scope),
            only=tools_of(scope),
            version=None if modern else version or ASSUMED_VERSION,
        )
        reply = await self._answer(session, message, receive)
        if reply is None:
            return 202, None
        return _status(reply) if modern else 200, reply

    def _read(self, body: bytes | Oversized) -> Message | None:
        if isinstance(body, Oversized):
            error = ContentTooLarge(f"the message has more than {self._bodies.most:,} bytes, which is the most allowed")
            raise Refused(413, refusal(id_at_the_edges(body.head, body.tail), error))
        try:
            return decode(body)
        except NotAMessage as error:
            raise Refused(400, refusal(None, error, error.rpc_code)) from error

    async def _answer(self, session: Session, message: Message, receive: Receive) -> JsonObject | None:
        """The answer, None to a notification; when the client leaves, its call is cancelled. Raises ClientGone."""
        watching: list[asyncio.Task[None]] = []
        loop = asyncio.get_running_loop()
        # Most calls are over before a task that watches would have started.
        timer = loop.call_later(WATCH_AFTER, lambda: watching.append(loop.create_task(_watch(receive, session))))
        try:
            reply = await session.answer(message)
        finally:
            timer.cancel()
            for task in watching:
                task.cancel()
        if reply is None and message.id is not None:
            raise ClientGone
        return reply


async def _watch(receive: Receive, session: Session) -> None:
    await gone(receive)
    session.end()


def _check_types(scope: Scope, headers: Headers) -> None:
    accepted = {part.partition(";")[0].strip().lower() for part in headers.get("accept", "*/*").split(",")}
    if not accepted & {"application/json", "application/*", "*/*"}:
        error = InvalidArgument("the answer is JSON", next_action="Send Accept: application/json, text/event-stream.")
        raise Refused(406, refusal(None, error))
    try:
        require_json(scope)
    except NotJson as error:
        raise Refused(error.status, refusal(None, error)) from error


def _check_session(headers: Headers, message: Message) -> None:
    # A client that holds a session id got it from another server or an earlier life of this one; told 404, it starts
    # anew with `initialize`.
    if "mcp-session-id" in headers and message.method != "initialize":
        error = NotFound("there is no such session", next_action="Initialize again, without Mcp-Session-Id.")
        raise Refused(404, refusal(message.id, error))


def _check_envelope(scope: Scope, headers: Headers, message: Message, version: str | None) -> None:
    # No tool marks an argument with x-mcp-header, so there are no Mcp-Param headers to compare.
    rejection: InboundLadderRejection | None = None
    twice = find_duplicated_routing_header((name.decode("latin-1"), "") for name, _ in scope["headers"])
    if twice is not None:
        rejection = InboundLadderRejection(code=HEADER_MISMATCH, message=f"{twice} header appears more than once")
    elif message.id is None:
        rejection = unsupported_protocol_version_rejection(version or "")
    else:
        verdict = classify_inbound_request({"method": message.method, "params": message.params}, headers=headers)
        rejection = verdict if isinstance(verdict, InboundLadderRejection) else None
        if rejection is None and message.method == "initialize":
            rejection = InboundLadderRejection(code=METHOD_NOT_FOUND, message="this protocol version has no initialize")
    if rejection is not None:
        body = failure(message.id, rejection.code, rejection.message, rejection.data)
        raise Refused(ERROR_CODE_HTTP_STATUS.get(rejection.code, 400), body)


def _status(reply: JsonObject) -> int:
    return ERROR_CODE_HTTP_STATUS.get(reply["error"]["code"], 200) if "error" in reply else 200
