"""Access tokens of an OAuth issuer, for clients that log people in: an OAuth resource server after RFC 9728.

A token is a JWT (RFC 9068) that the issuer signed for us. Its audience says where it counts: the public URL for every
bank, a bank's URL, with or without /sse, for that one alone; its scopes what it may do: mcp:read, mcp:write.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import re
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import unquote, urlsplit

import anyio
import anyio.to_thread
import jwt
from mcp.client.auth.utils import build_oauth_authorization_server_metadata_discovery_urls, issuers_match
from mcp.server.auth.provider import AccessToken, principal_components
from mcp.server.auth.routes import build_resource_metadata_url, validate_issuer_url
from mcp.shared.auth import ProtectedResourceMetadata
from pydantic import AnyHttpUrl, ValidationError

from hindsight.caller import Caller
from hindsight.errors import InvalidArgument
from hindsight.record import BankId, JsonObject
from hindsight.settings import Settings, SettingsError, variable

READ, WRITE = "mcp:read", "mcp:write"
ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
LEEWAY = 30  # seconds that the issuer's clock may differ from ours
PATIENCE = 5.0  # seconds that the issuer gets to answer
KEEP = 300.0  # seconds that its keys are used for before they are asked for again
PAUSE = 5.0  # seconds between two questions, when it is down or did not have the key
MOST_BYTES = 1024 * 1024  # that its answers may have

_BANK_PATH = re.compile(r"/mcp/([A-Za-z0-9._~@:+%-]+)(?:/(sse|messages))?/?\Z")
_TOKEN = re.compile(r"[\w-]+\.[\w-]+\.[\w-]+")

_log = logging.getLogger("hindsight.oauth")


class IssuerKeys:
    """The keys that an issuer signs with, from the place that its metadata names. All calls block.

    A key that is not among them is asked for again, since issuers change them; made-up tokens can't make us ask more
    than once in PAUSE seconds, and nobody with a known key waits for it. While the issuer is down its last keys count.
    """

    def __init__(self, issuer: str, now: Callable[[], float] = time.monotonic) -> None:
        self._issuer = issuer
        self._now = now
        self._keys: dict[str | None, jwt.PyJWK] = {}
        self._good_until = self._not_before = -math.inf
        self._asking = threading.Lock()

    def key_of(self, token: str) -> jwt.PyJWK:
        """The key that a token names. Raises jwt.PyJWTError when the issuer has no such key, or can't be asked."""
        name = jwt.get_unverified_header(token).get("kid")
        if self._wanting(name) and self._asking.acquire(blocking=not self._keys):
            try:
                if self._wanting(name):
                    self._ask()
            finally:
                self._asking.release()
        if name not in self._keys:
            raise jwt.InvalidTokenError("the issuer has no such key")
        return self._keys[name]

    def _wanting(self, name: str | None) -> bool:
        return self._now() >= self._not_before and (name not in self._keys or self._now() >= self._good_until)

    def _ask(self) -> None:
        try:
            keys = jwt.PyJWKSet.from_dict(_fetched(self._place())).keys
        except (OSError, ValueError, KeyError, TypeError, jwt.PyJWTError) as error:
            _log.warning("the keys of the OAuth issuer can't be had: %s", type(error).__name__)
        else:
            self._keys = {key.key_id: key for key in keys if key.public_key_use in ("sig", None)}
            self._good_until = self._now() + KEEP
        self._not_before = self._now() + PAUSE

    def _place(self) -> str:
        for url in build_oauth_authorization_server_metadata_discovery_urls(self._issuer, self._issuer):
            with contextlib.suppress(urllib.error.HTTPError):  # it has its metadata at one of these places
                told = _fetched(url)
                if issuers_match(str(told["issuer"]), self._issuer):
                    return str(told["jwks_uri"])
        raise ValueError("the issuer has no metadata")


def _fetched(url: str) -> JsonObject:
    if urlsplit(url).scheme not in ("http", "https"):
        raise ValueError("not a web address")
    with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
        found: JsonObject = json.loads(answer.read(MOST_BYTES))
    return found


