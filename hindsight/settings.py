"""Every option of the server once, with its default, its bounds and its meaning.

Each is read from the environment as HINDSIGHT_ and the name in capitals. README's table repeats them; a test compares.
"""

from __future__ import annotations

import difflib
import ipaddress
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import Field, SecretStr, ValidationError, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

PREFIX = "HINDSIGHT_"
CLIENT_KEY = PREFIX + "KEY"  # not a setting: the key that the command line shows to a server
KIB, MIB = 1024, 1024 * 1024
_URL = re.compile(r"https?://(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::([0-9]{1,5}))?(?:/[A-Za-z0-9._~@:+-]+)*/?")
_PREFIX = re.compile(r"(?:/[A-Za-z0-9._~@:+-]+)+")


class SettingsError(ValueError):
    """An option that is not what it must be; the text has a line per option: name, value and rule."""


class Settings(BaseSettings):
    """The server's options; frozen once read."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="forbid", env_ignore_empty=True)

    host: str = Field("127.0.0.1", description="address to listen on")
    port: int = Field(8888, ge=0, le=65535, description="port to listen on; 0 takes a free one")
    root_path: str = Field("", description="path prefix that a proxy strips, put before the announced message paths")
    data_dir: Path = Field(Path("data"), description="folder that holds everything stored")
    timezone: str = Field("UTC", description="zone of naive times and of words such as 'yesterday'")
    embedder: str = Field("onnx", description="embedder: onnx, openai, or package.module:factory")
    model_dir: Path = Field(
        Path(sys.prefix) / "share" / "hindsight" / "model", description="folder of the onnx embedder's model"
    )
    embedder_threads: int = Field(2, ge=1, le=64, description="threads that embed")
    openai_base_url: str = Field(
        "https://api.openai.com/v1", description="URL of the OpenAI-compatible service of the openai embedder"
    )
    openai_model: str = Field("text-embedding-3-small", description="model that the service embeds with")
    openai_api_key: SecretStr = Field(SecretStr(""), description="key of the service; a local one needs none")
    openai_dimensions: int = Field(
        0, ge=0, le=65_536, description="numbers in a vector, asked of the service; 0: what its model has"
    )
    openai_max_tokens: int = Field(
        512, ge=16, le=100_000, description="how much of a text the model reads, in tokens; what follows is not sent"
    )
    openai_batch: int = Field(32, ge=1, le=2_048, description="texts in one request to the service")
    openai_timeout: float = Field(
        15.0, gt=0, le=600, description="longest wait for the service, repeated requests included, in seconds"
    )
    chroma_url: str = Field(
        "", description="URL of a Chroma server that holds the vector indexes; empty: the data folder"
    )
    open_banks: int = Field(64, ge=1, le=10_000, description="banks kept open; the least recently used are closed")
    max_body: int = Field(4 * MIB, ge=KIB, le=1024 * MIB, description="largest request body, in bytes")
    max_sessions: int = Field(2_000, ge=1, le=100_000, description="sessions open at once")
    session_calls: int = Field(
        32, ge=1, le=10_000, description="calls in flight in one session, and of one key beside MCP"
    )
    total_calls: int = Field(256, ge=1, le=100_000, description="calls in flight in all, a load or an export being one")
    call_deadline: float = Field(30.0, gt=0, le=3600, description="longest that a call may take, in seconds")
    send_timeout: float = Field(
        30.0, gt=0, le=3600, description="time after which a client that does not read is dropped, in seconds"
    )
    session_idle: float = Field(86_400.0, gt=0, description="a session without a message for so long ends, in seconds")
    ping_interval: float = Field(15.0, gt=0, le=3600, description="time between keepalive comments, in seconds")
    drain_time: float = Field(10.0, ge=0, le=3600, description="time that calls in flight get at shutdown, in seconds")
    allowed_hosts: str = Field(
        "", description="Host headers accepted, by commas; empty: loopback names when on loopback, else any"
    )
    allowed_origins: str = Field(
        "", description="browser origins accepted, by commas; empty: loopback when on loopback, else none"
    )
    allow_anonymous: bool = Field(False, description="listen on a non-loopback address without keys")
    api_keys: SecretStr = Field(
        SecretStr(""), description="keys as a JSON list of objects with name, key, banks, scopes; for containers"
    )
    public_url: str = Field("", description="URL at which clients reach the server, without /mcp; OAuth needs it")
    oauth_issuer: str = Field("", description="OAuth issuer whose access tokens are taken; empty: none")
    requests_per_minute: int = Field(
        0, ge=0, le=1_000_000, description="requests that each key may make in a minute; 0: any number"
    )
    max_memories_per_bank: int = Field(0, ge=0, description="memories that a bank may hold; 0: any number")
    max_bytes_per_bank: int = Field(0, ge=0, description="bytes on disk that a bank's ledger may take; 0: any number")
    audit_file: Path | None = Field(None, description="file that gets a JSON line per call, without content")
    audit_bytes: int = Field(
        64 * MIB, ge=KIB, description="size at which the audit file is rotated, in bytes; ten old ones are kept"
    )
    log_format: Literal["text", "json"] = Field("text", description="form of the log lines: text or json")
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="least severe lines logged")

    @field_validator("root_path")
    @classmethod
    def _path_is_a_prefix(cls, path: str) -> str:
        if path and not is_prefix(path):
            raise ValueError("a path such as /team-a, with a slash before each of its parts and none at its end")
        return path

    @field_validator("data_dir", "model_dir", "audit_file", mode="before")
    @classmethod
    def _path_is_not_blank(cls, path: object) -> object:
        if isinstance(path, str) and not path.strip():
            raise ValueError("a path, which can't be empty")
        return path

    @field_validator("chroma_url")
    @classmethod
    def _url_leads_somewhere(cls, url: str) -> str:
        found = _URL.fullmatch(url)
        if url and not (found and 0 < int(found[1] or 80) <= 65_535):
            raise ValueError("a URL such as http://chroma:8000")
        return url

    @field_validator("timezone")
    @classmethod
    def _zone_exists(cls, name: str) -> str:
        try:
            ZoneInfo(name)
        except (ZoneInfoNotFoundError, ValueError, OSError) as error:
            raise ValueError("an IANA time zone such as Europe/Berlin") from error
        return name

    @property
    def zone(self) -> ZoneInfo:
        """The zone of naive times."""
        return ZoneInfo(self.timezone)

    @property
    def on_loopback(self) -> bool:
        """Whether only this machine can connect."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


