"""The tools as commands, as somebody at a terminal sees them: on the data folder, and on a server by its URL."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import cast

import pytest

from hindsight.record import JsonObject
from tests.commands import Ran, Run, done, spawned
from tests.serving import Serving


@pytest.fixture(params=["on the folder", "by URL"])
def run(request: pytest.FixtureRequest, command: Run, tmp_path: Path) -> Run:
    """Runs a command on a bank of the test's own."""
    where = ["--bank", f"Bank {uuid.uuid4()}"]
    if request.param == "by URL":
        where += ["--url", request.getfixturevalue("running").url]

    def run(*given: object, stdin: bytes = b"", **settings: object) -> Ran:
        return command(*given, *where, stdin=stdin, data_dir=tmp_path, **settings)

    return run


def answer(ran: Ran) -> JsonObject:
    """The answer that --json prints."""
    return cast(JsonObject, json.loads(done(ran)))


def test_a_memory_is_retained_and_recalled_in_words_for_people(run: Run) -> None:
    stored = done(run("retain", "The kettle was bought on 3 May 2024", "--context", "kitchen", "--tags", "tea, hot"))
    found = done(run("recall", "When was the kettle bought?"))

    first, about = stored.splitlines()
    assert first == "Memory stored successfully"
    id, *rest = about.split(" · ")
    assert rest[-1] == "2024-05-03"
    assert found.splitlines()[0] == "The kettle was bought on 3 May 2024"
    assert id in found
    assert "kitchen" in found


def test_every_tool_is_a_command_with_json(run: Run) -> None:
    options = ["--metadata", '{"n": 18446744073709551617}', "--tags", "a", "--tags", "b, c", "--type", "opinion"]
    stored = answer(run("retain", "日本 tea\nis good", *options, "--event-date", "2024-05-03", "--json"))
    got = answer(run("get_memory", stored["id"], "--json"))
    updated = answer(run("update-memory", stored["id"], "--context", "new", "--json"))
    recalled = answer(run("recall", "tea", "--max-results", "1", "--json"))
    listed = answer(run("list_memories", "--limit=1", "--order", "oldest", "--json"))
    stats = answer(run("bank-stats", "--json"))
    forgotten = answer(run("forget", "--id", stored["id"], "--json"))

    assert (stored["status"], stored["type"], stored["event_date"]) == ("stored", "opinion", "2024-05-03")
    assert (got["text"], got["metadata"], got["tags"]) == ("日本 tea\nis good", {"n": 2**64 + 1}, ["a", "b, c"])
    assert updated == {**got, "context": "new"}
    assert recalled["results"][0]["id"] == listed["memories"][0]["id"] == stored["id"]
    assert (stats["memories"], stats["contexts"]) == (1, {"new": 1})
    assert forgotten == {"count": 1}


def test_every_tool_answers_in_words_for_people(run: Run) -> None:
    id = answer(run("retain", "Ana works in Berlin", "--metadata", '{"team": "sales"}', "--json"))["id"]
    new = answer(run("retain", "Ana works in Paris", "--supersedes", id, "--json"))["id"]
    dry = done(run("forget", "--filter", "exists('$.team')"))
    listed = done(run("list-memories", "--include-superseded"))

    assert dry.splitlines()[0] == "Would be forgotten: 1"
    assert f"superseded by {new}" in listed
    assert (
        done(run("list-memories", "--limit", "1", "--include-superseded")).splitlines()[-1].startswith("There is more")
    )
    assert f"superseded_by  {new}" in done(run("get-memory", id))
    assert 'contexts    {"general": 2}' in done(run("bank-stats"))
    assert done(run("forget", "--filter", "exists('$.team')", "--dry-run", "false", "--confirm")) == "Forgotten: 1\n"
    assert done(run("recall", "nothing", "--contexts", "nowhere")) == "Nothing found.\n"


@pytest.mark.parametrize("where", ["on the folder", "by URL"])
def test_the_command_works_from_a_shell(
    request: pytest.FixtureRequest, tmp_path: Path, model_folder: Path, where: str
) -> None:
    bank = ["--bank", f"Bank {uuid.uuid4()}"]
    if where == "by URL":
        bank += ["--url", request.getfixturevalue("running").url]
    given = "line one\nlíne two 日本\n".encode()
    stored = answer(spawned("retain", "-", *bank, "--json", stdin=given, data_dir=tmp_path, model_dir=model_folder))

    assert (stored["status"], stored["type"]) == ("stored", "world")


def test_a_shell_hears_of_a_failure_by_its_status(tmp_path: Path, model_folder: Path) -> None:
    missed = spawned("get_memory", "nope", "--bank", "b", data_dir=tmp_path, model_dir=model_folder)

    assert (missed.status, missed.out) == (1, "")
    assert missed.err.splitlines()[0] == "hindsight: this bank has no memory nope"


