"""A disk of a server's own: small, so that a test can fill it, and one that can be made read-only.

It is a tmpfs in a mount namespace of its own, for which no rights are needed; a process that does nothing holds it.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.serving import BOUND

_PAGE = 4096
_MOUNT = 'mount -t tmpfs -o "size=$1" tmpfs "$0" && mkdir "$0/data" && echo mounted && exec cat'


@dataclass(frozen=True, slots=True)
class SmallDisk:
    """`data` is a folder on it as a process sees it that was started with `inside`, `seen` as anybody else does."""

    data: Path
    seen: Path
    holder: int

    def inside(self, *command: str) -> Sequence[str]:
        """The command that runs a command where the disk is."""
        return "nsenter", f"--target={self.holder}", "--user", "--mount", "--preserve-credentials", "--wd", *command

    def run(self, *command: str) -> None:
        """Run a command where the disk is, to its end."""
        subprocess.run(self.inside(*command), check=True, timeout=BOUND)

    def fill(self) -> None:
        """Leave no free space."""
        with (self.seen.parent / "ballast").open("wb", buffering=0) as ballast:
            size = 256 * _PAGE
            while size >= _PAGE:
                try:
                    ballast.write(bytes(size))
                except OSError:
                    size //= 2

    def free(self) -> None:
        """Give the space back."""
        (self.seen.parent / "ballast").unlink()


@contextmanager
def small_disk(folder: Path, mebibytes: int) -> Iterator[SmallDisk]:
    """A disk of this size that is mounted on `folder` for those inside."""
    command = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", _MOUNT, str(folder), f"{mebibytes}m"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        try:
            if holder.stdout.readline() != b"mounted\n":
                pytest.fail("these tests need user and mount namespaces (unshare), or root rights", pytrace=False)
            yield SmallDisk(folder / "data", Path(f"/proc/{holder.pid}/root{folder}/data"), holder.pid)
        finally:
            os.kill(holder.pid, 9)
