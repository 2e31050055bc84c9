"""What the server says of itself: log lines, counters and audit lines. None of them holds what a client sent.

Every log line that is written during a call carries the call's id, which an internal error tells its client too.
"""

from __future__ import annotations

import json
import logging
import logging.handlers
import os
import secrets
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from io import TextIOWrapper
from pathlib import Path
from typing import Protocol, cast

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from hindsight.settings import Settings, SettingsError, variable

SUCCESS = "ok"
AUDITS_KEPT = 10
MOST_BANKS = 100  # that have a line of their own in the metrics, the fullest first; the others are summed

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_call: ContextVar[str] = ContextVar("call", default="-")
_log = logging.getLogger("hindsight.telemetry")


def begin_call() -> str:
    """Give an id to the call that the current task begins; log lines of the task, and of those it starts, carry it."""
    name = secrets.token_hex(4)
    _call.set(name)
    return name


def current_call() -> str:
    """The id of the call that runs, '-' outside of calls."""
    return _call.get()


def where(error: BaseException | None) -> str:
    """Types and stacks of an error and its causes, without their messages: those may quote what a client sent."""
    parts = []
    while error is not None:
        parts.append("".join(traceback.format_tb(error.__traceback__)) + type(error).__qualname__)
        if isinstance(error, BaseExceptionGroup):
            parts += [f"one of these\n{where(each)}" for each in error.exceptions]
        error = error.__cause__ or error.__context__
    return "\ncaused by\n".join(parts)


@dataclass(frozen=True, slots=True)
class Finished:
    """A call that is over: `outcome` is 'ok' or an error's code, `ids` are those of the memories that it dealt with."""

    key: str
    bank: str
    tool: str
    outcome: str
    seconds: float
    ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Lag:
    """What a bank has still to do, by count: retains to commit, passages to embed, and to index.

    `seconds` is for how long the index has not been up to date. `waits` says that passages wait for their vectors for
    longer than a turn: the embedder was down, or the bank is being reindexed.
    """

    uncommitted: int
    unembedded: int
    unindexed: int
    seconds: float
    waits: bool


NO_LAG = Lag(0, 0, 0, 0.0, False)


@dataclass(frozen=True, slots=True)
class Sights:
    """The open banks at one moment: what each has still to do; and how many texts and queries wait to be embedded."""

    lags: tuple[Lag, ...]
    texts: int
    queries: int


class Observer(Protocol):
    """Is told what happens. Must not block or raise."""

    def finished(self, call: Finished) -> None:
        """A call is over. A write that outlives its deadline is told twice: as its client saw it, and as it ended."""
        ...


class Nobody:
    """An Observer that looks away."""

    def finished(self, call: Finished) -> None:
        pass


NOBODY = Nobody()


class Observers:
    """An Observer for several."""

    def __init__(self, observers: Iterable[Observer]) -> None:
        self._observers = tuple(observers)

    def finished(self, call: Finished) -> None:
        for observer in self._observers:
            observer.finished(call)


def ids_in(*parts: Mapping[str, object]) -> tuple[str, ...]:
    """The ids of memories in answers, or in arguments of a call that succeeded: others hold what a client made up."""
    found: dict[str, None] = {}
    for part in parts:
        for name in ("id", "superseded", "supersedes"):
            if isinstance(value := part.get(name), str):
                found[value] = None
        for name in ("results", "memories", "sample"):
            rows = part.get(name)
            for row in rows if isinstance(rows, list) else ():
                if isinstance(value := row.get("id"), str):
                    found[value] = None
    return tuple(found)


class Meters:
    """Counters for Prometheus, of this one server."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._calls = Counter(
            "hindsight_calls", "Tool calls by tool and outcome", ["tool", "outcome"], registry=self._registry
        )
        self._seconds = Histogram(
            "hindsight_call_seconds", "How long calls took", ["tool"], buckets=_SECONDS, registry=self._registry
        )
        self._errors = Counter("hindsight_errors", "Errors told to clients, by code", ["code"], registry=self._registry)

    def finished(self, call: Finished) -> None:
        self._calls.labels(call.tool, call.outcome).inc()
        self._seconds.labels(call.tool).observe(call.seconds)
        if call.outcome != SUCCESS:
            self.refused(call.outcome)

    def refused(self, code: str) -> None:
        """Count an error that was told before there was a call."""
        self._errors.labels(code).inc()

    def watch(self, name: str, about: str, value: Callable[[], float]) -> None:
        """Show a value as it is whenever the metrics are read; it must not block."""
        Gauge(f"hindsight_{name}", about, registry=self._registry).set_function(value)

    def exposition(self, memories: Mapping[str, int], ledgers: int, sights: Sights) -> bytes:
        """Everything in Prometheus' text form, with the memories by bank and the bytes of their ledgers."""
        of_this_reader = CollectorRegistry()
        of_this_reader.register(_Memories(memories))
        of_this_reader.register(_Sizes(ledgers, sights))
        return generate_latest(self._registry) + generate_latest(of_this_reader)