def test_what_a_terminal_would_obey_is_shown_and_not_sent(run: Run) -> None:
    run("retain", "before \x1b[31mred\x07 after")
    found = done(run("recall", "red"))

    assert found.splitlines()[0] == r"before \x1b[31mred\x07 after"


@pytest.mark.parametrize(
    ("given", "says", "next_action"),
    [
        (("get_memory", "nope"), "this bank has no memory nope", "Find the memory's id"),
        (("retain", " "), "content must be text that is not empty", "Correct the argument"),
        (("retain", "a", "--type", "fact"), "type must be one of world", "Correct the argument"),
        (("retain", "a", "--supersedes", "nope"), "supersedes names nope", "Find the memory's id"),
        (("recall", "a", "--max-results", "ten"), "a whole number from 1 to 100; got", "Correct the argument"),
        (("recall", "a", "--filter", "val("), "at character 5", "Correct the filter"),
        (("list-memories", "--cursor", "nope"), "cursor must be", "Correct the argument"),
        (("forget",), "either id or filter", "Correct the argument"),
        (
            ("forget", "--filter", "exists('$.a')", "--dry-run", "false"),
            "confirm=true",
            "Look at what a dry run counts",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_goes_wrong_is_told_with_what_to_do(run: Run, given: tuple[str, ...], says: str, next_action: str) -> None:
    run("retain", "something")
    ran = run(*given)

    assert (ran.status, ran.out) == (1, "")
    message, advice = ran.err.splitlines()
    assert message.startswith("hindsight: ")
    assert says in message
    assert advice.startswith(next_action)


def test_a_wrong_bank_id_is_refused_with_the_rule(command: Run, tmp_path: Path) -> None:
    ran = command("recall", "a", "--bank", "../up", data_dir=tmp_path)

    assert ran.status == 1
    assert "a bank id has 1 to 128 characters" in ran.err


def test_a_folder_that_a_server_holds_is_refused_and_the_way_out_is_told(
    running: Serving, data: Path, command: Run
) -> None:
    for given in (("recall", "a", "--bank", "b"), ("banks",)):
        ran = command(*given, data_dir=data)

        assert (ran.status, ran.out) == (1, "")
        assert f"held by hindsight serve, process {running.process.pid}" in ran.err
        assert "--url" in ran.err


def test_a_server_that_is_not_there_is_told(command: Run) -> None:
    ran = command("recall", "a", "--bank", "b", "--url", "http://127.0.0.1:9")

    assert ran.status == 1
    assert "http://127.0.0.1:9 can't be reached" in ran.err


def test_a_url_of_something_else_is_told(running: Serving, command: Run) -> None:
    ran = command("recall", "a", "--bank", "b", "--url", f"{running.url}/elsewhere")

    assert ran.status == 1
    assert len(ran.err.splitlines()) == 2


def test_reading_makes_neither_a_data_folder_nor_a_bank(tmp_path: Path, command: Run) -> None:
    none = command("recall", "a", "--bank", "b", data_dir=tmp_path / "none")
    empty = command("recall", "a", "--bank", "b", data_dir=tmp_path)

    assert none.status == 1
    assert "there is no data folder" in none.err
    assert not (tmp_path / "none").exists()
    assert done(empty) == "Nothing found.\n"
    assert not list(tmp_path.glob("banks/*"))


def test_banks_are_listed_with_their_sizes(tmp_path: Path, command: Run) -> None:
    for bank, content in (("Team A", "one"), ("Team A", "two"), ("日本", "three")):
        done(command("retain", content, "--bank", bank, data_dir=tmp_path))
    listed = answer(command("banks", "--json", data_dir=tmp_path))["banks"]
    shown = done(command("banks", data_dir=tmp_path)).splitlines()

    assert [(bank["bank_id"], bank["memories"]) for bank in listed] == [("Team A", 2), ("日本", 1)]
    assert all(bank["bytes"] > 4096 for bank in listed)
    assert shown[0].split() == ["BANK", "MEMORIES", "BYTES"]
    assert [line[:6] for line in shown[1:]] == ["Team A", "日本    "]


def test_banks_of_a_server_are_listed(running: Serving, command: Run) -> None:
    bank = str(uuid.uuid4())
    done(command("retain", "one", "--bank", bank, "--url", running.url))

    assert {"bank_id": bank, "memories": 1} in answer(command("banks", "--json", "--url", running.url))["banks"]
    assert bank in done(command("banks", "--url", running.url))


def test_an_export_of_a_bank_that_is_not_there_fails_and_leaves_the_last_one_as_it_is(
    command: Run, tmp_path: Path
) -> None:
    output = tmp_path / "team.ndjson"
    output.write_text("the last backup")
    one = command("export", "--bank", "tema", "--data-dir", tmp_path / "data", "-o", output)
    every = command("export", "--all", tmp_path / "all", "--data-dir", tmp_path / "data")

    assert (one.status, every.status) == (1, 1)
    assert "there is no bank tema" in one.err
    assert "there are no banks" in every.err
    assert output.read_text() == "the last backup"
