"""API keys: who may come in, to which banks, and to do what.

A key is a random secret of which only the SHA-256 is kept. Keys made by the command line are in one file of the data
folder, which is replaced as a whole, so that it can be changed beside a running server; the server looks every LOOK
seconds. Where keys have been made the server stays closed: with the last one revoked it lets nobody in. Only removing
the file and starting anew opens it.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import hmac
import json
import logging
import os
import re
import secrets
import unicodedata
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread

from hindsight.caller import ANYONE, Caller
from hindsight.errors import InvalidArgument
from hindsight.settings import Settings, SettingsError, unusable, variable

KEYS = "keys.json"
PREFIX = "hs_"
LOOK = 0.4  # seconds between two looks at the file: a revoked key must be out within one
READ, WRITE = "read", "write"

_NAME = re.compile(r"\w[\w.@+-]{0,63}")
_SECRET = re.compile(r"[!-~]{32,256}")
_BANKS_RULE = "bank patterns are bank ids, 1 to 128 characters, in which * stands for any text"
_NAME_RULE = "a key's name has 1 to 64 letters, digits and . _ @ + -, the first one a letter, digit or _"
_SCOPES_RULE = "scopes are read, or read and write"

_log = logging.getLogger("hindsight.keys")


class KeysUnreadable(OSError):
    """The key file can't be read or is not what was written; the text says which and why."""


@dataclass(frozen=True, slots=True)
class Key:
    """What is kept of a key. `digest` is the secret's SHA-256 in hex; `expires` the last day, in UTC, that it is good.

    `create` and `parse` check what they are given.
    """

    name: str
    digest: str
    banks: tuple[str, ...]
    may_write: bool
    created: str
    expires: date | None = None

    @classmethod
    def create(cls, name: str, banks: Sequence[str], scopes: Sequence[str], expires: date | None) -> tuple[Key, str]:
        """A new key and its secret, which is kept nowhere else. Raises InvalidArgument."""
        secret = PREFIX + secrets.token_urlsafe(32)
        created = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        return cls.parse(name, _digest(secret), banks, scopes, created, expires), secret

    @classmethod
    def parse(cls, name: object, digest: str, banks: object, scopes: object, created: str, expires: date | None) -> Key:
        """A key of checked parts. Raises InvalidArgument with the rule that is broken, never with what was given."""
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise InvalidArgument(_NAME_RULE)
        return cls(name, digest, _patterns(banks), _writing(scopes), created, expires)

    def good_on(self, today: date) -> bool:
        """Whether it has not expired."""
        return self.expires is None or today <= self.expires

    @property
    def caller(self) -> Caller:
        """Whoever holds the key."""
        return Caller(self.name, self.may_write, ("key", self.digest), self.banks)

    def as_json(self) -> dict[str, Any]:
        """The key as it stands in the file."""
        return {
            "name": self.name,
            "sha256": self.digest,
            "banks": list(self.banks),
            "scopes": [READ, WRITE] if self.may_write else [READ],
            "created": self.created,
            "expires": self.expires.isoformat() if self.expires else None,
        }


class KeyFile:
    """The keys of a data folder. All calls block; changes by several processes come one after the other."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / KEYS

    def read(self) -> tuple[Key, ...] | None:
        """The keys; None when none was ever made here. Raises KeysUnreadable."""
        try:
            kept = json.loads(self._path.read_bytes())
            return tuple(_from_file(entry) for entry in kept["keys"])
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, InvalidArgument) as error:
            raise KeysUnreadable(f"{self._path} can't be read as keys: {type(error).__name__}") from error

    def add(self, key: Key) -> None:
        """Add a key. Raises InvalidArgument when there is one of its name, KeysUnreadable, OSError."""
        with self._changing() as keys:
            if any(other.name == key.name for other in keys):
                raise InvalidArgument("there is a key of this name", next_action="Choose another or revoke that one.")
            keys.append(key)

    def remove(self, name: str) -> None:
        """Remove a key. Raises InvalidArgument when there is none of this name, KeysUnreadable, OSError."""
        with self._changing() as keys:
            left = [key for key in keys if key.name != name]
            if len(left) == len(keys):
                raise InvalidArgument("there is no key of this name", next_action="See hindsight keys list.")
            keys[:] = left

    def stamp(self) -> Hashable:
        """Something that changes with the file. Raises OSError."""
        try:
            found = self._path.stat()
        except FileNotFoundError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_size

    @contextlib.contextmanager
    def _changing(self) -> Iterator[list[Key]]:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        # A lock of its own: the file itself is replaced, and the folder's lock is the server's.
        with open(self._path.with_suffix(".lock"), "a", opener=_private) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            keys = list(self.read() or ())
            yield keys
            self._replace(keys)

    def _replace(self, keys: Iterable[Key]) -> None:
        new = self._path.with_suffix(".new")
        with open(new, "w", encoding="utf-8", opener=_private) as file:
            json.dump({"keys": [key.as_json() for key in keys]}, file, ensure_ascii=False, indent=1)
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, self._path)


class Keyring:
    """The keys that a server goes by: those in its environment, and those in the file as it is now."""

    def __init__(
        self, file: KeyFile, fixed: Sequence[Key] = (), now: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        """Raises KeysUnreadable."""
        self._file = file
        self._fixed = tuple(fixed)
        self._now = now
        self._stamp = file.stamp()
        kept = file.read()
        self._keys = self._by_digest(kept or ())
        self._good = self._unexpired()
        self._closed = bool(fixed) or kept is not None

    @property
    def closed(self) -> bool:
        """Whether a key is needed; once true it stays so."""
        return self._closed

    def find(self, secret: str) -> Caller | None:
        """Whose key this is; None when it is nobody's, or has expired."""
        digest = _digest(secret)
        key = self._keys.get(digest)
        # The look-up goes by a digest, of which a guess tells nothing; that it is the whole one takes constant time.
        if key is None or not hmac.compare_digest(key.digest, digest) or not key.good_on(self._today()):
            return None
        return key.caller

    def refresh(self) -> list[Hashable]:
        """Take in what has changed; returns the identities of callers whose key is gone, changed or expired. Blocking.

        Anyone's is among them when the first key came. When the file can't be read the keys stay as they were.
        """
        was_open = not self._closed
        try:
            stamp = self._file.stamp()
            if stamp != self._stamp:
                self._take(self._file.read(), stamp)
        except OSError as error:
            _log.error("the keys stay as they were: %s", error)
        before, self._good = self._good, self._unexpired()
        lost = [key.caller.key for digest, key in before.items() if self._good.get(digest) != key]
        return [ANYONE.key, *lost] if was_open and self._closed else lost

    async def watch(self, gone: Callable[[Hashable], None]) -> None:
        """Keep up with the file for ever, calling `gone` with the identity of each caller that has lost its key."""
        while True:
            await anyio.sleep(LOOK)
            for identity in await anyio.to_thread.run_sync(self.refresh):
                gone(identity)

    def _take(self, kept: tuple[Key, ...] | None, stamp: Hashable) -> None:
        if kept is None:
            _log.warning("the key file is gone: its keys are void, and the server stays closed until it starts anew")
        self._keys, self._stamp, self._closed = self._by_digest(kept or ()), stamp, True
        _log.info("keys taken in: %d", len(self._keys))

    def _by_digest(self, kept: Iterable[Key]) -> dict[str, Key]:
        return {key.digest: key for key in (*kept, *self._fixed)}

    def _unexpired(self) -> dict[str, Key]:
        today = self._today()
        return {digest: key for digest, key in self._keys.items() if key.good_on(today)}

    def _today(self) -> date:
        return self._now().astimezone(UTC).date()


