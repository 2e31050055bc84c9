"""hindsight serve: runs the server until it is told to stop."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ctypes
import logging
import os
import socket
import sys
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING

import uvicorn

from hindsight.app import App
from hindsight.embedding import Embedder
from hindsight.folder import held_folder
from hindsight.keys import Keyring, open_keyring
from hindsight.settings import Settings, SettingsError, is_secret, read_settings, unknown_variables, variable
from hindsight.telemetry import configure_logging
from hindsight.wiring import make_embedder, open_banks

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

# Seconds that a thread keeps Python's lock while others ask for it. The usual 0.005 lets the threads that embed, which
# need it for a moment after each text, wait half a millisecond a text for those that read texts: a core is idle then.
_SWITCH = 0.0005

_M_ARENA_MAX = -8  # in glibc's malloc.h

logger = logging.getLogger("hindsight")


def add(commands: Subparsers) -> None:
    """Add the command, with an option for every setting."""
    kept_off = ", ".join(variable(name) for name in Settings.model_fields if is_secret(name))
    about = f"Run the server. Only from the environment, since every process can see a command line: {kept_off}."
    parser = commands.add_parser("serve", help="run the server", description=about)
    for name in _options():
        field = Settings.model_fields[name]
        about = f"{field.description} [{variable(name)}, default {field.default}]".replace("%", "%%")
        parser.add_argument(f"--{name.replace('_', '-')}", help=about, metavar="VALUE")
    parser.set_defaults(run=_serve)


def _serve(arguments: argparse.Namespace) -> int:
    settings = read_settings(**{name: getattr(arguments, name) for name in _options()})
    configure_logging(settings)
    for warning in unknown_variables(os.environ):
        logger.warning("%s", warning)
    keyring = open_keyring(settings)
    if not (settings.on_loopback or settings.allow_anonymous or keyring.closed or settings.oauth_issuer):
        raise SettingsError(
            f"{variable('host')}={settings.host!r}: without keys the server listens on loopback only; make one with "
            f"hindsight keys create or {variable('api_keys')}, or, to let anyone in who reaches it, "
            f"set {variable('allow_anonymous')}=true"
        )
    embedder = make_embedder(settings)
    sys.setswitchinterval(_SWITCH)
    _use_few_heaps()
    with held_folder(settings.data_dir, "hindsight serve") as folder:
        asyncio.run(_run(settings, folder, embedder, keyring))
    return 0


def _use_few_heaps() -> None:
    """Have all threads share two of glibc's heaps. Else each gets its own, which keeps what was freed there: over
    12,000 calls on twelve banks a server grew by a third more."""
    with contextlib.suppress(AttributeError):  # another C library
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 2)


def _options() -> list[str]:
    return [name for name in Settings.model_fields if not is_secret(name)]


async def _run(settings: Settings, folder: Path, embedder: Embedder, keyring: Keyring) -> None:
    async with open_banks(settings, folder, embedder) as banks:
        app = App(settings, banks, embedder, keyring)
        async with app.running():
            config = uvicorn.Config(
                app,
                host=settings.host,
                port=settings.port,
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_graceful_shutdown=1,
            )
            await _Server(config, app).serve()


class _Server(uvicorn.Server):
    """uvicorn, with streams that end before it waits for connections to close."""

    def __init__(self, config: uvicorn.Config, app: App) -> None:
        super().__init__(config)
        self._app = app

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        with super().capture_signals():
            yield
            # uvicorn would raise them again after its shutdown, and a clean end look like a death by signal.
            self._captured_signals.clear()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for server in self.servers:
            host, port = server.sockets[0].getsockname()[:2]
            logger.info("listening on http://%s:%d", f"[{host}]" if ":" in host else host, port)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await self._app.drain()
        await super().shutdown(sockets)
