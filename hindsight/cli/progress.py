"""How a load goes on: what came of each line, and a bar on a terminal or a line now and then elsewhere."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from hindsight.bulk import LineResult, read_line
from hindsight.cli.feeding import Feed, Ready
from hindsight.errors import HindsightError
from hindsight.loading.ndjson import ERROR

_SHOWN = 20  # errors told one by one
_WIDTH = 24
_EVERY = {True: 0.2, False: 5.0}  # seconds, by whether it is a terminal


class Tally:
    """Counts what came of the lines; writes those that failed to a file that can be corrected and loaded again."""

    def __init__(self, errors: Path | None) -> None:
        self.stored = self.known = self.failed = 0
        self._errors = errors
        self._file: IO[bytes] | None = None
        self._warned: set[str] = set()

    @property
    def done(self) -> int:
        """How many lines have their result."""
        return self.stored + self.known + self.failed

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()

    def note(self, item: Ready, result: LineResult) -> None:
        """Count a line's result."""
        for warning in result.get("warnings", ()):
            self._warn(f"{item.place}: {warning}", warning)
        if "error" in result:
            self.fail(item.place, f"{result['error']['message']}", item.line)
        elif result["status"] == "known":
            self.known += 1
        else:
            self.stored += 1

    def listener(self, items: Iterable[Ready]) -> Callable[[Sequence[LineResult]], None]:
        """Notes results as they come, in the order of the items."""
        waiting = iter(items)

        def hear(results: Sequence[LineResult]) -> None:
            for result in results:
                self.note(next(waiting), result)

        return hear

    def try_out(self, item: Ready) -> bool:
        """Count a line as if it were stored; whether it would be."""
        try:
            _, warnings = read_line(item.line)
        except HindsightError as error:
            self.fail(item.place, error.message, item.line)
            return False
        for warning in warnings:
            self._warn(f"{item.place}: {warning}", warning)
        self.stored += 1
        return True

    def fail(self, place: str, reason: str, line: bytes) -> None:
        """Count a line that failed, tell why, and keep it."""
        self.failed += 1
        if self.failed <= _SHOWN:
            _tell(f"{place}: {reason}")
        elif self.failed == _SHOWN + 1:
            _tell(f"further errors are only counted{' and written to the file' if self._errors else ''}")
        if self._errors is not None:
            self._file = self._file or self._errors.open("wb")
            self._file.write(_explained(line, f"{place}: {reason}") + b"\n")
            self._file.flush()

    def summary(self) -> str:
        """All counts in a line."""
        kept = f" (see {self._errors})" if self.failed and self._errors else ""
        return f"{self.stored:,} stored, {self.known:,} known already, {self.failed:,} failed{kept}"

    def _warn(self, text: str, kind: str) -> None:
        if kind not in self._warned and len(self._warned) < _SHOWN:
            self._warned.add(kind)
            _tell(text)


class Progress:
    """Shows how far a load is, from a thread of its own, until it is left."""

    def __init__(self, tally: Tally, feed: Feed, name: str) -> None:
        self._tally = tally
        self._feed = feed
        self._name = f"{name}: " if name else ""
        self._terminal = sys.stderr.isatty()
        self._start, self._before = time.monotonic(), tally.done
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._show, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        if self._terminal:
            print(f"\r\x1b[K{self._line()}", file=sys.stderr)

    def _show(self) -> None:
        while not self._stop.wait(_EVERY[self._terminal]):
            print(f"\r\x1b[K{self._line()}" if self._terminal else self._line(), end="" if self._terminal else "\n",
                  file=sys.stderr, flush=True)  # fmt: skip

    def _line(self) -> str:
        passed, done = time.monotonic() - self._start, self._tally.done - self._before
        rate = done / passed if passed else 0.0
        text = f"{self._name}{done:,} lines, {rate:,.0f} a second"
        if not self._feed.total:
            return text
        part = min(1.0, self._feed.seen / self._feed.total)
        left = f", {_clock(passed / part - passed)} left" if 0 < part < 1 else ""
        full = round(part * _WIDTH)
        bar = f"[{'#' * full}{'.' * (_WIDTH - full)}] " if self._terminal else ""
        return f"{bar}{part:4.0%} {text}{left}"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _explained(line: bytes, why: str) -> bytes:
    try:
        fields = json.loads(line)
    except ValueError:
        return line
    return json.dumps({ERROR: why, **fields}, ensure_ascii=True).encode() if isinstance(fields, dict) else line


def _tell(text: str) -> None:
    clear = "\r\x1b[K" if sys.stderr.isatty() else ""
    print(f"{clear}{text.encode(errors='backslashreplace').decode()}", file=sys.stderr)