def open_keyring(settings: Settings) -> Keyring:
    """The keys that the settings name. Raises SettingsError, in which no key is quoted."""
    try:
        return Keyring(KeyFile(settings.data_dir), _fixed_keys(settings.api_keys.get_secret_value()))
    except KeysUnreadable as error:
        raise SettingsError(f"{error}; restore it, or remove it and make the keys anew") from error
    except OSError as error:
        raise unusable(settings.data_dir, error) from error


def _fixed_keys(text: str) -> list[Key]:
    if not text.strip():
        return []
    try:
        entries = json.loads(text)
    except (ValueError, RecursionError):
        entries = None
    if not isinstance(entries, list):
        raise SettingsError(f"{variable('api_keys')}: it must be a JSON list of objects with name, key, banks, scopes")
    keys = [_fixed_key(place, entry) for place, entry in enumerate(entries, 1)]
    for same in ("name", "digest"):
        if len({getattr(key, same) for key in keys}) < len(keys):
            raise SettingsError(f"{variable('api_keys')}: no two entries may have the same name or the same key")
    return keys


def _fixed_key(place: int, entry: object) -> Key:
    try:
        if not isinstance(entry, Mapping) or not {"name", "key", "banks", "scopes"} <= set(entry):
            raise InvalidArgument("each entry is an object with name, key, banks and scopes")
        unknown = set(entry) - {"name", "key", "banks", "scopes", "expires"}
        if unknown:
            raise InvalidArgument("an entry may have name, key, banks, scopes and expires, and nothing else")
        secret, expires = entry["key"], entry.get("expires")
        if not isinstance(secret, str) or not _SECRET.fullmatch(secret):
            raise InvalidArgument("a key has 32 to 256 visible ASCII characters; hindsight keys create makes good ones")
        until = parse_day(expires) if expires is not None else None
        return Key.parse(entry["name"], _digest(secret), entry["banks"], entry["scopes"], "", until)
    except InvalidArgument as error:
        raise SettingsError(f"{variable('api_keys')}, entry {place}: {error.message}") from error


def parse_day(text: object) -> date:
    """A date such as 2027-01-31. Raises InvalidArgument."""
    try:
        return date.fromisoformat(text if isinstance(text, str) else "")
    except ValueError as error:
        raise InvalidArgument("a key expires on a date such as 2027-01-31; it is good to the end of it, UTC") from error


def _from_file(entry: Mapping[str, Any]) -> Key:
    expires = None if entry["expires"] is None else parse_day(entry["expires"])
    return Key.parse(
        entry["name"], str(entry["sha256"]), entry["banks"], entry["scopes"], str(entry["created"]), expires
    )


def _patterns(banks: object) -> tuple[str, ...]:
    if not isinstance(banks, list | tuple) or not banks or not all(isinstance(bank, str) for bank in banks):
        raise InvalidArgument(_BANKS_RULE)
    patterns = tuple(unicodedata.normalize("NFC", bank) for bank in banks)
    if not all(1 <= len(pattern) <= 128 and pattern.isprintable() and "/" not in pattern for pattern in patterns):
        raise InvalidArgument(_BANKS_RULE)
    return patterns


def _writing(scopes: object) -> bool:
    given = set(scopes) if isinstance(scopes, list | tuple) and all(isinstance(s, str) for s in scopes) else set()
    if READ not in given or given - {READ, WRITE}:
        raise InvalidArgument(_SCOPES_RULE)
    return WRITE in given


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
