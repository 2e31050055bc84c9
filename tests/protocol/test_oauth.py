"""OAuth: a client that knows nothing but a bank's URL logs in by itself; and which tokens count for what."""

from __future__ import annotations

import base64
import json
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import anyio.to_thread
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from mcp import ClientSession
from mcp.client.auth import OAuthClientProvider
from mcp.client.sse import sse_client
from mcp.shared.auth import AuthorizationCodeResult, OAuthClientInformationFull, OAuthClientMetadata, OAuthToken
from pydantic import AnyUrl

from hindsight.keys import Key, KeyFile
from hindsight.oauth import KEEP, PAUSE, IssuerKeys, Tokens
from hindsight.settings import SettingsError, read_settings
from hindsight.wiring import make_tokens
from tests.serving import BOUND, answer, browser, serving

from .doors import code, opened, request
from .issuer import Issuer, issuing

pytestmark = pytest.mark.anyio


@dataclass(eq=False)
class Login:
    """The SDK's storage and browser in one: it goes where it is sent and brings back the code."""

    tokens: OAuthToken | None = None
    client: OAuthClientInformationFull | None = None
    _redirected: str = ""

    async def get_tokens(self) -> OAuthToken | None:
        return self.tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self.tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self.client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self.client = client_info

    async def browse(self, url: str) -> None:
        async with browser() as http:
            self._redirected = (await http.get(url)).headers["location"]

    async def callback(self) -> AuthorizationCodeResult:
        given = parse_qs(urlsplit(self._redirected).query)
        return AuthorizationCodeResult(code=given["code"][0], state=given["state"][0])

    def for_server(self, url: str) -> OAuthClientProvider:
        """The SDK's client side of OAuth for a server of which only the URL is known."""
        about = OAuthClientMetadata(client_name="test", redirect_uris=[AnyUrl("http://127.0.0.1/callback")])
        return OAuthClientProvider(url, about, self, self.browse, self.callback)


@dataclass(frozen=True, slots=True)
class Logged:
    """A server that takes the issuer's tokens."""

    url: str
    issuer: Issuer
    data: Path

    async def status(self, token: str, path: str = "/mcp/team-a/sse", method: str = "HEAD") -> int:
        """What a token gets at a path."""
        async with browser() as http:
            return (await http.request(method, self.url + path, headers=bearing(token))).status_code


