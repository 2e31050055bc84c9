"""API keys: what is kept of them, who they let in, and how a running server follows a change."""

from __future__ import annotations

import json
import stat
import threading
from collections.abc import Iterable
from datetime import UTC, date, datetime
from pathlib import Path

import pytest

from hindsight.caller import ANYONE, Caller, fits
from hindsight.cli import main
from hindsight.errors import InvalidArgument
from hindsight.keys import KEYS, Key, KeyFile, Keyring, KeysUnreadable, open_keyring
from hindsight.record import BankId
from hindsight.settings import SettingsError, read_settings

CANARY = "canary-canary-canary-canary-canary"


def made(
    name: str = "ada", *, scopes: Iterable[str] = ("read", "write"), expires: date | None = None
) -> tuple[Key, str]:
    return Key.create(name, ["team-*"], list(scopes), expires)


def with_keys(text: str, folder: Path) -> Keyring:
    return open_keyring(read_settings(data_dir=folder, api_keys=text))


@pytest.mark.parametrize(
    ("pattern", "text", "covered"),
    [
        ("team-a", "team-a", True),
        ("team-a", "team-ab", False),
        ("team-*", "team-", True),
        ("team-*", "team-a", True),
        ("team-*", "a-team-a", False),
        ("*", "anything", True),
        ("*-a", "team-a", True),
        ("a*a", "a", False),
        ("a*b*c", "a-b-c", True),
        ("a*b*c", "a-c-b", False),
        ("a*bc*bcd", "abcd", False),
        ("**", "x", True),
        ("team-?", "team-a", False),
        ("team-[a]", "team-a", False),
        ("Team-*", "team-a", False),
        ("*" * 60 + "b", "a" * 128, False),
    ],
)
def test_a_star_stands_for_any_text_and_nothing_else_is_special(pattern: str, text: str, covered: bool) -> None:
    assert fits(pattern, text) is covered


def test_a_pattern_meets_a_bank_id_however_either_is_composed() -> None:
    key, _ = Key.create("ada", ["cafe\u0301-*"], ["read"], None)

    assert key.caller.reaches(BankId.parse("caf\u00e9-1"))
    assert key.caller.reaches(BankId.parse("cafe\u0301-1"))


def test_two_keys_are_never_the_same_and_say_what_they_are() -> None:
    secrets = {made()[1] for _ in range(100)}

    assert len(secrets) == 100
    assert all(secret.startswith("hs_") and len(secret) == 46 for secret in secrets)


def test_the_secret_is_kept_nowhere(tmp_path: Path) -> None:
    key, secret = made()

    KeyFile(tmp_path).add(key)

    assert all(secret not in path.read_text("utf-8") for path in tmp_path.iterdir())
    assert secret not in repr(key)
    assert KeyFile(tmp_path).read() == (key,)


def test_nobody_else_can_read_the_file(tmp_path: Path) -> None:
    KeyFile(tmp_path).add(made()[0])

    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {0o600}


def test_a_key_lets_its_holder_in_with_its_rights(tmp_path: Path) -> None:
    reader, secret = made(scopes=["read"])
    KeyFile(tmp_path).add(reader)

    found = Keyring(KeyFile(tmp_path)).find(secret)

    assert found == Caller("ada", may_write=False, key=("key", reader.digest), banks=("team-*",))


@pytest.mark.parametrize("wrong", ["", "hs_", "hs_" + "A" * 43, "\u00e9", "a" * 10_000])
def test_what_is_no_key_lets_nobody_in(tmp_path: Path, wrong: str) -> None:
    KeyFile(tmp_path).add(made()[0])

    assert Keyring(KeyFile(tmp_path)).find(wrong) is None


