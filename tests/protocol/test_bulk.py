"""Many memories at once: NDJSON in and out of a real server, and the command line that feeds it.

The server's embedder is a double that takes no time: what is tested here is the way of the lines.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import signal
import socket
import subprocess
import threading
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import aclosing, contextmanager
from functools import partial
from pathlib import Path
from urllib.parse import quote, urlsplit

import anyio
import httpx
import numpy as np
import pytest

from hindsight.bank import Bank
from hindsight.bulk import LONGEST, WINDOW, Line, LineResult, export, load
from hindsight.embedding import Vectors
from hindsight.errors import LedgerUnavailable
from hindsight.ledger.sqlite import glance
from hindsight.record import BankId, JsonObject
from hindsight.settings import Settings, read_settings
from hindsight.wiring import open_banks
from tests.commands import Run
from tests.serving import BOUND, HINDSIGHT, NO_TLS, Serving, answer, client, environment_with, serving

pytestmark = pytest.mark.anyio

EMBEDDER, STUCK = "tests.protocol.test_bulk:Digests", "tests.protocol.test_bulk:Stuck"
NOWHERE = "http://127.0.0.1:9"  # nobody listens there


class Digests:
    """An embedder without meaning: equal texts are equal vectors. Keeps no count of tokens."""

    name, dimension, max_tokens = "digests", 8, 10**9

    def __init__(self, settings: Settings) -> None:
        self.texts = list[str]()

    async def ready(self) -> None:
        pass

    async def embed(self, texts: Sequence[str]) -> Vectors:
        self.texts += texts
        digests = [np.frombuffer(hashlib.sha256(text.encode()).digest(), np.uint8)[:8] for text in texts]
        rows = np.stack(digests).astype(np.float32) + 1
        vectors: Vectors = rows / np.linalg.norm(rows, axis=1, keepdims=True)
        return vectors

    def token_ends(self, text: str) -> list[int]:
        return [len(text)]

    async def aclose(self) -> None:
        pass


class Stuck(Digests):
    """Embeds some hundred texts and then never ends: what waits for it is in the middle of its work."""

    async def embed(self, texts: Sequence[str]) -> Vectors:
        if len(self.texts) >= 300:
            await anyio.sleep_forever()
        return await super().embed(texts)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="module")
def running(data: Path) -> Iterator[Serving]:
    """One server for all tests that leave it running; each uses banks of its own."""
    with serving(data, embedder=EMBEDDER) as server:
        yield server


@pytest.fixture
def bank(running: Serving, request: pytest.FixtureRequest) -> Iterator[Door]:
    """A bank of the test's own."""
    with httpx.Client(timeout=BOUND, trust_env=False, verify=NO_TLS) as http:
        yield Door(http, running, re.sub(r"\W+", "-", request.node.name)[:100])


class Door:
    """A bank's bulk door."""

    def __init__(self, http: httpx.Client, server: Serving, name: str) -> None:
        self.http = http
        self.server = server
        self.name = name
        self.bank = f"{server.url}/banks/{quote(name)}"
        self.url = f"{self.bank}/memories"

    def sibling(self, name: str) -> Door:
        """Another bank of the same server."""
        return Door(self.http, self.server, f"{self.name[:90]}-{name}")

    def load(self, body: bytes, **headers: str) -> list[JsonObject]:
        """The result lines that a body is answered with."""
        response = self.http.post(self.url, content=body, headers={k.replace("_", "-"): v for k, v in headers.items()})
        assert response.status_code == 200, response.text
        return [json.loads(line) for line in response.text.splitlines()]

    def export(self) -> bytes:
        """The export."""
        response = self.http.get(self.url)
        assert response.status_code == 200, response.text
        return response.content

    def count(self) -> int:
        """How many memories the list of banks tells."""
        banks: list[JsonObject] = self.http.get(f"{self.server.url}/banks").json()["banks"]
        return sum(each["memories"] for each in banks if each["bank_id"] == self.name)


def lines(*values: object) -> bytes:
    """NDJSON of these values."""
    return b"".join(json.dumps(value).encode() + b"\n" for value in values)


def notes(count: int) -> bytes:
    """So many different memories."""
    return lines(*({"content": f"note {number}"} for number in range(count)))


def outcomes(results: list[JsonObject]) -> list[tuple[int, str]]:
    """Line and status, or the error's code."""
    return [(each["line"], each["error"]["code"] if "error" in each else each["status"]) for each in results]