def bearing(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


@asynccontextmanager
async def logged(data: Path, model_folder: Path) -> AsyncIterator[Logged]:
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    async with issuing() as issuer:
        url = f"http://127.0.0.1:{port}"
        settings: dict[str, Any] = {"port": port, "public_url": url, "oauth_issuer": issuer.url}
        server = serving(data, model_dir=model_folder, ready=False, **settings)
        await anyio.to_thread.run_sync(server.__enter__)
        try:
            yield Logged(url, issuer, data)
        finally:
            await anyio.to_thread.run_sync(server.__exit__, None, None, None)


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
async def server(
    anyio_backend: str, tmp_path_factory: pytest.TempPathFactory, model_folder: Path
) -> AsyncIterator[Logged]:
    """One server for all tests."""
    async with logged(tmp_path_factory.mktemp("data"), model_folder) as running:
        yield running


async def test_a_client_that_knows_only_the_url_logs_in_and_uses_the_bank(server: Logged) -> None:
    url, login = f"{server.url}/mcp/team-a/sse", Login()
    async with (
        sse_client(url, auth=login.for_server(url), timeout=BOUND, sse_read_timeout=BOUND) as (reading, writing),
        ClientSession(reading, writing, read_timeout_seconds=BOUND) as session,
    ):
        await session.initialize()
        stored = await answer(session, "retain", content="Ada drinks tea.")
        found = await answer(session, "recall", query="What does Ada drink?")

    assert login.tokens is not None
    claims = jwt.decode(login.tokens.access_token, options={"verify_signature": False})
    assert (claims["aud"], claims["scope"]) == (url, "mcp:read mcp:write")
    assert [result["id"] for result in found["results"]] == [stored["id"]]


async def test_without_a_token_the_401_names_the_metadata_which_names_the_issuer(server: Logged) -> None:
    async with browser(server.url) as http:
        for path in ("/mcp/team%20a/sse", "/mcp/team%20a"):
            refused = await http.get(path)
            where = f"{server.url}/.well-known/oauth-protected-resource{path}"
            told = (await http.get(where)).json()

            assert refused.status_code == 401
            assert f'resource_metadata="{where}"' in refused.headers["www-authenticate"]
            assert told == {
                "resource": f"{server.url}{path}",
                "authorization_servers": [server.issuer.url],
                "scopes_supported": ["mcp:read", "mcp:write"],
                "bearer_methods_supported": ["header"],
                "resource_name": "Hindsight",
            }


async def test_a_token_counts_where_its_audience_says(server: Logged) -> None:
    base = server.url
    audiences: dict[Any, int] = {
        base: 200,
        f"{base}/": 200,
        f"{base}/mcp/team-a": 200,
        f"{base}/mcp/team-a/sse": 200,
        f"{base}/mcp/team%2Da/sse": 200,
        ("https://elsewhere.example", f"{base}/mcp/team-a"): 200,
        f"{base}/mcp/team-b": 403,
        f"{base}/mcp/team-*": 401,
        f"{base}/mcp": 401,
        f"{base}/mcp/": 401,
        f"{base}0": 401,
        f"{base}.evil.example/mcp/team-a": 401,
        "https://elsewhere.example": 401,
        "": 401,
    }

    got = {
        aud: await server.status(server.issuer.token(aud if isinstance(aud, str) else list(aud))) for aud in audiences
    }

    assert got == audiences


def unsigned(token: str, **header: str) -> str:
    head = base64.urlsafe_b64encode(json.dumps({"typ": "JWT", **header}).encode()).decode().rstrip("=")
    return f"{head}.{token.split('.')[1]}."


async def test_what_the_issuer_did_not_sign_for_us_now_is_401(server: Logged) -> None:
    issuer, aud = server.issuer, server.url
    stranger = Issuer(issuer.url)
    good = issuer.token(aud)
    public = issuer.key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    claims = jwt.decode(good, options={"verify_signature": False})
    # PyJWT itself refuses to sign with a public key as a secret, so the attack is made by hand.
    confused = jwt.api_jws.PyJWS(["HS256"])
    confused._algorithms["HS256"].prepare_key = lambda key: key  # type: ignore[method-assign]
    forged = {
        "signed by another": stranger.token(aud),
        "not signed": unsigned(good, alg="none", kid=issuer.kid),
        "signed with the public key as a secret": confused.encode(
            json.dumps(claims).encode(), public, "HS256", {"kid": issuer.kid}
        ),
        "expired": issuer.token(aud, exp=int(time.time()) - 60),
        "not yet valid": issuer.token(aud, nbf=int(time.time()) + 600),
        "without an end": issuer.token(aud, exp=None),
        "without an audience": issuer.token(aud, aud=None),
        "of another issuer": issuer.token(aud, iss="https://elsewhere.example"),
        "with a changed body": ".".join(
            [good.split(".")[0], issuer.token(aud, sub="eve").split(".")[1], good.split(".")[2]]
        ),
        "cut short": good[:-10],
        "no token": "a.b.c",
    }

    got = {name: await server.status(token) for name, token in forged.items()}

    assert got == dict.fromkeys(forged, 401)
    assert await server.status(good) == 200


async def test_scopes_say_what_a_token_may_do(server: Logged) -> None:
    reading = server.issuer.token(server.url, "mcp:read openid")
    nothing = server.issuer.token(server.url, "openid")
    as_list = server.issuer.token(server.url, scope=None, scp=["mcp:read"])
    async with opened(f"{server.url}/mcp/team-a/sse", **bearing(reading)) as wire:
        refused = await wire.call("retain", content="x")
        found = await wire.call("recall", query="x")

    assert code(refused) == "FORBIDDEN"
    assert found["result"]["isError"] is False
    assert await server.status(reading, "/banks/team-a", "DELETE") == 403
    assert await server.status(nothing) == 403
    assert await server.status(as_list) == 200


async def test_a_session_belongs_to_the_person_and_the_client_that_opened_it(server: Logged) -> None:
    ada = server.issuer.token(server.url)
    async with opened(f"{server.url}/mcp/team-a/sse", **bearing(ada)) as wire:
        again = server.issuer.token(server.url, exp=int(time.time()) + 200)
        renewed = await wire.post(request("ping"), **bearing(again))
        eve = await wire.post(request("ping"), **bearing(server.issuer.token(server.url, sub="eve")))
        client = await wire.post(request("ping"), **bearing(server.issuer.token(server.url, client_id="another")))

    assert (renewed.status_code, eve.status_code, client.status_code) == (202, 404, 404)


async def test_keys_count_beside_tokens(server: Logged) -> None:
    key, secret = Key.create("ada", ["*"], ["read"], None)
    KeyFile(server.data).add(key)
    with anyio.fail_after(BOUND):
        while await server.status(secret) != 200:  # noqa: ASYNC110  # the server tells nobody
            await anyio.sleep(0.05)

    assert await server.status(server.issuer.token(server.url)) == 200


@dataclass(eq=False)
class Clock:
    """A time that a test sets."""

    seconds: float = 1000.0
    steps: list[float] = field(default_factory=list)

    def __call__(self) -> float:
        return self.seconds


async def known(keys: IssuerKeys, token: str) -> bool:
    """Whether there is a key for a token, whose signature would then be checked."""
    try:
        await anyio.to_thread.run_sync(keys.key_of, token)
    except jwt.PyJWTError:
        return False
    return True


async def test_a_new_key_of_the_issuer_is_found_and_made_up_ones_do_not_make_us_ask_again_and_again() -> None:
    async with issuing() as issuer:
        clock = Clock()
        keys = IssuerKeys(issuer.url, clock)
        old = issuer.token("x")
        at_first = await known(keys, old)
        issuer.kid, issuer.key = "second", generate_private_key(65537, 2048)
        too_soon = [await known(keys, issuer.token("x")) for _ in range(10)]
        asked = issuer.asked
        clock.seconds += PAUSE
        afterwards = await known(keys, issuer.token("x"))

        assert (at_first, set(too_soon), asked, afterwards, issuer.asked) == (True, {False}, 1, True, 2)
        assert not await known(keys, old)


async def test_while_the_issuer_is_down_its_last_keys_count() -> None:
    async with issuing() as issuer:
        clock = Clock()
        keys = IssuerKeys(issuer.url, clock)
        token = issuer.token("x")
        at_first = await known(keys, token)
        issuer.down = True
        clock.seconds += KEEP + 1

        assert at_first
        assert await known(keys, token)


async def test_an_issuer_out_of_reach_lets_nobody_in() -> None:
    with socket.create_server(("127.0.0.1", 0)) as found:
        url = f"http://127.0.0.1:{found.getsockname()[1]}"

    assert (
        await Tokens(url, "https://memory.example.com").caller(Issuer(url).token("https://memory.example.com")) is None
    )


@pytest.mark.parametrize(
    ("issuer", "public_url", "named"),
    [
        ("https://login.example.com", "", "HINDSIGHT_PUBLIC_URL"),
        ("https://login.example.com", "http://memory.example.com", "HINDSIGHT_PUBLIC_URL"),
        ("http://login.example.com", "https://memory.example.com", "HINDSIGHT_OAUTH_ISSUER"),
        ("login", "https://memory.example.com", "HINDSIGHT_OAUTH_ISSUER"),
    ],
)
def test_oauth_without_what_it_needs_does_not_start(issuer: str, public_url: str, named: str) -> None:
    with pytest.raises(SettingsError, match=named):
        make_tokens(read_settings(oauth_issuer=issuer, public_url=public_url))


@pytest.mark.parametrize(
    ("path", "named"),
    [
        ("/mcp/b/sse", "/team/mcp/b/sse"),
        ("/mcp/b", "/team/mcp/b"),
        ("/mcp/b/messages", "/team/mcp/b/sse"),
        ("/team/mcp/b/sse", "/team/mcp/b/sse"),
        ("/banks/b/memories", "/team"),
        ('/mcp/a"b/sse', "/team"),
    ],
)
def test_a_challenge_names_the_metadata_of_the_bank_with_the_public_prefix(path: str, named: str) -> None:
    told = Tokens("https://login.example.com", "https://memory.example.com/team/").challenge(path).decode()

    where = f"https://memory.example.com/.well-known/oauth-protected-resource{named}"
    assert told == f'Bearer realm="hindsight", resource_metadata="{where}", scope="mcp:read mcp:write"'
