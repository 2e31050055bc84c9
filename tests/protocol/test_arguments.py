"""What a caller may give as arguments, over the wire: forgiving, never silent."""

from __future__ import annotations

import json

import pytest

from .doors import Served, code, opened, structured

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("given", [1, 1.0, "1", " 1 ", "1.0", 10**0])
async def test_a_number_in_another_form_counts(server: Served, given: object) -> None:
    server.app.bank("a").written.extend(["tea one", "tea two"])
    async with opened(server.url_of("a")) as wire:
        answer = await wire.call("recall", query="tea", max_results=given)

    assert len(structured(answer)["results"]) == 1


@pytest.mark.parametrize("given", ["ten", "12px", True, "", 0, -1, 10**9, 2**70, 1.5, 1e400, [1], {"a": 1}])
async def test_what_is_no_number_in_range_is_refused_naming_field_and_range(server: Served, given: object) -> None:
    async with opened(server.url_of("a")) as wire:
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call"}
        params = {"name": "recall", "arguments": {"query": "tea", "max_results": given}}
        text = json.dumps({**body, "params": params}).replace("Infinity", "1e400")
        await wire.post(text.encode())
        answer = await wire.message()

    assert code(answer) == "INVALID_ARGUMENT"
    assert "max_results must be a whole number from 1 to 100" in structured(answer)["error"]["message"]


async def test_an_unknown_argument_is_ignored_with_a_warning_that_names_the_nearest(server: Served) -> None:
    async with opened(server.url_of("a")) as wire:
        answer = await wire.call("recall", query="tea", max_result=3)

    assert "'max_results'" in structured(answer)["warnings"][0]


@pytest.mark.parametrize("given", [["a", "b"], "a, b", '["a", "b"]'])
async def test_a_list_in_another_form_counts(server: Served, given: object) -> None:
    async with opened(server.url_of("a")) as wire:
        answer = await wire.call("retain", content="tea", tags=given)

    assert structured(answer)["tags"] == ["a", "b"]


@pytest.mark.parametrize(
    "text",
    ["名前は田中", "👩\u200d👩\u200d👧\u200d👦", "e\u0301", "a\x00b", "\u202eabc", "a\u2028b", '"\\', "x" * 100_000],
    ids=["CJK", "emoji", "NFD", "NUL", "right to left", "line separator", "quote and backslash", "long"],
)
async def test_all_valid_text_round_trips(server: Served, text: str) -> None:
    async with opened(server.url_of("a")) as wire:
        await wire.call("retain", content=text)
        answer = await wire.call("recall", query=text[:1])

    assert structured(answer)["results"][0]["text"] == text


async def test_a_lone_surrogate_is_refused_by_name(server: Served) -> None:
    async with opened(server.url_of("a")) as wire:
        answer = await wire.call("retain", content="a\ud800b")

    assert code(answer) == "INVALID_ARGUMENT"
    assert "content must be valid Unicode" in structured(answer)["error"]["message"]
    assert server.app.bank("a").written == []


@pytest.mark.parametrize("text", ["", "  \n", "\u3000"])
async def test_text_of_white_space_is_refused(server: Served, text: str) -> None:
    async with opened(server.url_of("a")) as wire:
        answer = await wire.call("retain", content=text)

    assert code(answer) == "INVALID_ARGUMENT"
    assert server.app.bank("a").written == []


async def test_a_missing_argument_is_refused_by_name(server: Served) -> None:
    async with opened(server.url_of("a")) as wire:
        answer = await wire.call("recall")

    assert structured(answer)["error"]["argument"] == "query"


async def test_a_failure_is_marked_as_one_and_has_a_code_and_advice(server: Served) -> None:
    async with opened(server.url_of("a")) as wire:
        answer = await wire.call("miss")

    assert code(answer) == "MEMORY_NOT_FOUND"
    assert structured(answer)["error"]["next_action"]


async def test_a_tool_with_a_sentence_says_it_as_text_and_the_rest_as_structure(server: Served) -> None:
    async with opened(server.url_of("a")) as wire:
        answer = await wire.call("retain", content="tea")

    assert answer["result"]["content"] == [{"type": "text", "text": "Stored"}]
    assert structured(answer) == {"id": "1", "status": "stored", "tags": []}
