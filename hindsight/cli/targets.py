"""Where `load` and `export` work: a server by its URL, or a data folder that no server holds."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Protocol
from urllib.parse import quote

import httpx

from hindsight.banks import Banks
from hindsight.bulk import WINDOW, Line, LineResult, export, load
from hindsight.errors import HindsightError, Overloaded, TooBusy
from hindsight.folder import FolderHeld, held_folder
from hindsight.record import BankId
from hindsight.settings import CLIENT_KEY, read_settings
from hindsight.wiring import make_embedder, open_banks

Tell = Callable[[Sequence[LineResult]], None]
_TIMES = httpx.Timeout(30.0, read=300.0)
_ATTEMPTS = 8  # in a row without a single line answered
_LONGEST_PAUSE = 15.0


class Refused(HindsightError):
    """What the server answered instead of doing it."""

    code, status, next_action = "REFUSED", 400, ""


class Target(Protocol):
    """Banks, wherever they are."""

    async def load(self, bank_id: BankId, lines: Sequence[bytes], tell: Tell) -> None:
        """Retain lines of NDJSON in their order; `tell` hears each line's result once, in that order."""
        ...

    def export(self, bank_id: BankId) -> AsyncGenerator[bytes, None]:
        """A bank's memories as NDJSON, in pieces."""
        ...

    async def banks(self) -> list[BankId]:
        """The banks there are."""
        ...


def add_target(parser: argparse.ArgumentParser) -> None:
    """The options that say where."""
    parser.add_argument("--url", help="the server, such as http://127.0.0.1:8888; without it the data folder is used")
    parser.add_argument("--key", default=os.environ.get(CLIENT_KEY), help=f"API key for the server [{CLIENT_KEY}]")
    parser.add_argument("--data-dir", help="data folder, when no server holds it [HINDSIGHT_DATA_DIR]")


@asynccontextmanager
async def open_target(arguments: argparse.Namespace) -> AsyncIterator[Target]:
    """The target that the options name. Raises FolderHeld, OSError, SettingsError, EmbedderUnavailable."""
    if arguments.url:
        url = httpx.URL(arguments.url.rstrip("/"))
        headers = {"x-api-key": arguments.key} if arguments.key else {}
        # A proxy of the environment is for the world outside.
        outside = url.host not in ("localhost", "127.0.0.1", "::1")
        async with httpx.AsyncClient(base_url=url, headers=headers, timeout=_TIMES, trust_env=outside) as client:
            yield _Server(client)
    else:
        settings = read_settings(data_dir=arguments.data_dir)
        with held_folder(settings.data_dir, "hindsight load or export") as folder:
            async with open_banks(settings, folder, make_embedder(settings)) as banks:
                yield _Folder(banks)


class _Folder:
    """Fulfils Target on a data folder."""

    def __init__(self, banks: Banks) -> None:
        self._banks = banks

    async def load(self, bank_id: BankId, lines: Sequence[bytes], tell: Tell) -> None:
        async def windows() -> AsyncGenerator[list[Line], None]:
            for first in range(0, len(lines), WINDOW):
                window = lines[first : first + WINDOW]
                yield [Line(number, line) for number, line in enumerate(window, first + 1)]

        async def heard(results: Sequence[LineResult]) -> None:
            tell(results)

        async with self._banks.lease(bank_id) as bank:
            await load(bank, windows(), heard)

    async def export(self, bank_id: BankId) -> AsyncGenerator[bytes, None]:
        async with self._banks.lease(bank_id) as bank, aclosing(export(bank)) as chunks:
            async for chunk in chunks:
                yield chunk

    async def banks(self) -> list[BankId]:
        return [BankId(glance.bank_id) for glance in await self._banks.glances()]


class _Server:
    """Fulfils Target over HTTP. What a broken connection leaves unanswered is sent again."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client
        self._reached = False

    async def load(self, bank_id: BankId, lines: Sequence[bytes], tell: Tell) -> None:
        done, attempt = 0, 0
        while done < len(lines):
            before, trouble = done, "the server ended its answer too early"
            try:
                async for result in self._post(_path(bank_id), lines[done:]):
                    tell([result])
                    done += 1
            except httpx.TransportError as error:
                trouble = f"the server can't be reached: {error or type(error).__name__}"
            except Overloaded as error:
                trouble = error.message
            attempt = 0 if done > before else attempt + 1
            if attempt >= _ATTEMPTS or not self._reached:
                raise ConnectionError(trouble)
            if done < len(lines):
                await asyncio.sleep(min(_LONGEST_PAUSE, 0.25 * 2**attempt))

    async def _post(self, path: str, lines: Sequence[bytes]) -> AsyncGenerator[LineResult, None]:
        async with self._client.stream("POST", path, content=b"\n".join(lines)) as response:
            self._reached = True
            await _check(response)
            async for line in response.aiter_lines():
                result: LineResult = json.loads(line)
                if "error" in result and result["error"]["code"] == TooBusy.code:
                    raise TooBusy(result["error"]["message"])  # the server stops: the line was not looked at
                yield result

    async def export(self, bank_id: BankId) -> AsyncGenerator[bytes, None]:
        async with self._client.stream("GET", _path(bank_id)) as response:
            await _check(response)
            async for chunk in response.aiter_bytes():
                yield chunk

    async def banks(self) -> list[BankId]:
        async with self._client.stream("GET", "/banks") as response:
            await _check(response)
            found = json.loads(await response.aread())
        return [BankId.parse(bank["bank_id"]) for bank in found["banks"]]


def _path(bank_id: BankId) -> str:
    return f"/banks/{quote(bank_id.text, safe='')}/memories"


async def _check(response: httpx.Response) -> None:
    """Raises TooBusy when it may go better later, else Refused."""
    if response.status_code == 200:
        return
    body = await response.aread()
    try:
        error = json.loads(body)["error"]
        message = f"{error['message']}. {error['next_action']}"
    except (ValueError, KeyError, TypeError):
        message = f"the server answers {response.status_code}; is the URL right?"
    if response.status_code in (429, 502, 503, 504):
        raise TooBusy(message)
    raise Refused(message)


def hint(error: FolderHeld) -> str:
    """What to do about it."""
    return f"{error}; stop it, or load through it with --url"


def bank_file(folder: Path, bank_id: BankId) -> Path:
    """Where the export of all banks keeps one."""
    return folder / f"{bank_id.folder}.ndjson"
