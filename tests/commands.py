"""The commands as somebody at a terminal sees them: in this process, without new imports, or in one of their own."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from dataclasses import dataclass
from typing import Protocol

import pytest

from hindsight.cli import main
from tests.serving import BOUND, HINDSIGHT, environment_with


@dataclass(frozen=True, slots=True)
class Ran:
    """A command that has run: its exit status and what it printed."""

    status: int
    out: str
    err: str


class Run(Protocol):
    """Runs a command to its end, on this standard input and with these settings and no others."""

    def __call__(self, *given: object, stdin: bytes = b"", **settings: object) -> Ran: ...


def run_here(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs commands in this process."""

    def run(*given: object, stdin: bytes = b"", **settings: object) -> Ran:
        monkeypatch.setattr(os, "environ", environment_with(settings))
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8"))
        status = main([str(each) for each in given])
        return Ran(status, *capfd.readouterr())

    return run


def spawned(*given: object, stdin: bytes = b"", **settings: object) -> Ran:
    """Runs a command as a process of its own."""
    command, environment = [*HINDSIGHT, *map(str, given)], environment_with(settings)
    ran = subprocess.run(command, env=environment, input=stdin, capture_output=True, timeout=BOUND, check=False)
    return Ran(ran.returncode, ran.stdout.decode(), ran.stderr.decode())


def done(ran: Ran) -> str:
    """What a command that succeeds prints."""
    assert (ran.status, ran.err) == (0, "")
    return ran.out
