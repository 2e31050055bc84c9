"""A real `chroma run` on loopback that can be killed, held up and started again on its folder and port."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import sysconfig
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import chromadb
import numpy as np
from chromadb.api.client import Client
from chromadb.config import Settings
from chromadb.errors import InternalError, NotFoundError

from tests.serving import BOUND

PROGRAM = str(Path(sysconfig.get_path("scripts")) / "chroma")


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
        return port


@dataclass(eq=False)
class Chroma:
    """A Chroma server with its data in `folder`; it runs between `start` and `kill`."""

    folder: Path
    port: int = field(default_factory=free_port)
    _process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Run it; returns when it listens."""
        command = [PROGRAM, "run", "--host", "127.0.0.1", "--port", str(self.port), "--path", str(self.folder)]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        end = time.monotonic() + BOUND
        while not self._listens():
            assert self._process.poll() is None, "the Chroma server has ended"
            assert time.monotonic() < end, "the Chroma server does not start"
            time.sleep(0.02)  # it tells nobody when it listens

    def kill(self) -> None:
        """End it with SIGKILL, if it runs."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(BOUND)
            self._process = None

    def hang(self) -> None:
        """It takes connections and answers nothing, until it goes on."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """It answers again, also what it was asked meanwhile."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def counts(self) -> dict[str, list[int]]:
        """How many records the collections hold, by bank, as Chroma's own client tells; -1 where it can't."""
        found: dict[str, list[int]] = {}
        with self._client() as client:
            for collection in client.list_collections():
                found.setdefault(_bank(collection), []).append(_count(collection))
        return {bank: sorted(counts) for bank, counts in found.items()}

    def lose(self, bank: str, count: int) -> None:
        """Take some of a bank's records away behind its back, and put a foreign one in."""
        with self._client() as client:
            [collection] = [each for each in client.list_collections() if _bank(each) == bank]
            held = collection.get(limit=count, include=["embeddings"])
            collection.delete(ids=held["ids"])
            collection.upsert(ids=["987654321"], embeddings=np.array(held["embeddings"], np.float32)[:1])

    @contextmanager
    def _client(self) -> Iterator[Client]:
        client = cast(Client, chromadb.HttpClient(self.url, settings=Settings(anonymized_telemetry=False)))
        try:
            yield client
        finally:
            client.close()
            # Chroma leaves them open.
            for part in (client, client._admin_client):
                cast(Any, part)._server._session.close()

    def _listens(self) -> bool:
        with contextlib.suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", self.port)):
            return True
        return False


def _bank(collection: chromadb.Collection) -> str:
    return str((collection.metadata or {})["bank"])


def _count(collection: chromadb.Collection) -> int:
    try:
        return collection.count()
    except (InternalError, NotFoundError):
        return -1


@contextmanager
def chroma_server(folder: Path, *, start: bool = True) -> Iterator[Chroma]:
    """A Chroma server on a free port, killed in the end."""
    chroma = Chroma(folder)
    try:
        if start:
            chroma.start()
        yield chroma
    finally:
        chroma.kill()
