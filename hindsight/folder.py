"""The data folder: one process at a time holds it, and says so to whoever comes second."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from hindsight.settings import unusable

LOCK = "lock"
BANKS = "banks"


class FolderHeld(Exception):
    """Another process holds the data folder; the text says which."""


@contextlib.contextmanager
def held_folder(folder: Path, purpose: str) -> Iterator[Path]:
    """Hold the folder, made when it is missing, and yield its resolved path. Raises FolderHeld, SettingsError.

    The operating system drops the hold with the process, so a kill -9 leaves nothing to clean up.
    """
    folder = folder.resolve()
    with _lock_in(folder) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            lock.seek(0)
            holder = lock.read().strip() or "another process"
            raise FolderHeld(f"the data folder {folder} is held by {holder}") from error
        lock.truncate(0)
        lock.write(f"{purpose}, process {os.getpid()} on {socket.gethostname()}\n")
        lock.flush()
        yield folder


def _lock_in(folder: Path) -> TextIO:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return open(folder / LOCK, "a+", encoding="utf-8")
    except OSError as error:
        raise unusable(folder, error) from error