class Upload:
    """A load whose body is sent bit by bit, while the answer is read line by line."""

    def __init__(self, url: str, *headers: str) -> None:
        where = urlsplit(url)
        assert where.hostname is not None
        self.socket = socket.create_connection((where.hostname, where.port), BOUND)
        self._answer = self.socket.makefile("rb")
        head = [f"PUT {where.path} HTTP/1.1", f"Host: {where.netloc}", "Transfer-Encoding: chunked", *headers]
        self.socket.sendall("\r\n".join([*head, "", ""]).encode())

    def send(self, body: bytes) -> None:
        """Send a piece; an empty one ends the body."""
        self.socket.sendall(b"%x\r\n%b\r\n" % (len(body), body))

    def head(self) -> str:
        """The status line, after which the headers are skipped."""
        status = self._answer.readline().decode()
        while self._answer.readline().strip():
            pass
        return status.strip()

    def pieces(self) -> Iterator[bytes]:
        """The pieces of the answer's body."""
        while size := int(self._answer.readline(), 16):
            yield self._answer.read(size)
            self._answer.readline()

    def close(self) -> None:
        """Leave, whatever is under way."""
        self._answer.close()
        self.socket.close()


@pytest.fixture
def hindsight(command: Run) -> Run:
    """Runs a command in this process, with the double."""
    return partial(command, embedder=EMBEDDER)


# --- what a line is answered with ------------------------------------------------------------------------------------


def test_every_line_is_answered_in_order_and_a_bad_one_costs_its_neighbours_nothing(bank: Door) -> None:
    body = b"\n".join(
        [
            b'{"content": "one"}', b"", b"no json", b"[1]", b'{"content": ""}', b'{"content": "\xff"}',
            b'{"content": "two", "tags": "a, b", "event_date": "yesterday"}', b'{"content": NaN}', b"   ",
            b"[" * 100_000, b'{"content": "\\ud800"}', b'{"content": "three", "contxt": "x"}', b'{"content": "end"}',
        ]
    )  # fmt: skip

    results = bank.load(body)

    bad = [(number, "INVALID_ARGUMENT") for number in (3, 4, 5, 6, 7, 8, 10, 11)]
    assert outcomes(results) == sorted([(1, "stored"), *bad, (12, "stored"), (13, "stored")])
    assert all({"code", "message", "next_action"} <= each["error"].keys() for each in results if "error" in each)
    assert "did you mean 'context'?" in results[9]["warnings"][0]
    assert [json.loads(line)["text"] for line in bank.export().splitlines()] == ["one", "three", "end"]


def test_arguments_are_read_as_forgivingly_as_retain_reads_them(bank: Door) -> None:
    bank.load(lines({"content": "one", "tags": "a, b", "type": "Opinion", "metadata": '{"a": 1}', "session_id": None}))

    [memory] = [json.loads(line) for line in bank.export().splitlines()]
    assert (memory["tags"], memory["type"], memory["metadata"]) == (["a", "b"], "opinion", {"a": 1})


def test_a_byte_order_mark_carriage_returns_and_a_missing_last_line_end_do_no_harm(bank: Door) -> None:
    results = bank.load(b'\xef\xbb\xbf{"content": "a"}\r\n\r\n{"content": "b"}')

    assert outcomes(results) == [(1, "stored"), (3, "stored")]


def test_a_line_over_two_mebibytes_is_refused_alone(bank: Door) -> None:
    most = b'{"content": "a", "unread": "' + b"x" * (LONGEST - 30) + b'"}'

    results = bank.load(b"\n".join([most, most + b" ", most[:-2] + b'x"}', b'{"content": "b"}']))

    assert len(most) == LONGEST
    assert outcomes(results) == [
        (1, "stored"),
        (2, "CONTENT_TOO_LARGE"),
        (3, "CONTENT_TOO_LARGE"),
        (4, "stored"),
    ]


def test_an_empty_body_is_answered_with_nothing_and_makes_no_bank(bank: Door) -> None:
    assert bank.load(b"") == bank.load(b"\n\n") == []
    assert bank.count() == 0
    assert bank.export() == b""


