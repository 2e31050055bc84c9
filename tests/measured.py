"""The scripts of scripts/bench that hold the server to bounds, run as somebody at a terminal would."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_BENCH = Path(__file__).parents[1] / "scripts" / "bench"


def within_bounds(script: str, *options: str, seconds: float) -> str:
    """What a script prints that finds no bound broken and no answer wrong. Fails after so many seconds."""
    command = [sys.executable, str(_BENCH / script), *options]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout
