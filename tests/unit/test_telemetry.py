"""What the server says of itself: audit lines, metrics and the id that log lines of a call share."""

from __future__ import annotations

import asyncio
import json
import logging
import stat
from pathlib import Path

import pytest

from hindsight import telemetry
from hindsight.settings import SettingsError, read_settings
from hindsight.telemetry import (
    AuditFile,
    Finished,
    JsonLines,
    Lag,
    Meters,
    Sights,
    TextLines,
    begin_call,
    current_call,
    ids_in,
    open_audit,
)

IDLE = Sights((), 0, 0)
CALL = Finished("ada", "team-a", "recall", "ok", 0.0123, ("id-1", "id-2"))


def test_a_call_is_one_audit_line_that_only_the_owner_can_read(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    audit = AuditFile(path, 1_000_000)
    audit.finished(CALL)
    audit.close()

    line = json.loads(path.read_text("utf-8"))
    assert line.pop("time").endswith("+00:00")
    assert line == {
        "key": "ada", "bank": "team-a", "tool": "recall", "ids": ["id-1", "id-2"], "outcome": "ok", "ms": 12.3
    }  # fmt: skip
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_the_audit_file_is_rotated_and_no_line_is_lost(tmp_path: Path) -> None:
    audit = AuditFile(tmp_path / "audit.jsonl", 1_024)
    for number in range(20):
        audit.finished(Finished("ada", f"bank-{number}", "retain", "ok", 0.1))
    audit.close()

    lines = [json.loads(line) for path in tmp_path.iterdir() for line in path.read_text("utf-8").splitlines()]
    assert sorted(int(line["bank"].removeprefix("bank-")) for line in lines) == list(range(20))
    assert len(list(tmp_path.iterdir())) > 1
    assert max(path.stat().st_size for path in tmp_path.iterdir()) <= 1_024


def test_an_audit_line_that_can_not_be_written_is_told_and_costs_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    audit = AuditFile(tmp_path / "audit.jsonl", 1)
    (tmp_path / "audit.jsonl").unlink()
    tmp_path.rmdir()

    audit.finished(CALL)
    audit.close()

    assert "an audit line is lost: FileNotFoundError" in caplog.text


@pytest.mark.parametrize(
    ("name", "reason"), [("nowhere/audit.jsonl", "No such file or directory"), ("", "Is a directory")]
)
def test_an_audit_file_that_can_not_be_opened_is_refused_with_name_value_and_rule(
    tmp_path: Path, name: str, reason: str
) -> None:
    path = str(tmp_path / name)

    with pytest.raises(SettingsError) as refused:
        open_audit(read_settings(audit_file=path))

    rule = "a file that can be written, in a folder that exists"
    assert str(refused.value) == f"HINDSIGHT_AUDIT_FILE={path!r}: {rule}: {reason}"


def test_metrics_count_calls_and_errors() -> None:
    meters = Meters()
    meters.watch("sessions", "Event streams open", lambda: 3)
    meters.finished(CALL)
    meters.finished(Finished("ada", "team-a", "retain", "STORAGE_FULL", 0.2))
    meters.refused("UNAUTHORIZED")

    lines = meters.exposition({"team-a": 7}, 0, IDLE).decode().splitlines()

    assert {
        'hindsight_calls_total{outcome="ok",tool="recall"} 1.0',
        'hindsight_calls_total{outcome="STORAGE_FULL",tool="retain"} 1.0',
        'hindsight_call_seconds_bucket{le="0.025",tool="recall"} 1.0',
        'hindsight_errors_total{code="STORAGE_FULL"} 1.0',
        'hindsight_errors_total{code="UNAUTHORIZED"} 1.0',
        'hindsight_memories{bank="team-a"} 7.0',
        "hindsight_sessions 3.0",
    } <= set(lines)


def test_only_so_many_banks_have_a_line_and_the_rest_is_summed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry, "MOST_BANKS", 2)

    text = Meters().exposition({"a": 1, "b": 5, "c": 3, "d": 2}, 0, IDLE).decode()

    assert [line for line in text.splitlines() if line.startswith("hindsight_memories{")] == [
        'hindsight_memories{bank="b"} 5.0',
        'hindsight_memories{bank="c"} 3.0',
    ]
    assert "hindsight_other_banks 2.0" in text
    assert "hindsight_other_memories 3.0" in text


def test_metrics_sum_what_the_open_banks_have_still_to_do() -> None:
    lags = (
        Lag(1, unembedded=2, unindexed=30, seconds=0.5, waits=False),
        Lag(0, unembedded=5, unindexed=4, seconds=7.5, waits=True),
    )

    text = Meters().exposition({}, 40_960, Sights(lags, texts=12, queries=3)).decode()

    assert {
        "hindsight_ledger_bytes 40960.0",
        "hindsight_open_banks 2.0",
        "hindsight_texts_waiting 12.0",
        "hindsight_queries_waiting 3.0",
        "hindsight_retains_waiting 1.0",
        "hindsight_unembedded_passages 7.0",
        "hindsight_unindexed_passages 34.0",
        "hindsight_index_lag_seconds 7.5",
    } <= set(text.splitlines())


def test_two_servers_in_one_process_count_for_themselves() -> None:
    one, other = Meters(), Meters()
    one.finished(CALL)

    assert 'outcome="ok"' not in other.exposition({}, 0, IDLE).decode()


async def _in_a_call(line: logging.LogRecord) -> tuple[str, str, str]:
    name = begin_call()
    text = await asyncio.create_task(_formatted(line))
    return name, text, JsonLines().format(line)


async def _formatted(line: logging.LogRecord) -> str:
    return TextLines("%(message)s").format(line)


def test_every_log_line_during_a_call_carries_its_id_and_no_other_does() -> None:
    line = logging.LogRecord("hindsight", logging.INFO, "", 0, "something", None, None)

    name, text, structured = asyncio.run(_in_a_call(line))

    assert text == f"something call={name}"
    assert json.loads(structured)["call"] == name
    assert TextLines("%(message)s").format(line) == "something"
    assert "call" not in json.loads(JsonLines().format(line))
    assert current_call() == "-"


def test_ids_are_taken_from_answers_once_each() -> None:
    answer = {"id": "a", "superseded": "b", "results": [{"id": "c"}, {"id": "a"}, {"text": "no id"}], "count": 1}

    assert ids_in(answer, {"id": None}) == ("a", "b", "c")


@pytest.mark.parametrize("lines", [TextLines("%(message)s"), JsonLines()], ids=["text", "json"])
def test_a_log_line_shows_where_an_error_arose_and_no_message_of_it(lines: logging.Formatter) -> None:
    said = "canary" * 2
    try:
        try:
            raise ValueError(said)
        except ValueError as error:
            raise ExceptionGroup(said, [LookupError(said), error]) from error
    except ExceptionGroup as group:
        line = logging.LogRecord("uvicorn.error", logging.ERROR, "", 0, "it broke", None, (type(group), group, None))

    text = lines.format(line)

    assert "it broke" in text
    assert all(word in text for word in ("ExceptionGroup", "LookupError", "ValueError", "test_telemetry.py"))
    assert said not in text