def test_a_body_of_which_nothing_can_be_stored_makes_no_bank(bank: Door) -> None:
    refused = [{"content": "a", "event_date": "soon"}, {"content": "b", "supersedes": "nobody"}]

    assert outcomes(bank.load(lines(*refused))) == [(1, "INVALID_ARGUMENT"), (2, "MEMORY_NOT_FOUND")]
    banks = bank.http.get(f"{bank.server.url}/banks").json()["banks"]
    assert bank.name not in [each["bank_id"] for each in banks]


def test_a_first_body_may_correct_its_own_lines(bank: Door) -> None:
    first, second = {"id": "one", "content": "a"}, {"content": "b", "supersedes": "one"}

    results = bank.load(lines(second, first, *(second,) * (2 * WINDOW)))

    assert [status for _, status in outcomes(results)] == ["MEMORY_NOT_FOUND", "stored", "stored"] + ["known"] * (
        2 * WINDOW - 1
    )


def test_gzip_is_read_and_other_encodings_are_refused(bank: Door) -> None:
    zipped = gzip.compress(notes(3)) + gzip.compress(notes(4))

    assert [status for _, status in outcomes(bank.load(zipped, content_encoding="gzip"))] == (
        ["stored"] * 3 + ["known"] * 3 + ["stored"]
    )
    refused = bank.http.post(bank.url, content=zipped, headers={"content-encoding": "br"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (415, "INVALID_ARGUMENT")


@pytest.mark.parametrize("size", [65_535, 65_536, 131_072])
def test_a_gzip_body_of_any_size_gives_a_result_for_each_line(bank: Door, size: int) -> None:
    line = json.dumps({"content": "The heron is in the garden."}).encode() + b"\n"
    body = line * 20
    body += b" " * (size - len(body) - 1) + b"\n"  # blank lines are none

    assert [status for _, status in outcomes(bank.load(gzip.compress(body), content_encoding="gzip"))] == (
        ["stored"] + ["known"] * 19
    )


def test_a_gzip_body_that_is_cut_or_none_keeps_the_lines_before_and_says_so(bank: Door) -> None:
    cut = bank.load(gzip.compress(notes(300))[:-20], content_encoding="gzip")
    none = bank.load(notes(3), content_encoding="gzip")

    assert cut[-1]["error"]["message"] == "the gzip body ends before its end"
    assert len(cut) - 1 == bank.count() > 0
    assert [each["error"]["message"] for each in none] == ["the body is not valid gzip"]


def test_results_come_while_the_body_still_arrives(bank: Door) -> None:
    upload = Upload(bank.url)

    upload.send(b'{"content": "one"}\n{"content":')
    head, pieces = upload.head(), upload.pieces()
    first = next(pieces)
    upload.send(b' "two"}\n')
    second = next(pieces)
    upload.send(b"")
    rest = b"".join(pieces)
    upload.close()

    assert head == "HTTP/1.1 200 OK"
    assert [json.loads(line)["line"] for line in (first, second)] == [1, 2]
    assert rest == b""


def test_a_client_that_asks_before_it_sends_is_told_to_go_on(bank: Door) -> None:
    upload = Upload(bank.url, "Expect: 100-continue")

    asked = upload.head()
    upload.send(b'{"content": "one"}')
    upload.send(b"")
    head, answered = upload.head(), b"".join(upload.pieces())
    upload.close()

    assert (asked, head) == ("HTTP/1.1 100 Continue", "HTTP/1.1 200 OK")
    assert json.loads(answered)["status"] == "stored"


# --- again and again -------------------------------------------------------------------------------------------------


def test_a_repeated_load_stores_nothing_twice(bank: Door) -> None:
    body = notes(200) + lines({"content": "on 3 May 2024 we met"}, {"content": "note 1"})

    first, again = bank.load(body), bank.load(body)

    assert [status for _, status in outcomes(first)] == ["stored"] * 201 + ["known"]
    assert [status for _, status in outcomes(again)] == ["known"] * 202
    assert [each["id"] for each in first] == [each["id"] for each in again]
    assert bank.count() == 201


def test_what_was_answered_before_a_connection_broke_is_stored_and_a_repeat_stores_the_rest(bank: Door) -> None:
    body = notes(1_000)
    upload = Upload(bank.url)
    upload.send(body[: len(body) // 2])
    upload.head()
    answered = next(upload.pieces())
    upload.close()

    before = {json.loads(line)["id"] for line in bank.export().splitlines()}
    results = bank.load(body)

    assert {json.loads(line)["id"] for line in answered.splitlines()} <= before
    assert {each["status"] for each in results} == {"stored", "known"}
    assert bank.count() == 1_000


async def test_what_is_known_is_not_embedded_again(tmp_path: Path) -> None:
    embedder = Digests(read_settings())
    async with open_banks(read_settings(data_dir=tmp_path), tmp_path, embedder) as banks:
        for _ in range(2):
            async with banks.lease(BankId.parse("a")) as bank:
                await _load(bank, notes(100))

    assert sorted(embedder.texts) == sorted(f"note {number}" for number in range(100))


# --- out and in again ------------------------------------------------------------------------------------------------


def test_an_export_loaded_into_an_empty_bank_gives_the_same_bytes(bank: Door) -> None:
    bank.load(
        lines(
            {"content": "We met on 3 May 2024. <\x00>\u2028 \U0001f468\u200d\U0001f469 e\u0301", "tags": ["ü", "x"]},
            {"content": "instant", "event_date": "2024-05-03T10:00:00.123456789+02:00", "session_id": "s"},
            {"content": "day", "event_date": "2024-05-03", "document_id": "d", "context": "c", "type": "opinion"},
            {"content": "data", "metadata": {"b": [1e300, 12345678901234567890123, -0.0], "a": None, "": {"x": "y"}}},
            {"content": "yesterday it rained"},
        )
    )
    exported, copy = bank.export(), bank.sibling("copy")

    results = copy.load(exported)

    assert [each["status"] for each in results] == ["stored"] * 5
    assert copy.export() == exported
    assert [each["status"] for each in copy.load(exported)] == ["known"] * 5


def test_the_original_file_is_known_to_the_restored_bank(bank: Door) -> None:
    original = lines(
        {"content": "We met on 3 May 2024."}, {"content": "It rained yesterday."}, {"content": "a", "context": "b"}
    )
    bank.load(original)
    copy = bank.sibling("copy")
    copy.load(bank.export())

    assert [each["status"] for each in copy.load(original)] == ["known"] * 3


async def test_changed_categories_and_links_survive_an_export(bank: Door) -> None:
    first = {"content": "Ann lives in Rome"}
    [old, other] = bank.load(lines(first, {"content": "Ann likes tea"}))
    [new] = bank.load(lines({"content": "Ann lives in Paris", "supersedes": old["id"]}))
    [newest] = bank.load(lines({"content": "Ann lives in Oslo", "supersedes": new["id"]}))
    async with client(bank.server.url, bank.name) as session:
        await answer(session, "update_memory", id=old["id"], context="places", event_date="2020-01-01")
        await answer(session, "forget", id=other["id"])
    exported, copy = bank.export(), bank.sibling("copy")

    copy.load(exported)

    assert copy.export() == exported
    assert [each["status"] for each in copy.load(lines(first))] == ["known"]
    found = [json.loads(line) for line in copy.export().splitlines()]
    assert [(each["id"], each["supersedes"], each["superseded_by"]) for each in found] == [
        (old["id"], None, new["id"]),
        (new["id"], old["id"], newest["id"]),
        (newest["id"], new["id"], None),
    ]
    async with client(bank.server.url, copy.name) as session:
        recalled = await answer(session, "recall", query="Ann lives")
    assert [each["id"] for each in recalled["results"]] == [newest["id"]]


def test_an_id_of_another_memory_and_a_wrong_identity_are_refused(bank: Door) -> None:
    [one] = bank.load(lines({"content": "one"}))

    results = bank.load(
        lines(
            {"content": "two", "id": one["id"]},
            {"content": "three", "identity": "0f"},
            {"content": "four", "supersedes": "nobody"},
            {"content": "five", "supersedes": one["id"]},
            {"content": "six", "supersedes": one["id"]},
        )
    )

    assert [code for _, code in outcomes(results)] == [
        "INVALID_ARGUMENT",
        "INVALID_ARGUMENT",
        "MEMORY_NOT_FOUND",
        "stored",
        "ALREADY_SUPERSEDED",
    ]
    assert [json.loads(line)["text"] for line in bank.export().splitlines()] == ["one", "five"]


async def test_an_export_shows_the_bank_as_it_was_when_it_began(tmp_path: Path) -> None:
    async with (
        open_banks(read_settings(data_dir=tmp_path), tmp_path, Digests(read_settings())) as banks,
        banks.lease(BankId.parse("a")) as bank,
    ):
        ids = await _load(bank, lines(*({"content": f"{number} " + "x" * 100_000} for number in range(20))))
        before = b"".join([chunk async for chunk in export(bank)])
        async with aclosing(export(bank)) as chunks:
            first = await anext(chunks)
            await bank.forget(ids[18])
            await _load(bank, lines({"content": "late"}, {"content": "new", "supersedes": ids[19]}))
            during = first + b"".join([chunk async for chunk in chunks])
        after = b"".join([chunk async for chunk in export(bank)])

    assert len(first) < len(before) // 2
    assert during == before
    assert after != before
    assert len(after.splitlines()) == 21


async def _load(bank: Bank, body: bytes) -> list[str]:
    """Load lines into a bank in this process; their ids."""
    results = list[LineResult]()

    async def windows() -> AsyncIterator[list[Line]]:
        yield [Line(number, line) for number, line in enumerate(body.splitlines(), 1)]

    async def tell(found: list[LineResult]) -> None:
        results.extend(found)

    with anyio.fail_after(BOUND):
        await load(bank, windows(), tell)
    return [each["id"] for each in results]


# --- banks -----------------------------------------------------------------------------------------------------------


async def test_a_deleted_bank_is_gone_and_its_sessions_see_an_empty_one(bank: Door) -> None:
    bank.load(notes(3))
    async with client(bank.server.url, bank.name) as session:
        assert len((await answer(session, "recall", query="note"))["results"]) == 3
        unconfirmed = bank.http.delete(bank.bank)
        deleted = bank.http.delete(f"{bank.bank}?confirm=true")
        again = bank.http.delete(f"{bank.bank}?confirm=true")
        empty = await answer(session, "recall", query="note")
        await answer(session, "retain", content="a new start")
        anew = await answer(session, "recall", query="note")

    assert (unconfirmed.status_code, unconfirmed.json()["error"]["code"]) == (400, "CONFIRMATION_REQUIRED")
    assert (deleted.status_code, deleted.json()) == (200, {"deleted": bank.name})
    assert (again.status_code, again.json()["error"]["code"]) == (404, "NOT_FOUND")
    assert empty == {"results": []}
    assert [each["text"] for each in anew["results"]] == ["a new start"]


def test_a_bank_is_not_deleted_under_a_load(bank: Door) -> None:
    upload = Upload(bank.url)
    upload.send(notes(3))
    upload.head()
    pieces = upload.pieces()
    next(pieces)

    busy = bank.http.delete(f"{bank.bank}?confirm=true")
    upload.send(b"")
    rest = b"".join(pieces)
    upload.close()
    deleted = bank.http.delete(f"{bank.bank}?confirm=true")

    assert (busy.status_code, busy.json()["error"]["code"]) == (503, "TOO_BUSY")
    assert rest == b""
    assert deleted.status_code == 200


# --- size ------------------------------------------------------------------------------------------------------------


def test_results_wait_for_a_client_that_reads_only_after_it_has_sent(bank: Door) -> None:
    body = notes(1) + b"bad\n" * 30_000

    results = bank.load(body)

    assert len(results) == 30_001


def test_a_gzip_bomb_costs_no_memory(bank: Door) -> None:
    bomb = gzip.compress(b" " * (300 * 1024 * 1024))
    bank.load(notes(1))
    before = _peak(bank.server)

    [result] = bank.load(bomb + gzip.compress(b'\n{"content": "after"}'), content_encoding="gzip")[:1]

    assert result["error"]["code"] == "CONTENT_TOO_LARGE"
    assert _peak(bank.server) - before < 60 * 1024 * 1024


@pytest.mark.slow
def test_memory_stays_flat_on_a_body_of_200_megabytes(bank: Door) -> None:
    bad, short = b"x" * 1_000 + b"\n", b'{"content": "short"}\n'
    block = b"\n" * 300_000 + bad * 400 + short * 300 + b" \r\n" * 100_000
    long = b'{"content": "' + b"y" * (3 * 1024 * 1024) + b'"}\n'
    bank.load(notes(100))
    before = _peak(bank.server)
    upload = Upload(bank.url)

    def send() -> None:
        for turn in range(200):
            upload.send(block if turn % 20 else block + long)
        upload.send(b"")

    sender = threading.Thread(target=send)
    sender.start()
    upload.head()
    answered = sum(piece.count(b"\n") for piece in upload.pieces())
    sender.join(BOUND)
    upload.close()

    assert answered == 200 * 700 + 10
    assert _peak(bank.server) - before < 60 * 1024 * 1024


def _peak(server: Serving) -> int:
    """The most memory that the server has had so far, in bytes."""
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) * 1024


# --- the command line ------------------------------------------------------------------------------------------------


def test_load_tells_what_became_of_the_lines_and_errors_can_be_corrected_and_loaded_again(
    bank: Door, tmp_path: Path, hindsight: Run
) -> None:
    (tmp_path / "a.csv").write_text("Note,When\ntea,2024-01-02\ncoffee,soon\n")
    (tmp_path / "b.txt").write_text("one\n\ntwo\n")
    wrong = tmp_path / "wrong.ndjson"
    where = ("--bank", bank.name, "--url", bank.server.url)
    mapped = ("--map", "content=Note", "--map", "event_date=When", "--tag", "t", "--context", "drinks")

    first = hindsight("load", tmp_path / "a.csv", tmp_path / "b.txt", *where, *mapped, "--errors", wrong)
    wrong.write_text(wrong.read_text().replace("soon", "2024-01-03"))
    corrected = hindsight("load", wrong, *where)
    again = hindsight("load", tmp_path / "b.txt", *where, *mapped)

    assert (first.status, corrected.status, again.status) == (1, 0, 0)
    assert "a.csv:3: event_date must be" in first.err
    assert f"3 stored, 0 known already, 1 failed (see {wrong})" in first.err
    assert "1 stored, 0 known already, 0 failed" in corrected.err
    assert "0 stored, 2 known already, 0 failed" in again.err
    found = [json.loads(line) for line in bank.export().splitlines()]
    assert [(each["text"], each["event_date"], each["tags"], each["context"]) for each in found] == [
        ("tea", "2024-01-02", ["t"], "drinks"),
        ("one", None, ["t"], "drinks"),
        ("two", None, ["t"], "drinks"),
        ("coffee", "2024-01-03", ["t"], "drinks"),
    ]


def test_a_dry_run_shows_the_first_five_counts_errors_and_stores_nothing(bank: Door, hindsight: Run) -> None:
    body = notes(7) + b"bad\n"

    tried = hindsight("load", "-", "--bank", bank.name, "--url", bank.server.url, "--dry-run", stdin=body)

    assert tried.status == 1
    assert tried.out.splitlines() == [f'stdin:{number + 1}: {{"content":"note {number}"}}' for number in range(5)]
    assert "would load: 7 stored, 0 known already, 1 failed" in tried.err
    assert bank.count() == 0


def test_all_banks_are_exported_and_restored_with_the_same_bytes(bank: Door, tmp_path: Path, hindsight: Run) -> None:
    bank.load(notes(3))
    bank.sibling("Ünïcode @ 2").load(notes(2))

    saved = hindsight("export", "--all", tmp_path / "saved", "--url", bank.server.url)
    restored = hindsight("load", "--all", tmp_path / "saved", "--data-dir", tmp_path / "data")
    copied = hindsight("export", "--all", tmp_path / "copied", "--data-dir", tmp_path / "data")
    single = hindsight("export", "--bank", bank.name, "--data-dir", tmp_path / "data")

    assert [each.status for each in (saved, restored, copied, single)] == [0, 0, 0, 0], restored.err
    files = {each.name: each.read_bytes() for each in (tmp_path / "saved").iterdir()}
    assert files == {each.name: each.read_bytes() for each in (tmp_path / "copied").iterdir()}
    assert single.out.encode() == bank.export()


def test_a_folder_that_a_server_holds_is_left_alone(bank: Door, data: Path, hindsight: Run) -> None:
    refused = hindsight("load", "-", "--bank", bank.name, "--data-dir", data, stdin=notes(1))

    assert refused.status == 1
    assert "is held by hindsight serve" in refused.err
    assert "--url" in refused.err


def test_wrong_urls_files_and_maps_are_named(bank: Door, tmp_path: Path, hindsight: Run) -> None:
    nobody = hindsight("load", "-", "--bank", "a", "--url", NOWHERE, stdin=notes(1))
    missing = hindsight("load", tmp_path / "no.csv", "--bank", "a", "--url", bank.server.url)
    unmapped = hindsight("load", "-", "--bank", "a", "--url", bank.server.url, "--map", "x=y", stdin=b"")

    assert [each.status for each in (nobody, missing, unmapped)] == [1, 1, 1]
    assert "the server can't be reached" in nobody.err
    assert "there is no " in missing.err
    assert "--map x=y" in unmapped.err


def test_a_load_killed_in_the_middle_goes_on_when_repeated(tmp_path: Path, hindsight: Run) -> None:
    count, folder = 1_000, tmp_path / "data"
    file, ledger = tmp_path / "notes.ndjson", folder / "banks" / "b-a" / "ledger.db"
    file.write_bytes(notes(count))
    command = ("load", file, "--bank", "a", "--data-dir", folder)

    with running_load(command) as process:
        wait_for_memories(ledger)
        process.kill()
        process.wait(BOUND)
    between = glance(ledger).memories
    again = hindsight(*command)

    assert 0 < between < count
    assert again.status == 0, again.err
    found = re.search(r"([\d,]+) stored, ([\d,]+) known already, 0 failed", again.err)
    assert found is not None
    stored, known = (int(number.replace(",", "")) for number in found.groups())
    assert (stored + known, known) == (count, between)
    assert glance(ledger).memories == count


def test_a_load_interrupted_says_how_to_go_on(tmp_path: Path) -> None:
    file, folder = tmp_path / "notes.ndjson", tmp_path / "data"
    file.write_bytes(notes(1_000))

    with running_load(("load", file, "--bank", "a", "--data-dir", folder)) as process:
        wait_for_memories(folder / "banks" / "b-a" / "ledger.db")
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=BOUND)

    assert process.returncode == 130
    assert b"the same command goes on from here" in told


@pytest.mark.slow
def test_a_load_outlives_a_restart_of_the_server(tmp_path: Path) -> None:
    file, folder, count = tmp_path / "notes.ndjson", tmp_path / "data", 1_000
    file.write_bytes(notes(count))
    with serving(folder, embedder=STUCK) as first:
        port = urlsplit(first.url).port
        with running_load(("load", file, "--bank", "a", "--url", first.url)) as process:
            wait_for_memories(folder / "banks" / "b-a" / "ledger.db")
            first.kill()
            with serving(folder, embedder=EMBEDDER, port=port, ready=False):
                _, told = process.communicate(timeout=BOUND)

    assert process.returncode == 0, told
    assert b"0 failed" in told
    assert glance(folder / "banks" / "b-a" / "ledger.db").memories == count


def test_a_server_that_stops_answers_the_lines_in_work_and_says_so(tmp_path: Path) -> None:
    with serving(tmp_path, embedder=EMBEDDER, ready=False) as server:
        upload = Upload(f"{server.url}/banks/a/memories")
        upload.send(notes(500) + b'{"content":')
        upload.head()
        pieces = upload.pieces()
        first = next(pieces)
        server.process.send_signal(signal.SIGTERM)
        results = [json.loads(line) for line in (first + b"".join(pieces)).splitlines()]
        upload.close()
        status = server.stop()

    assert status == 0
    assert [each["status"] for each in results[:-1]] == ["stored"] * (len(results) - 1)
    assert results[-1]["error"]["code"] == "TOO_BUSY"
    assert glance(tmp_path / "banks" / "b-a" / "ledger.db").memories == len(results) - 1
    assert not [line for line in server.log.lines if "Traceback" in line]


@contextmanager
def running_load(command: Sequence[object]) -> Iterator[subprocess.Popen[bytes]]:
    """A command under way that gets no further than the middle on its own; killed at the end when it still runs."""
    environment = environment_with({"embedder": STUCK})
    # Tests that run in the background inherit an ignored Ctrl-C from their shell.
    heed = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    whole = [*HINDSIGHT, *map(str, command)]
    with subprocess.Popen(whole, env=environment, stderr=subprocess.PIPE, preexec_fn=heed) as process:
        try:
            yield process
        finally:
            process.kill()


def wait_for_memories(ledger: Path) -> None:
    """Return once the ledger holds some: it is on disk, so that only looking tells."""
    end = time.monotonic() + BOUND
    while not (ledger.exists() and ledger.stat().st_size and _memories(ledger)):
        assert time.monotonic() < end, "nothing was stored in time"
        time.sleep(0.01)


def _memories(ledger: Path) -> int:
    try:
        return glance(ledger).memories
    except LedgerUnavailable:  # it is just being made
        return 0