class Tokens:
    """Fulfils the SDK's TokenVerifier, and says who holds a token and what we are to a client that has none."""

    def __init__(self, issuer: str, public_url: str) -> None:
        self._issuer = issuer
        self._base = public_url.rstrip("/")
        self._keys = IssuerKeys(issuer)
        # A thread is held for as long as the issuer takes to answer: they must not all be.
        self._threads = anyio.CapacityLimiter(4)

    @property
    def prefix(self) -> str:
        """The path that the public URL has before /mcp."""
        return urlsplit(self._base).path

    async def verify_token(self, token: str) -> AccessToken | None:
        """What a token says, when the issuer signed it for us and it has not expired."""
        if not _TOKEN.fullmatch(token):
            return None
        try:
            claims = await anyio.to_thread.run_sync(self._claims, token, limiter=self._threads)
        except jwt.PyJWTError:
            return None
        for_us = [audience for audience in _texts(claims["aud"]) if self._banks_of(audience)]
        if not for_us:
            return None
        client, subject = str(claims.get("client_id", claims.get("azp", ""))), claims.get("sub")
        return AccessToken(
            token=token,
            client_id=client,
            scopes=[scope for name in ("scope", "scp") for text in _texts(claims.get(name)) for scope in text.split()],
            expires_at=int(claims["exp"]),
            resource=" ".join(for_us),
            subject=str(subject) if subject is not None else None,
            claims=claims,
        )

    async def caller(self, token: str) -> Caller | None:
        """Who holds this token; None when it is not good. A token without a scope of ours reaches no bank."""
        found = await self.verify_token(token)
        if found is None:
            return None
        name = found.subject or found.client_id
        scopes = set(found.scopes)
        banks = [bank for audience in (found.resource or "").split() for bank in self._banks_of(audience)]
        return Caller(
            f"oauth:{name[:64]}" if name.isprintable() else "oauth:?",
            may_write=WRITE in scopes,
            key=("oauth", *principal_components(found), frozenset(banks), WRITE in scopes),
            banks=tuple(banks) if scopes & {READ, WRITE} else (),
        )

    def challenge(self, path: str) -> bytes:
        """What WWW-Authenticate says to a request without a good token at this path."""
        found = _BANK_PATH.search(path)
        at = f"/mcp/{found[1]}" + ("/sse" if found[2] else "") if found else ""
        where = build_resource_metadata_url(AnyHttpUrl(self._base + at))
        return f'Bearer realm="hindsight", resource_metadata="{where}", scope="{READ} {WRITE}"'.encode()

    def metadata(self, path: str) -> bytes:
        """RFC 9728's JSON about the bank's door at this path, such as /mcp/team/sse, as its client spells it."""
        # From text: an AnyHttpUrl of its own would end in a slash where the issuer's name has none.
        told = ProtectedResourceMetadata.model_validate(
            {
                "resource": self._base + path,
                "authorization_servers": [self._issuer],
                "scopes_supported": [READ, WRITE],
                "resource_name": "Hindsight",
            }
        )
        return told.model_dump_json(exclude_none=True).encode()

    def _claims(self, token: str) -> JsonObject:
        key = self._keys.key_of(token)
        claims: JsonObject = jwt.decode(
            token,
            key,
            algorithms=list(ALGORITHMS),
            issuer=[self._issuer.rstrip("/"), self._issuer.rstrip("/") + "/"],
            leeway=LEEWAY,
            options={"require": ["exp", "iss", "aud"], "verify_aud": False},
        )
        return claims

    def _banks_of(self, audience: str) -> list[str]:
        """The banks, as a pattern, for which a token with this audience is good."""
        if audience.rstrip("/") == self._base:
            return ["*"]
        if not audience.startswith(self._base + "/"):
            return []
        found = _BANK_PATH.fullmatch(audience.removeprefix(self._base))
        try:
            return [BankId.parse(unquote(found[1])).text] if found else []
        except InvalidArgument:
            return []


def open_tokens(settings: Settings) -> Tokens | None:
    """The tokens that the settings tell to take, if any. Raises SettingsError."""
    if not settings.oauth_issuer:
        return None
    for name in ("oauth_issuer", "public_url"):
        value = getattr(settings, name)
        try:
            validate_issuer_url(AnyHttpUrl(value))
        except (ValidationError, ValueError) as error:
            rule = "with OAuth it must be an https URL without ? and #; http is for loopback only"
            raise SettingsError(f"{variable(name)}={value!r}: {rule}") from error
    return Tokens(settings.oauth_issuer, settings.public_url)


def _texts(value: Any) -> Iterable[str]:
    return [value] if isinstance(value, str) else [each for each in value or () if isinstance(each, str)]
