"""The embedder over an OpenAI-compatible service, against one that fails in every way; see tests/doubles.py."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.to_thread
import numpy as np
import pytest

from hindsight.embedding import Parted, Vectors
from hindsight.embedding.batching import BatchingEmbedder
from hindsight.embedding.onnx import OnnxEmbedder
from hindsight.embedding.openai import REST, OpenAiEmbedder
from hindsight.errors import EmbedderUnavailable, TextRefused
from hindsight.settings import read_settings
from tests.doubles import (
    Fault,
    Provider,
    backwards,
    by_words,
    not_a_number,
    one_short,
    providing,
    rows_of,
    shorter,
    too_large,
    zeros,
)
from tests.serving import BOUND

pytestmark = pytest.mark.anyio

TEXTS = ["the cat sleeps", "the dog barks", "interest rates rose"]
KEY = "sk-very-secret"
DOWN = "http://127.0.0.1:9/v1"  # nobody listens at the discard port


@pytest.fixture
def provider() -> Iterator[Provider]:
    with providing(by_words()) as running:
        yield running


@asynccontextmanager
async def embedder(url: str, **given: object) -> AsyncIterator[OpenAiEmbedder]:
    settings = read_settings(openai_base_url=url, openai_model="words", openai_api_key=KEY, **given)
    made = OpenAiEmbedder(settings)
    try:
        with anyio.fail_after(BOUND):
            yield made
    finally:
        await made.aclose()


def similarities(rows: Vectors, texts: Sequence[str] = TEXTS) -> list[float]:
    """The cosine of each row with what its text should have."""
    right = rows_of(texts)
    return [float(row @ each / np.linalg.norm(each)) for row, each in zip(rows, right, strict=True)]


async def test_texts_go_out_in_requests_of_a_batch_with_model_and_key(provider: Provider) -> None:
    async with embedder(provider.url, openai_batch=2) as made:
        rows = await made.embed(TEXTS)

    assert [each["input"] for each in provider.asked] == [TEXTS[:2], TEXTS[2:]]
    assert {(each["model"], each["encoding_format"], "dimensions" in each) for each in provider.asked} == {
        ("words", "float", False)
    }
    assert set(provider.keys) == {f"Bearer {KEY}"}
    assert np.linalg.norm(rows, axis=1) == pytest.approx(1)
    assert similarities(rows) == pytest.approx([1, 1, 1])


async def test_the_dimension_is_unknown_until_the_first_answer_tells_it(provider: Provider) -> None:
    async with embedder(provider.url) as made:
        before = made.dimension
        await made.ready()

        assert (before, made.dimension) == (0, 64)


async def test_dimensions_that_are_set_are_asked_for_and_known_at_once(provider: Provider) -> None:
    async with embedder(provider.url, openai_dimensions=32) as made:
        before = made.dimension
        rows = await made.embed(TEXTS)

    assert (before, rows.shape, provider.asked[0]["dimensions"]) == (32, (3, 32), 32)


async def test_vectors_in_another_order_are_put_in_that_of_their_texts(provider: Provider) -> None:
    provider.always = Fault(change=backwards)
    async with embedder(provider.url) as made:
        rows = await made.embed(TEXTS)

    assert similarities(rows) == pytest.approx([1, 1, 1])


@pytest.mark.parametrize(
    "fault",
    [Fault(429), Fault(429, retry_after="1"), Fault(429, retry_after="Fri, 01 Jan 2027 00:00:00 GMT"), Fault(500),
     Fault(503), Fault(cut=True)],
    ids=["429", "429 with a time", "429 with a date", "500", "503", "cut off"],
)  # fmt: skip
async def test_what_passes_is_asked_for_again(provider: Provider, fault: Fault) -> None:
    provider.faults.append(fault)
    start = time.monotonic()
    async with embedder(provider.url) as made:
        rows = await made.embed(TEXTS)

    assert similarities(rows) == pytest.approx([1, 1, 1])
    assert len(provider.asked) == 2
    assert time.monotonic() - start >= (1 if fault.retry_after == "1" else 0)


async def test_a_request_that_hangs_is_given_up_and_sent_once_more(provider: Provider) -> None:
    provider.faults.append(Fault(hangs=True))
    async with embedder(provider.url, openai_timeout=2) as made:
        rows = await made.embed(TEXTS)

    assert (len(rows), len(provider.asked)) == (3, 2)


@pytest.mark.parametrize(
    "fault",
    [Fault(429, retry_after="3600"), Fault(500), Fault(cut=True), Fault(hangs=True)],
    ids=["429", "500", "cut off", "hanging"],
)
async def test_what_does_not_pass_ends_within_the_time_set(provider: Provider, fault: Fault) -> None:
    provider.always = fault
    async with embedder(provider.url, openai_timeout=1) as made:
        start = time.monotonic()
        with pytest.raises(EmbedderUnavailable, match="does not answer") as error:
            await made.embed(TEXTS)

        assert time.monotonic() - start < 3
        assert error.value.__cause__ is not None


@pytest.mark.parametrize("status", [400, 401, 404])
async def test_a_refusal_is_not_repeated_and_its_words_are_kept_from_clients_and_log(
    provider: Provider, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    provider.always = Fault(status)
    async with embedder(provider.url) as made:
        with caplog.at_level(logging.WARNING), pytest.raises(EmbedderUnavailable, match="refuses") as error:
            await made.embed(TEXTS)

    told = caplog.text + str(error.value.as_json())
    assert len(provider.asked) == 1
    assert f"status {status}" in caplog.text
    assert [word for word in (KEY, TEXTS[0], provider.url) if word in told] == []


@pytest.mark.parametrize("status", [400, 413, 422])
async def test_a_text_that_the_service_refuses_costs_those_beside_it_nothing(provider: Provider, status: int) -> None:
    provider.refused = TEXTS[1], Fault(status)
    async with embedder(provider.url) as made:
        found = await BatchingEmbedder(made).embed_each([Parted(text) for text in TEXTS])

    assert [isinstance(each, TextRefused) for each in found] == [False, True, False]
    rows = np.concatenate([each for each in found if not isinstance(each, TextRefused)])
    assert similarities(rows, TEXTS[::2]) == pytest.approx([1, 1])


@pytest.mark.parametrize(
    "change", [one_short, not_a_number, too_large, zeros, lambda reply: [], lambda reply: {"data": [1, 2]}]
)
async def test_an_answer_that_is_not_a_vector_for_each_text_is_refused(provider: Provider, change: object) -> None:
    provider.always = Fault(change=change)  # type: ignore[arg-type]  # any of the list
    async with embedder(provider.url) as made:
        with pytest.raises(EmbedderUnavailable, match="something else"):
            await made.embed(TEXTS)


async def test_vectors_of_another_size_than_before_are_refused(provider: Provider) -> None:
    provider.faults += [Fault(), Fault(change=shorter)]
    async with embedder(provider.url) as made:
        await made.embed(TEXTS)
        with pytest.raises(EmbedderUnavailable, match="63 numbers a vector, not 64"):
            await made.embed(TEXTS)


async def test_a_service_that_failed_is_left_alone_for_a_while_and_then_asked_again(provider: Provider) -> None:
    provider.faults.append(Fault(401))
    async with embedder(provider.url) as made:
        with pytest.raises(EmbedderUnavailable):
            await made.embed(TEXTS)
        with pytest.raises(EmbedderUnavailable, match="does not work at the moment"):
            await made.embed(TEXTS)
        asked = len(provider.asked)
        await anyio.sleep(REST)  # the pause itself is what is tested
        await made.embed(TEXTS)

    assert (asked, len(provider.asked)) == (1, 2)


async def test_nothing_that_listens_keeps_no_start_waiting() -> None:
    async with embedder(DOWN, openai_timeout=1) as made:
        await made.ready()
        with pytest.raises(EmbedderUnavailable):
            await made.embed(TEXTS)

        assert made.dimension == 0


async def test_closing_ends_a_call_that_waits_for_its_next_try(provider: Provider) -> None:
    provider.always = Fault(429, retry_after="20")
    async with embedder(provider.url, openai_timeout=60) as made, anyio.create_task_group() as tasks:
        start = time.monotonic()

        async def call() -> None:
            with pytest.raises(EmbedderUnavailable, match="closed"):
                await made.embed(TEXTS)

        tasks.start_soon(call)
        await anyio.to_thread.run_sync(provider.was_asked.wait, BOUND)
        await made.aclose()

    assert time.monotonic() - start < 10


async def test_more_than_the_model_reads_is_not_sent(provider: Provider) -> None:
    async with embedder(provider.url, openai_max_tokens=16) as made:
        await made.embed(["word " * 40, "", "half \ud83d of a pair"])

    assert provider.asked[0]["input"] == [("word " * 16).strip(), " ", "half ? of a pair"]


@pytest.mark.parametrize(
    ("text", "least"),
    [
        ("The committee met on Tuesday and didn't decide what to do about the bees on the roof.", 1.0),
        ("for key, row in zip(keys, rows, strict=True): self._hold[key] = row / np.linalg.norm(row)", 1.0),
        ("今日は天気がいいです。明日は東京に行きます。", 1.0),
        ("Die Krankenversicherungsbeiträge steigen im nächsten Jahr, obwohl viele dagegen sind.", 0.8),
    ],
    ids=["English", "code", "Japanese", "German"],
)
def test_tokens_are_estimated_rather_too_many_than_too_few(model_folder: Path, text: str, least: float) -> None:
    estimate = OpenAiEmbedder(read_settings()).token_ends(text)

    assert len(estimate) >= least * len(OnnxEmbedder(model_folder, threads=1).token_ends(text))


def test_the_key_is_in_no_representation() -> None:
    assert KEY not in repr(read_settings(openai_api_key=KEY))
