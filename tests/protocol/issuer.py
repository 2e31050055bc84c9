"""A small OAuth issuer of the SDK's parts: whoever asks is logged in at once as Ada, and gets a signed token."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, generate_private_key
from mcp.server.auth.provider import AccessToken, AuthorizationCode, AuthorizationParams, RefreshToken
from mcp.server.auth.routes import build_metadata, create_auth_routes
from mcp.server.auth.settings import ClientRegistrationOptions, RevocationOptions
from mcp.shared.auth import OAuthClientInformationFull, OAuthToken
from pydantic import AnyHttpUrl
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tests.hosting import Host, hosted, listener, url_of

SCOPES = ["mcp:read", "mcp:write"]


class Issuer:
    """Fulfils the SDK's provider. `key` signs, under the name `kid`; both may be changed."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.kid = "first"
        self.key: RSAPrivateKey = generate_private_key(65537, 2048)
        self.asked = 0
        self.down = False
        self._clients: dict[str, OAuthClientInformationFull] = {}
        self._codes: dict[str, AuthorizationCode] = {}

    def token(self, audience: str | list[str], scope: str | None = "mcp:read mcp:write", **other: Any) -> str:
        """A token signed with the key of the moment; None leaves a claim out."""
        claims = {
            "iss": self.url,
            "sub": "ada",
            "client_id": "client",
            "aud": audience,
            "exp": int(time.time()) + 300,
            "scope": scope,
            **other,
        }
        kept = {name: value for name, value in claims.items() if value is not None}
        return jwt.encode(kept, self.key, "RS256", {"kid": self.kid, "typ": "at+jwt"})

    def app(self) -> Starlette:
        """The issuer as an app."""
        registration = ClientRegistrationOptions(enabled=True, valid_scopes=SCOPES, default_scopes=SCOPES)
        routes = create_auth_routes(self, AnyHttpUrl(self.url), None, registration)
        metadata = Route("/.well-known/oauth-authorization-server", self._metadata)
        return Starlette(routes=[metadata, Route("/jwks", self._jwks), *routes])

    async def _metadata(self, request: Request) -> Response:
        registration = ClientRegistrationOptions(enabled=True, valid_scopes=SCOPES)
        told = build_metadata(AnyHttpUrl(self.url), None, registration, RevocationOptions())
        kept = told.model_dump(mode="json", exclude_none=True)
        return JSONResponse({**kept, "issuer": self.url, "jwks_uri": f"{self.url}/jwks"})

    async def _jwks(self, request: Request) -> Response:
        self.asked += 1
        if self.down:
            return Response(status_code=503)
        public = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(self.key.public_key()))
        return JSONResponse({"keys": [{**public, "kid": self.kid, "use": "sig", "alg": "RS256"}]})

    async def get_client(self, client_id: str) -> OAuthClientInformationFull | None:
        return self._clients.get(client_id)

    async def register_client(self, client_info: OAuthClientInformationFull) -> None:
        assert client_info.client_id is not None
        self._clients[client_info.client_id] = client_info

    async def authorize(self, client: OAuthClientInformationFull, params: AuthorizationParams) -> str:
        assert client.client_id is not None
        code = secrets.token_hex(16)
        self._codes[code] = AuthorizationCode(
            code=code,
            scopes=params.scopes or [],
            expires_at=time.time() + 60,
            client_id=client.client_id,
            code_challenge=params.code_challenge,
            redirect_uri=params.redirect_uri,
            redirect_uri_provided_explicitly=params.redirect_uri_provided_explicitly,
            resource=params.resource,
        )
        return f"{params.redirect_uri}?code={code}&state={params.state}"

    async def load_authorization_code(
        self, client: OAuthClientInformationFull, authorization_code: str
    ) -> AuthorizationCode | None:
        return self._codes.get(authorization_code)

    async def exchange_authorization_code(
        self, client: OAuthClientInformationFull, authorization_code: AuthorizationCode
    ) -> OAuthToken:
        del self._codes[authorization_code.code]
        assert authorization_code.resource is not None
        scope = " ".join(authorization_code.scopes)
        token = self.token(authorization_code.resource, scope, client_id=client.client_id)
        return OAuthToken(access_token=token, token_type="Bearer", expires_in=300, scope=scope)

    async def load_refresh_token(self, client: OAuthClientInformationFull, refresh_token: str) -> RefreshToken | None:
        return None

    async def exchange_refresh_token(
        self, client: OAuthClientInformationFull, refresh_token: RefreshToken, scopes: list[str]
    ) -> OAuthToken:
        raise NotImplementedError

    async def load_access_token(self, token: str) -> AccessToken | None:
        return None

    async def revoke_token(self, token: AccessToken | RefreshToken) -> None:
        raise NotImplementedError

    async def exchange_identity_assertion(self, client: OAuthClientInformationFull, params: Any) -> OAuthToken:
        raise NotImplementedError


@asynccontextmanager
async def issuing() -> AsyncIterator[Issuer]:
    """An issuer on a free port of this machine, in this event loop."""
    with listener() as listening:
        issuer = Issuer(url_of(listening))
        async with hosted(Host(issuer.app(), lifespan="off"), listening):
            yield issuer