def test_a_key_is_good_to_the_end_of_its_last_day_in_utc(tmp_path: Path) -> None:
    key, secret = made(expires=date(2027, 1, 31))
    KeyFile(tmp_path).add(key)
    now = [datetime(2027, 1, 31, 23, 59, 59, tzinfo=UTC)]
    keyring = Keyring(KeyFile(tmp_path), now=lambda: now[0])

    on_the_last_day, lost = keyring.find(secret), keyring.refresh()
    now[0] = datetime(2027, 2, 1, tzinfo=UTC)
    afterwards, lost_then = keyring.find(secret), keyring.refresh()

    assert (on_the_last_day, lost) == (key.caller, [])
    assert (afterwards, lost_then) == (None, [key.caller.key])


def test_a_server_learns_of_new_and_revoked_keys(tmp_path: Path) -> None:
    file, (old, old_secret), (new, new_secret) = KeyFile(tmp_path), made("old"), made("new")
    file.add(old)
    keyring = Keyring(file)

    file.add(new)
    file.remove("old")
    lost = keyring.refresh()

    assert lost == [old.caller.key]
    assert keyring.find(old_secret) is None
    assert keyring.find(new_secret) == new.caller
    assert keyring.refresh() == []


def test_a_key_whose_rights_were_changed_counts_as_lost(tmp_path: Path) -> None:
    key, secret = made()
    KeyFile(tmp_path).add(key)
    keyring = Keyring(KeyFile(tmp_path))
    kept = json.loads((tmp_path / KEYS).read_bytes())

    kept["keys"][0]["scopes"] = ["read"]
    (tmp_path / KEYS).write_text(json.dumps(kept))
    lost = keyring.refresh()

    assert lost == [key.caller.key]
    found = keyring.find(secret)
    assert found is not None
    assert not found.may_write


def test_the_first_key_closes_a_server_and_revoking_the_last_does_not_open_it(tmp_path: Path) -> None:
    keyring = Keyring(KeyFile(tmp_path))
    open_at_first = not keyring.closed
    KeyFile(tmp_path).add(made()[0])
    lost = keyring.refresh()
    closed_by_the_first = keyring.closed
    KeyFile(tmp_path).remove("ada")
    keyring.refresh()

    assert open_at_first
    assert lost == [ANYONE.key]
    assert closed_by_the_first
    assert keyring.closed
    assert Keyring(KeyFile(tmp_path)).closed


def test_a_server_whose_file_vanishes_stays_closed(tmp_path: Path) -> None:
    key, secret = made()
    KeyFile(tmp_path).add(key)
    keyring = Keyring(KeyFile(tmp_path))

    (tmp_path / KEYS).unlink()

    assert keyring.refresh() == [key.caller.key]
    assert keyring.find(secret) is None
    assert keyring.closed


@pytest.mark.parametrize("text", ["", "{", "[]", '{"keys": [{}]}', '{"keys": [{"name": 1}]}'])
def test_a_broken_file_leaves_a_running_server_as_it_was_and_stops_a_new_one(tmp_path: Path, text: str) -> None:
    key, secret = made()
    KeyFile(tmp_path).add(key)
    keyring = Keyring(KeyFile(tmp_path))

    (tmp_path / KEYS).write_text(text)

    assert keyring.refresh() == []
    assert keyring.find(secret) == key.caller
    with pytest.raises(KeysUnreadable):
        Keyring(KeyFile(tmp_path))


def test_changes_at_the_same_time_are_all_kept(tmp_path: Path) -> None:
    names = [f"key-{number}" for number in range(20)]
    threads = [threading.Thread(target=KeyFile(tmp_path).add, args=(made(name)[0],)) for name in names]

    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)

    assert sorted(key.name for key in KeyFile(tmp_path).read() or ()) == sorted(names)


def test_a_name_is_given_once(tmp_path: Path) -> None:
    KeyFile(tmp_path).add(made()[0])

    with pytest.raises(InvalidArgument, match="there is a key of this name"):
        KeyFile(tmp_path).add(made()[0])
    with pytest.raises(InvalidArgument, match="there is no key of this name"):
        KeyFile(tmp_path).remove("bob")