class _Memories(Collector):
    def __init__(self, memories: Mapping[str, int]) -> None:
        ordered = sorted(memories.items(), key=lambda pair: (-pair[1], pair[0]))
        self._told, self._others = ordered[:MOST_BANKS], [count for _, count in ordered[MOST_BANKS:]]

    def collect(self) -> Iterator[GaugeMetricFamily]:
        told = GaugeMetricFamily("hindsight_memories", "Memories by bank, the fullest banks alone", labels=["bank"])
        for bank, count in self._told:
            told.add_metric([bank], count)
        yield told
        yield GaugeMetricFamily("hindsight_other_banks", "Banks without a line of their own", len(self._others))
        yield GaugeMetricFamily("hindsight_other_memories", "Memories in those banks", sum(self._others))


class _Sizes(Collector):
    def __init__(self, ledgers: int, sights: Sights) -> None:
        self._ledgers = ledgers
        self._sights = sights

    def collect(self) -> Iterator[GaugeMetricFamily]:
        lags, gauge = self._sights.lags, _gauge
        yield gauge("ledger_bytes", "Bytes on disk of the banks' ledgers", self._ledgers)
        yield gauge("open_banks", "Banks that are open", len(lags))
        yield gauge("texts_waiting", "Texts that wait for the embedder", self._sights.texts)
        yield gauge("queries_waiting", "Queries that wait for the embedder", self._sights.queries)
        yield gauge("retains_waiting", "Retains that wait for a commit", sum(lag.uncommitted for lag in lags))
        yield gauge(
            "unembedded_passages",
            "Passages of acknowledged memories, in open banks, without a vector",
            sum(lag.unembedded for lag in lags),
        )
        yield gauge(
            "unindexed_passages",
            "Passages with a vector, in open banks, that the index lacks",
            sum(lag.unindexed for lag in lags),
        )
        yield gauge(
            "index_lag_seconds",
            "For how long the index of an open bank has not been up to date, of the one that is latest",
            max((lag.seconds for lag in lags), default=0.0),
        )


def _gauge(name: str, about: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"hindsight_{name}", about, value)


class AuditFile:
    """Writes a JSON line per call to a file that only its owner can read; close it at the end.

    A line is handed to the operating system before the call is answered. One that can't be written is told in the log
    and costs the call nothing.
    """

    def __init__(self, path: Path, most_bytes: int) -> None:
        """Raises OSError."""
        self._file = _PrivateFile(path, maxBytes=most_bytes, backupCount=AUDITS_KEPT, encoding="utf-8")

    def finished(self, call: Finished) -> None:
        line = {
            "time": _time(datetime.now(UTC)),
            "key": call.key,
            "bank": call.bank,
            "tool": call.tool,
            "ids": call.ids,
            "outcome": call.outcome,
            "ms": round(call.seconds * 1000, 1),
        }
        text = json.dumps(line, ensure_ascii=False)
        self._file.handle(logging.LogRecord("audit", logging.INFO, "", 0, text, None, None))

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()


def open_audit(settings: Settings) -> AuditFile | None:
    """The audit file that the settings name, if they do. Raises SettingsError."""
    path = settings.audit_file
    if path is None:
        return None
    try:
        return AuditFile(path, settings.audit_bytes)
    except OSError as error:
        rule = "a file that can be written, in a folder that exists"
        raise SettingsError(f"{variable('audit_file')}={str(path)!r}: {rule}: {error.strerror}") from error


class _PrivateFile(logging.handlers.RotatingFileHandler):
    def _open(self) -> TextIOWrapper:
        return cast(TextIOWrapper, open(self.baseFilename, self.mode, encoding=self.encoding, opener=_private))

    def handleError(self, record: logging.LogRecord) -> None:
        error = sys.exception()
        _log.error("an audit line is lost: %s", type(error).__name__)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


class _WithoutMessages(logging.Formatter):
    """Shows an error as `where` does; uvicorn, too, logs errors that may quote what a client sent."""

    def formatException(self, ei: logging._SysExcInfoType) -> str:
        return where(ei[1])


class JsonLines(_WithoutMessages):
    """One JSON object a line: time (UTC), level, logger, message, and during a call its id."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": _time(datetime.fromtimestamp(record.created, UTC)),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": super().format(record),
        }
        if current_call() != "-":
            line["call"] = current_call()
        return json.dumps(line, ensure_ascii=False)


class TextLines(_WithoutMessages):
    """The same for people."""

    def format(self, record: logging.LogRecord) -> str:
        line, call = super().format(record), current_call()
        return line if call == "-" else f"{line} call={call}"


def configure_logging(settings: Settings) -> None:
    """Send the log to standard error; other libraries speak up only from warning on."""
    handler = logging.StreamHandler()
    text = TextLines("%(asctime)s %(levelname)-7s %(name)s: %(message)s")
    handler.setFormatter(JsonLines() if settings.log_format == "json" else text)
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    logging.getLogger("hindsight").setLevel(settings.log_level.upper())


def _time(moment: datetime) -> str:
    return moment.isoformat(timespec="milliseconds")
