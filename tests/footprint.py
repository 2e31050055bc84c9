"""What a server takes of its machine, as the system sees it, and has in hand, as it says itself."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from tests.serving import Serving, get


@dataclass(frozen=True, slots=True)
class Footprint:
    """`memory` is resident, in MB."""

    memory: int
    descriptors: int
    threads: int

    @classmethod
    def of(cls, server: Serving) -> Footprint:
        """A running server's."""
        process = Path(f"/proc/{server.process.pid}")
        status = dict(re.findall(r"^(VmRSS|Threads):\s+(\d+)", (process / "status").read_text(), re.MULTILINE))
        return cls(int(status["VmRSS"]) // 1024, len(os.listdir(process / "fd")), int(status["Threads"]))


def metrics(server: Serving) -> dict[str, int]:
    """Those of a server's metrics that are one whole number, by name without the prefix."""
    status, body = get(f"{server.url}/metrics")
    assert status == 200, body
    found = re.findall(r"^hindsight_(\w+) (\d+)\.0$", body.decode(), re.MULTILINE)
    return {name: int(value) for name, value in found}