@pytest.mark.parametrize(
    ("name", "banks", "scopes", "rule"),
    [
        ("", ["*"], ["read"], "name has 1 to 64"),
        ("a b", ["*"], ["read"], "name has 1 to 64"),
        ("a\n", ["*"], ["read"], "name has 1 to 64"),
        ("a" * 65, ["*"], ["read"], "name has 1 to 64"),
        ("ada", [], ["read"], "bank patterns"),
        ("ada", [""], ["read"], "bank patterns"),
        ("ada", ["a/b"], ["read"], "bank patterns"),
        ("ada", ["a" * 129], ["read"], "bank patterns"),
        ("ada", ["*"], [], "scopes are"),
        ("ada", ["*"], ["write"], "scopes are"),
        ("ada", ["*"], ["read", "admin"], "scopes are"),
    ],
)
def test_a_key_that_breaks_a_rule_is_refused_with_it(name: str, banks: list[str], scopes: list[str], rule: str) -> None:
    with pytest.raises(InvalidArgument, match=rule):
        Key.create(name, banks, scopes, None)


def test_a_container_gets_its_keys_from_the_environment(tmp_path: Path) -> None:
    entry = {"name": "ada", "key": CANARY, "banks": ["team-*"], "scopes": ["read"], "expires": "2999-01-01"}

    keyring = with_keys(json.dumps([entry]), tmp_path)

    found = keyring.find(CANARY)
    assert found is not None
    assert (found.name, found.may_write, found.banks) == ("ada", False, ("team-*",))
    assert keyring.closed


GOOD = {"name": "ada", "key": CANARY, "banks": ["*"], "scopes": ["read"]}


@pytest.mark.parametrize(
    ("given", "rule"),
    [
        (CANARY, "must be a JSON list"),
        ({"name": CANARY}, "must be a JSON list"),
        ([CANARY], "entry 1: each entry is an object with"),
        ([{**GOOD, "key": "canary"}], "entry 1: a key has 32 to 256"),
        ([{**GOOD, "key": f"{CANARY} "}], "entry 1: a key has 32 to 256"),
        ([GOOD, {**GOOD, "banks": "*"}], "entry 2: bank patterns"),
        ([{**GOOD, "scopes": ["canary"]}], "entry 1: scopes are"),
        ([{**GOOD, "expires": "canary"}], "entry 1: a key expires on a date"),
        ([{**GOOD, "canary": 1}], "entry 1: an entry may have"),
        ([GOOD, {**GOOD, "key": CANARY + "2"}], "no two entries"),
        ([GOOD, {**GOOD, "name": "bob"}], "no two entries"),
    ],
)
def test_bad_keys_in_the_environment_stop_the_start_with_the_rule_and_not_the_key(
    tmp_path: Path, given: object, rule: str
) -> None:
    text = given if isinstance(given, str) else json.dumps(given)

    with pytest.raises(SettingsError, match="HINDSIGHT_API_KEYS") as refused:
        with_keys(text, tmp_path)

    assert rule in str(refused.value)
    assert "canary" not in str(refused.value)


def test_the_command_line_makes_lists_and_revokes_keys(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = ["--data-dir", str(tmp_path)]
    created = main(["keys", "create", "--name", "ada", "--banks", "a*, b", "--expires", "2999-12-31", *folder])
    secret = capsys.readouterr().out.strip()
    refused = main(["keys", "create", "--name", "ada", "--banks", "*", *folder])
    complaint = capsys.readouterr().err
    listed = main(["keys", "list", *folder])
    table = capsys.readouterr().out
    caller = Keyring(KeyFile(tmp_path)).find(secret)
    revoked = main(["keys", "revoke", "ada", *folder])

    assert (created, refused, listed, revoked) == (0, 1, 0, 0)
    assert caller is not None
    assert caller.banks == ("a*", "b")
    assert "there is a key of this name" in complaint
    assert table.splitlines()[1].split()[:4] == ["ada", "read,write", "a*,b", "2999-12-31"]
    assert secret not in table
    assert Keyring(KeyFile(tmp_path)).find(secret) is None
