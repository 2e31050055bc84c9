"""Each tool as a command of the same name: one call, on a server by its URL or straight on the data folder."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import sys
from functools import partial
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import quote

import httpx

from hindsight.arguments import Flag, Kind, Listed, read_arguments
from hindsight.cli.shown import lines_of, printable
from hindsight.cli.targets import add_target
from hindsight.errors import HindsightError
from hindsight.folder import FolderHeld, held_folder
from hindsight.messages import encode
from hindsight.record import BankId, JsonObject
from hindsight.settings import read_settings
from hindsight.tools import AnyTool
from hindsight.wiring import TOOLS, make_embedder, open_banks

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

# What a command can fail of that its user can mend; `told` says it.
FAILURES = (HindsightError, FolderHeld, httpx.TransportError, httpx.InvalidURL)
_STANDARD_INPUT = "-"
_TIMES = httpx.Timeout(30.0, read=300.0)


class Refused(HindsightError):
    """What a server answered instead of doing it."""

    code, status, next_action = "REFUSED", 400, "Check the URL and the key."


def add(commands: Subparsers) -> None:
    """Add a command for each tool, with an option for each of its arguments."""
    for tool in TOOLS:
        dashed = tool.name.replace("_", "-")
        aliases = [dashed] if dashed != tool.name else []
        parser = commands.add_parser(tool.name, aliases=aliases, help=tool.title.lower(), description=tool.title)
        parser.add_argument("--bank", required=True, help="the bank to work on")
        positional = True
        for field in dataclasses.fields(tool.arguments):
            if field.default is dataclasses.MISSING and positional:
                parser.add_argument(field.name, help=f"{_about(field)}; {_STANDARD_INPUT} reads standard input")
                positional = False
            else:
                _add_option(parser, field)
        parser.add_argument("--json", action="store_true", help="print the answer as JSON")
        add_target(parser)
        parser.set_defaults(run=partial(_run, tool))


def told(error: Exception, url: str | None) -> int:
    """Say which of the FAILURES it was, and what to do; the exit status."""
    if isinstance(error, FolderHeld):
        said = f"{error}\nAsk that server: add --url http://HOST:PORT, and --key if it has keys."
        print(f"hindsight: {said}", file=sys.stderr)
        return 1
    if not isinstance(error, HindsightError):
        error = Refused(f"{url} can't be reached: {error or type(error).__name__}")
    print(printable(f"hindsight: {error.message}\n{error.advice}"), file=sys.stderr)
    return 1


def http_client(arguments: argparse.Namespace) -> httpx.AsyncClient:
    """A client of the server that the options name."""
    url = httpx.URL(arguments.url.rstrip("/"))
    headers = {"accept": "application/json, text/event-stream"}
    if arguments.key:
        headers["x-api-key"] = arguments.key
    # A proxy of the environment is for the world outside.
    outside = url.host not in ("localhost", "127.0.0.1", "::1")
    return httpx.AsyncClient(base_url=url, headers=headers, timeout=_TIMES, trust_env=outside)


def body_of(response: httpx.Response) -> JsonObject:
    """The JSON object in a response. Raises Refused with the server's own words when it is an error."""
    try:
        body = response.json()
        if response.status_code == 200:
            return cast(JsonObject, body)
        error = body["error"]
        error = error.get("data") or error
        refused = Refused(error["message"], next_action=error.get("next_action"))
    except (ValueError, KeyError, TypeError, AttributeError):
        refused = Refused(f"the server answers {response.status_code}")
    raise refused


def _add_option(parser: argparse.ArgumentParser, field: dataclasses.Field[Any]) -> None:
    kind: Kind = field.metadata["kind"]
    names = dict.fromkeys((f"--{field.name.replace('_', '-')}", f"--{field.name}"))
    form: dict[str, Any] = {"metavar": "VALUE"}
    if isinstance(kind, Flag):
        form |= {"nargs": "?", "const": "true"}
    if isinstance(kind, Listed):
        form |= {"action": "append"}
    parser.add_argument(*names, dest=field.name, help=_about(field), **form)


def _about(field: dataclasses.Field[Any]) -> str:
    about: str = field.metadata["about"]
    shown = "" if field.default in (dataclasses.MISSING, None, ()) else f" (default {json.dumps(field.default)})"
    return f"{about}{shown}".replace("%", "%%")


def _run(tool: AnyTool, arguments: argparse.Namespace) -> int:
    try:
        bank_id = BankId.parse(arguments.bank)
        given = {field.name: _given(getattr(arguments, field.name)) for field in dataclasses.fields(tool.arguments)}
        ask = _ask_server if arguments.url else _ask_folder
        answer = asyncio.run(ask(arguments, tool, bank_id, {k: v for k, v in given.items() if v is not None}))
    except FAILURES as error:
        return told(error, arguments.url)
    for warning in answer.get("warnings", ()):
        print(printable(f"hindsight: warning: {warning}"), file=sys.stderr)
    if arguments.json:
        sys.stdout.buffer.write(encode(answer) + b"\n")
    else:
        sys.stdout.writelines(f"{printable(line)}\n" for line in lines_of(tool.name, answer))
    return 0


def _given(value: str | list[str] | None) -> object:
    """What an option was given as: read from standard input for -, several times as a list."""
    if value == _STANDARD_INPUT:
        return sys.stdin.buffer.read().decode("utf-8", "surrogateescape")
    return value[0] if isinstance(value, list) and len(value) == 1 else value


async def _ask_server(arguments: argparse.Namespace, tool: AnyTool, bank_id: BankId, given: JsonObject) -> JsonObject:
    params = {"name": tool.name, "arguments": given}
    body = encode({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
    async with http_client(arguments) as client:
        headers = {"content-type": "application/json"}
        response = await client.post(f"/mcp/{quote(bank_id.text, safe='')}", content=body, headers=headers)
    result = body_of(response).get("result")
    if not isinstance(result, dict):
        raise Refused("this is no answer of a hindsight server")
    if result.get("isError"):
        error = result["structuredContent"]["error"]
        raise Refused(error["message"], next_action=error["next_action"])
    return cast(JsonObject, result["structuredContent"])


async def _ask_folder(arguments: argparse.Namespace, tool: AnyTool, bank_id: BankId, given: JsonObject) -> JsonObject:
    read, warnings = read_arguments(tool.arguments, given)
    settings = read_settings(data_dir=arguments.data_dir)
    if not tool.writes and not settings.data_dir.is_dir():
        raise Refused(f"there is no data folder {settings.data_dir}", next_action="Name it with --data-dir.")
    with held_folder(settings.data_dir, f"hindsight {tool.name}") as folder:
        async with open_banks(settings, folder, make_embedder(settings)) as banks, banks.lease(bank_id) as bank:
            answer = dict(await tool.run(bank, read))
    if warnings:
        answer["warnings"] = [*answer.get("warnings", ()), *warnings]
    return answer