def is_prefix(path: str) -> bool:
    """Whether a path can stand before ours in a URL. '//host' can't: it would announce another server's URL."""
    return bool(_PREFIX.fullmatch(path)) and ".." not in path and len(path) <= 256


def variable(name: str) -> str:
    """The environment variable of an option."""
    return PREFIX + name.upper()


def read_settings(**given: object) -> Settings:
    """The options from the environment, `given` ones (a command line's) first. Raises SettingsError."""
    try:
        return Settings(**{name: value for name, value in given.items() if value is not None})  # type: ignore[arg-type]  # pydantic checks each
    except ValidationError as error:
        raise SettingsError("\n".join(_refused(**each) for each in error.errors())) from error


def unusable(folder: Path, error: OSError) -> SettingsError:
    """What to raise where the data folder can't be used."""
    rule = "a folder that can be made, read and written"
    return SettingsError(f"{variable('data_dir')}={str(folder)!r}: {rule}: {error.strerror}")


def is_secret(name: str) -> bool:
    """Whether an option must never be shown, nor stand in a command line, which every process can see."""
    return name in Settings.model_fields and Settings.model_fields[name].annotation is SecretStr


def _refused(loc: tuple[int | str, ...], input: object, msg: str, **_: object) -> str:
    name = str(loc[0])
    return f"{variable(name)}={'(secret)' if is_secret(name) else repr(input)}: {msg}"


def unknown_variables(environment: Mapping[str, str]) -> list[str]:
    """A warning for each HINDSIGHT_ variable that is no option, naming the nearest one."""
    known = [variable(name) for name in Settings.model_fields] + [CLIENT_KEY]
    found = []
    for name in sorted(environment):
        if name.startswith(PREFIX) and name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            found.append(f"{name} is not a setting" + (f"; did you mean {near[0]}?" if near else ""))
    return found
