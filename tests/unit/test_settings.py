"""The settings: what is read, what is refused and how, and that README and --help tell all of them."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import annotated_types
import pytest
from pydantic import SecretStr
from pydantic.fields import FieldInfo

from hindsight.cli import main
from hindsight.settings import PREFIX, Settings, SettingsError, read_settings, unknown_variables, variable

README = Path(__file__).resolve().parents[2] / "README.md"
FIELDS = Settings.model_fields
SECRETS = [name for name, field in FIELDS.items() if field.annotation is SecretStr]  # in no command line


@pytest.fixture(autouse=True)
def _bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in FIELDS:
        monkeypatch.delenv(variable(name), raising=False)


def bounds() -> Iterator[tuple[str, float, float, str]]:
    """Each bound of each number: the option, the last value allowed, one that is not, and what the refusal says."""
    for name, field in FIELDS.items():
        step = 1 if field.annotation is int else 1e-9
        for bound in field.metadata:
            match bound:
                case annotated_types.Ge(ge=limit):
                    yield name, number(limit), number(limit) - step, f"greater than or equal to {limit}"
                case annotated_types.Le(le=limit):
                    yield name, number(limit), number(limit) + max(step, 1e-6), f"less than or equal to {limit}"
                case annotated_types.Gt(gt=limit):
                    yield name, math.nextafter(number(limit), math.inf), number(limit), f"greater than {limit}"
                case _:
                    pytest.fail(f"{name} has a bound that this test does not know: {bound}")


def number(limit: Any) -> float:
    assert isinstance(limit, int | float)
    return limit


def shown(field: FieldInfo) -> str:
    """A default as README has it."""
    default = field.default
    if default is None:
        return ""
    if isinstance(default, Path) and default.is_relative_to(sys.prefix):
        return f"`.venv/{default.relative_to(sys.prefix)}`"
    text = str(default).lower() if isinstance(default, bool) else str(default)
    return f"`{text}`" if text else ""


def test_readme_lists_every_setting_with_default_and_meaning_and_nothing_else() -> None:
    table = "\n".join(
        f"| `{variable(name)}` | {shown(field)} | {field.description} |" for name, field in FIELDS.items()
    )
    rows = re.findall(rf"^\| `{PREFIX}.*$", README.read_text("utf-8"), re.MULTILINE)

    assert "\n".join(rows) == table


def test_help_lists_every_setting_with_default_and_meaning_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "1000")

    with pytest.raises(SystemExit, match="0"):
        main(["serve", "--help"])

    told = capsys.readouterr().out
    assert re.findall(r"^ +--(\S+) VALUE\s+(.*)$", told, re.MULTILINE) == [
        (name.replace("_", "-"), f"{field.description} [{variable(name)}, default {field.default}]")
        for name, field in FIELDS.items()
        if name not in SECRETS
    ]
    assert [name for name in SECRETS if variable(name) not in told] == []


def test_every_setting_has_a_meaning_that_fits_a_line_of_a_table() -> None:
    assert [name for name, field in FIELDS.items() if not field.description or "|" in field.description] == []


@pytest.mark.parametrize("name", FIELDS)
def test_a_variable_that_is_empty_leaves_the_default(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(variable(name), "")

    assert getattr(read_settings(), name) == FIELDS[name].default


@pytest.mark.parametrize(("name", "allowed", "refused", "rule"), list(bounds()))
def test_a_number_is_taken_up_to_its_bound_and_refused_beyond(
    monkeypatch: pytest.MonkeyPatch, name: str, allowed: float, refused: float, rule: str
) -> None:
    monkeypatch.setenv(variable(name), str(allowed))
    assert getattr(read_settings(), name) == allowed

    monkeypatch.setenv(variable(name), str(refused))
    with pytest.raises(SettingsError) as error:
        read_settings()
    assert str(error.value) == f"{variable(name)}={str(refused)!r}: Input should be {rule}"


@pytest.mark.parametrize("url", ["http://chroma:8000", "https://chroma.example/team/", "http://[::1]:8000"])
def test_the_url_of_a_chroma_server_is_taken(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setenv("HINDSIGHT_CHROMA_URL", url)

    assert read_settings().chroma_url == url


@pytest.mark.parametrize("url", ["chroma:8000", "ftp://chroma", "http://", "http://chroma:80000", "http://a:b@chroma"])
def test_what_leads_to_no_chroma_server_is_refused(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setenv("HINDSIGHT_CHROMA_URL", url)

    with pytest.raises(SettingsError, match=r"^HINDSIGHT_CHROMA_URL=.*: Value error, a URL such as"):
        read_settings()


def test_every_number_has_a_lower_bound() -> None:
    numbers = {name for name, field in FIELDS.items() if field.annotation in (int, float)}

    assert numbers == {name for name, _, _, rule in bounds() if "greater" in rule}


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [
        ("port", "http", "valid integer"),
        ("port", "8888.5", "valid integer"),
        ("call_deadline", "soon", "valid number"),
        ("call_deadline", "nan", "less than or equal to 3600"),
        ("session_idle", "nan", "greater than 0"),
        ("allow_anonymous", "perhaps", "valid boolean"),
        ("log_format", "xml", "'text' or 'json'"),
        ("log_level", "loud", "'debug', 'info', 'warning' or 'error'"),
        ("timezone", "Mars/Olympus", "an IANA time zone such as Europe/Berlin"),
        ("timezone", "../etc/passwd", "an IANA time zone"),
        ("timezone", "/etc/localtime", "an IANA time zone"),
        ("timezone", "Europe", "an IANA time zone"),
        ("root_path", "noslash", "a path such as /team-a"),
        ("root_path", "//evil", "a path such as /team-a"),
        ("root_path", "/team-a/", "a path such as /team-a"),
        ("root_path", "/", "a path such as /team-a"),
        ("root_path", "/a/../b", "a path such as /team-a"),
        ("root_path", "https://evil.example", "a path such as /team-a"),
        ("root_path", "/a\n", "a path such as /team-a"),
        ("data_dir", "  ", "a path, which can't be empty"),
        ("audit_file", " ", "a path, which can't be empty"),
    ],
)
def test_a_wrong_value_is_refused_with_name_value_and_rule(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, rule: str
) -> None:
    monkeypatch.setenv(variable(name), value)

    with pytest.raises(SettingsError) as error:
        read_settings()

    assert str(error.value).startswith(f"{variable(name)}={value!r}: ")
    assert rule in str(error.value)


def test_every_wrong_value_is_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HINDSIGHT_PORT", "http")
    monkeypatch.setenv("HINDSIGHT_LOG_FORMAT", "xml")

    with pytest.raises(SettingsError) as error:
        read_settings()

    assert [line.partition("=")[0] for line in str(error.value).splitlines()] == [
        "HINDSIGHT_PORT",
        "HINDSIGHT_LOG_FORMAT",
    ]


@pytest.mark.parametrize("path", ["/team-a", "/a/b.c/~d", "/x@y:z+1"])
def test_a_root_path_is_taken_as_it_is(monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    monkeypatch.setenv("HINDSIGHT_ROOT_PATH", path)

    assert read_settings().root_path == path


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "America/Argentina/Buenos_Aires", "Etc/GMT+5"])
def test_a_zone_is_known_by_its_iana_name(monkeypatch: pytest.MonkeyPatch, zone: str) -> None:
    monkeypatch.setenv("HINDSIGHT_TIMEZONE", zone)

    assert read_settings().zone.key == zone


def test_an_option_of_the_command_line_goes_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HINDSIGHT_PORT", "1")
    monkeypatch.setenv("HINDSIGHT_HOST", "::1")

    settings = read_settings(port="2", host=None)

    assert (settings.port, settings.host) == (2, "::1")


def test_the_command_line_refuses_a_wrong_value_with_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    status = main(["serve", "--port", "99999"])

    assert status == 2
    assert capsys.readouterr().err.startswith(
        "hindsight: HINDSIGHT_PORT='99999': Input should be less than or equal to"
    )


def test_an_empty_option_of_the_command_line_is_no_folder(capsys: pytest.CaptureFixture[str]) -> None:
    status = main(["serve", "--data-dir", ""])

    assert status == 2
    assert "HINDSIGHT_DATA_DIR='': Value error, a path, which can't be empty" in capsys.readouterr().err


def test_a_data_folder_that_is_a_file_is_refused_by_name(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()

    status = main(["serve", "--data-dir", str(file)])

    rule = "a folder that can be made, read and written: Not a directory"
    assert (status, capsys.readouterr().err) == (2, f"hindsight: HINDSIGHT_DATA_DIR={str(file)!r}: {rule}\n")


@pytest.mark.parametrize("audit", ["nowhere/audit.jsonl", "folder"])
def test_an_audit_file_that_can_not_be_written_stops_the_start(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, audit: str
) -> None:
    (tmp_path / "folder").mkdir()

    status = main(["serve", "--port", "0", "--data-dir", str(tmp_path / "d"), "--audit-file", str(tmp_path / audit)])

    assert status == 2
    assert f"HINDSIGHT_AUDIT_FILE={str(tmp_path / audit)!r}: a file that can be written" in capsys.readouterr().err


@pytest.mark.parametrize(
    "name", ["nothing", "nowhere:make", "os:nothing", "os:system", "builtins:repr", ":make", "os:", "math:floor"]
)
def test_an_embedder_that_is_none_stops_the_start_with_the_rule(capsys: pytest.CaptureFixture[str], name: str) -> None:
    status = main(["serve", "--embedder", name])

    assert status == 2
    assert capsys.readouterr().err.startswith(
        f"hindsight: HINDSIGHT_EMBEDDER={name!r}: onnx, openai, or package.module:factory"
    )


@pytest.mark.parametrize(
    ("name", "warning"),
    [
        ("HINDSIGHT_PROT", "HINDSIGHT_PROT is not a setting; did you mean HINDSIGHT_PORT?"),
        ("HINDSIGHT_DATADIR", "HINDSIGHT_DATADIR is not a setting; did you mean HINDSIGHT_DATA_DIR?"),
        ("HINDSIGHT_MAX_SESSION", "HINDSIGHT_MAX_SESSION is not a setting; did you mean HINDSIGHT_MAX_SESSIONS?"),
        ("HINDSIGHT_QQQQQQQQQQQQQQQQQQQQQQQQ", "HINDSIGHT_QQQQQQQQQQQQQQQQQQQQQQQQ is not a setting"),
    ],
)
def test_an_unknown_variable_is_warned_of_with_the_nearest_name(name: str, warning: str) -> None:
    assert unknown_variables({name: "1", "HOME": "/root", "HINDSIGHT_PORT": "1"}) == [warning]


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("localhost", True),
        ("0.0.0.0", False), ("::", False), ("192.168.1.4", False), ("example.org", False), ("127.0.0.1.org", False),
    ],
)  # fmt: skip
def test_only_a_loopback_address_is_taken_for_one(host: str, loopback: bool) -> None:
    assert read_settings(host=host).on_loopback is loopback


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.4", "example.org"])
def test_a_server_without_keys_refuses_to_listen_beyond_loopback(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, host: str
) -> None:
    status = main(["serve", "--host", host, "--data-dir", str(tmp_path / "data")])

    assert status == 2
    assert f"HINDSIGHT_HOST={host!r}: without keys" in capsys.readouterr().err
    assert not (tmp_path / "data").exists()
