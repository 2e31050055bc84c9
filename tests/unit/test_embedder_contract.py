"""What every embedder promises (see Embedder), checked against each of them: one factory a line in FACTORIES."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import anyio
import anyio.lowlevel
import numpy as np
import onnx
import pytest

from hindsight.embedding import Embedder, Parted, PartsEmbedder, Vectors
from hindsight.embedding.batching import BatchingEmbedder
from hindsight.embedding.onnx import OnnxEmbedder
from hindsight.embedding.openai import OpenAiEmbedder
from hindsight.errors import EmbedderUnavailable
from hindsight.settings import read_settings
from tests.doubles import providing

pytestmark = pytest.mark.anyio

# Each gets the model's folder, and the URL of a service that embeds with it.
FACTORIES: dict[str, Callable[[Path, str], Embedder]] = {
    "onnx": lambda model_folder, _: OnnxEmbedder(model_folder, threads=2),
    "openai": lambda _, url: OpenAiEmbedder(
        read_settings(openai_base_url=url, openai_model="a-model", openai_max_tokens=256)
    ),
}
SENTENCES = [
    "Alice moved to Berlin in March.",
    "The cat sleeps on the warm radiator all day.",
    "Our quarterly revenue rose by fourteen percent.",
    "x",
    "Remember to water the tomatoes before the heat comes.",
]
ODD_TEXTS = {
    "empty": "",
    "white space": " \n\t ",
    "a NUL": "before\0after",
    "emoji": "🙂 👩‍👩‍👧‍👦 party 🎉",
    "CJK": "今日は天気がいいです",
    "right to left": "شكرا جزيلا",
    "combining accents": "cafe\u0301 au lait",
    "half a surrogate pair": "broken \ud83d here",
    "a marker of the model": "[SEP] and [MASK]",
    "one endless word": "a" * 20_000,
    "no blank": "今日は天気がいいです" * 2_000,
    "endless white space": " " * 20_000 + "end",
}


@pytest.fixture(scope="module")
def service(model_folder: Path) -> Iterator[str]:
    """The URL of an embedding service with the model behind it."""
    model = OnnxEmbedder(model_folder, threads=2)
    with providing(model.embed) as provider:
        yield provider.url


@pytest.fixture(params=FACTORIES)
async def embedder(request: pytest.FixtureRequest, model_folder: Path, service: str) -> AsyncIterator[Embedder]:
    made = FACTORIES[request.param](model_folder, service)
    yield made
    await made.aclose()


async def alone(embedder: Embedder, text: str) -> Vectors:
    vector: Vectors = (await embedder.embed([text]))[0]
    return vector


async def test_each_text_becomes_a_row_of_length_one(embedder: Embedder) -> None:
    vectors = await embedder.embed(SENTENCES)

    assert vectors.dtype == np.float32
    assert vectors.shape == (len(SENTENCES), embedder.dimension)
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(1, abs=1e-5)


async def test_no_texts_become_no_rows(embedder: Embedder) -> None:
    assert (await embedder.embed([])).shape == (0, embedder.dimension)


async def test_a_text_has_the_same_vector_alone_and_among_others(embedder: Embedder) -> None:
    among_others = await embedder.embed([*SENTENCES, "a long neighbour " * 200])

    for text, vector in zip(SENTENCES, among_others, strict=False):
        assert np.array_equal(await alone(embedder, text), vector), text


async def test_vectors_keep_the_order_of_their_texts(embedder: Embedder) -> None:
    forward = await embedder.embed(SENTENCES)
    backward = await embedder.embed(SENTENCES[::-1])

    assert np.array_equal(forward, backward[::-1])


async def test_two_embedders_agree_on_every_text(
    embedder: Embedder, request: pytest.FixtureRequest, model_folder: Path, service: str
) -> None:
    other = FACTORIES[request.node.callspec.params["embedder"]](model_folder, service)

    assert np.array_equal(await embedder.embed(SENTENCES), await other.embed(SENTENCES))
    await other.aclose()


@pytest.mark.parametrize(
    ("text", "paraphrase", "unrelated"),
    [
        ("The dog chased the ball in the park.", "A puppy ran after a ball outside.", "Interest rates rose again."),
        ("I am allergic to peanuts.", "She can't eat nuts.", "The train to Vienna leaves at nine."),
        ("How do I reset my password?", "I forgot my login and need a new one.", "Bake the bread for an hour."),
    ],
)
async def test_a_paraphrase_is_nearer_than_an_unrelated_sentence(
    embedder: Embedder, text: str, paraphrase: str, unrelated: str
) -> None:
    asked, near, far = await embedder.embed([text, paraphrase, unrelated])

    assert asked @ near > asked @ far + 0.2


async def test_case_and_surrounding_white_space_change_little(embedder: Embedder) -> None:
    plain, shouted = await embedder.embed(["Alice moved to Berlin.", "  ALICE MOVED TO BERLIN.\n"])

    assert plain @ shouted > 0.95


@pytest.mark.parametrize("blanks", [1, 40])
async def test_a_text_longer_than_max_tokens_is_cut_there(embedder: Embedder, blanks: int) -> None:
    beginning = (" " * blanks).join(["tomato"] * embedder.max_tokens)
    vectors = await embedder.embed([beginning, f"{beginning} {'The revenue of the company rose. ' * 300}"])

    assert np.array_equal(vectors[0], vectors[1])


async def test_the_end_of_a_text_that_just_fits_counts(embedder: Embedder) -> None:
    beginning = "tomato " * (embedder.max_tokens // 4)
    first, second = await embedder.embed([f"{beginning} garden", f"{beginning} revenue"])

    assert not np.array_equal(first, second)


@pytest.mark.parametrize("text", ODD_TEXTS.values(), ids=ODD_TEXTS.keys())
async def test_any_text_has_a_vector_and_tokens_that_end_in_it(embedder: Embedder, text: str) -> None:
    vector = await alone(embedder, text)
    ends = embedder.token_ends(text)

    assert np.linalg.norm(vector) == pytest.approx(1, abs=1e-5)
    assert ends == sorted(ends)
    assert all(0 < end <= len(text) for end in ends)


async def test_every_word_ends_with_a_token(embedder: Embedder) -> None:
    assert {3, 7, 11, 12} <= set(embedder.token_ends("The cat sat."))
    assert {1, 6, 9} <= set(embedder.token_ends("🙂 déjà vu"))


async def test_tokens_are_counted_beyond_what_a_vector_can_hold(embedder: Embedder) -> None:
    assert len(embedder.token_ends("tomato " * 5 * embedder.max_tokens)) >= 5 * embedder.max_tokens


async def test_a_long_text_has_the_tokens_of_its_sentences(embedder: Embedder) -> None:
    sentence, times = "Ann\u00e9s tomatoes aren't ripe; \u79cb is near. ", 5_000
    ends = embedder.token_ends(sentence)

    assert embedder.token_ends(sentence * times) == [len(sentence) * at + end for at in range(times) for end in ends]


async def test_many_callers_at_once_each_get_their_own_vector(embedder: Embedder) -> None:
    texts = [f"Fact number {number} is about {SENTENCES[number % len(SENTENCES)]}" for number in range(50)]
    expected = await embedder.embed(texts)
    answers: dict[int, Vectors] = {}

    async def ask(number: int) -> None:
        answers[number] = await alone(embedder, texts[number])

    with anyio.fail_after(30):
        async with anyio.create_task_group() as callers:
            for number in range(50):
                callers.start_soon(ask, number)

    assert np.array_equal(np.stack([answers[number] for number in range(50)]), expected)


async def test_a_short_call_is_answered_while_a_large_one_runs(embedder: Embedder) -> None:
    await embedder.ready()
    finished: list[str] = []

    async def large() -> None:
        await embedder.embed(SENTENCES * 40)
        finished.append("large")

    with anyio.fail_after(30):
        async with anyio.create_task_group() as callers:
            callers.start_soon(large)
            await anyio.lowlevel.checkpoint()
            await alone(embedder, SENTENCES[0])
            finished.append("short")

    assert finished == ["short", "large"]


async def test_other_tasks_run_while_the_embedder_loads_and_works(embedder: Embedder) -> None:
    done = anyio.Event()
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while not done.is_set():
            await anyio.lowlevel.checkpoint()
            turns += 1

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(count_turns)
        await embedder.ready()
        turns_while_loading, turns = turns, 0
        await embedder.embed(["a rather long text " * 60])
        turns_while_working = turns
        done.set()

    assert turns_while_loading > 10
    assert turns_while_working > 10


async def test_a_call_made_before_it_is_ready_waits(embedder: Embedder) -> None:
    answers: list[Vectors] = []

    async def ask() -> None:
        answers.append(await alone(embedder, SENTENCES[0]))

    with anyio.fail_after(30):
        async with anyio.create_task_group() as callers:
            for _ in range(5):
                callers.start_soon(ask)

    assert len(answers) == 5


async def test_a_caller_that_leaves_costs_the_others_nothing(embedder: Embedder) -> None:
    async with anyio.create_task_group() as callers:
        callers.start_soon(embedder.embed, SENTENCES * 40)
        await anyio.lowlevel.checkpoint()
        callers.cancel_scope.cancel()

    with anyio.fail_after(30):
        assert (await embedder.embed(SENTENCES)).shape == (len(SENTENCES), embedder.dimension)


async def test_a_closed_embedder_says_so(embedder: Embedder) -> None:
    await embedder.aclose()

    with pytest.raises(EmbedderUnavailable):
        await embedder.embed(["too late"])


@pytest.fixture
async def parting(embedder: Embedder) -> PartsEmbedder:
    """An embedder that has vectors of parts. One that has not is asked through the one that joins calls."""
    return embedder if isinstance(embedder, PartsEmbedder) else BatchingEmbedder(embedder)


FACTS = "Alice moved to Berlin in March. The soup was far too salty. The rent is very high."
STOPS = (32, 60, len(FACTS))


async def test_a_text_in_parts_has_its_own_vector_first(parting: PartsEmbedder) -> None:
    given = [Parted(FACTS, STOPS), Parted("no parts"), Parted(SENTENCES[0], (10, 32))]
    found = await parting.embed_parts(given)

    assert np.array_equal([rows[0] for rows in found], await parting.embed([each.text for each in given]))
    assert np.linalg.norm(np.concatenate(found), axis=1) == pytest.approx(1, abs=1e-5)
    assert await parting.embed_parts([]) == []


async def test_each_part_of_a_text_has_a_vector_of_what_it_says_or_none_has_one(parting: PartsEmbedder) -> None:
    [rows] = await parting.embed_parts([Parted(FACTS, STOPS)])
    questions = await parting.embed(["Where does she live now?", "How did the food taste?", "Is it an expensive flat?"])

    if isinstance(parting, BatchingEmbedder):
        assert len(rows) == 1
    else:
        assert (questions @ rows[1:].T).argmax(axis=1).tolist() == [0, 1, 2]
        assert ((questions * rows[1:]).sum(axis=1) > questions @ rows[0]).all()


async def test_a_part_of_which_nothing_was_read_has_the_vector_of_its_text(model_folder: Path) -> None:
    embedder = OnnxEmbedder(model_folder, threads=1)
    beginning = "tomato " * embedder.max_tokens
    text = f"{beginning} The revenue of the company rose."
    [rows] = await embedder.embed_parts([Parted(text, (len(beginning), len(text)))])

    assert np.array_equal(rows[2], rows[0])
    assert rows[1] @ rows[0] > 0.95
    await embedder.aclose()


async def test_calls_that_are_joined_each_get_the_parts_of_their_texts(model_folder: Path) -> None:
    embedder = OnnxEmbedder(model_folder, threads=2)
    joined = BatchingEmbedder(embedder, most=2)
    given = [Parted(FACTS, STOPS), *(Parted(text) for text in SENTENCES)]
    found = await joined.embed_parts(given)

    assert [len(rows) for rows in found] == [4, 1, 1, 1, 1, 1]
    assert np.array_equal(found[0], (await embedder.embed_parts(given[:1]))[0])
    await joined.aclose()


def test_a_missing_model_names_the_script_that_installs_it(tmp_path: Path) -> None:
    with pytest.raises(EmbedderUnavailable, match="not installed") as raised:
        OnnxEmbedder(tmp_path / "nowhere", threads=1)

    assert "scripts/install" in raised.value.advice
    assert str(tmp_path) not in str(raised.value.as_json())


@pytest.fixture(params=["model.onnx", "tokenizer.json"])
def damaged_folder(request: pytest.FixtureRequest, model_folder: Path, tmp_path: Path) -> Path:
    folder = Path(shutil.copytree(model_folder, tmp_path / "model"))
    damaged: Path = folder / request.param
    damaged.write_bytes(b"\0" + damaged.read_bytes()[1:])
    return folder


async def test_a_damaged_model_is_refused(damaged_folder: Path) -> None:
    embedder = OnnxEmbedder(damaged_folder, threads=1)

    with pytest.raises(EmbedderUnavailable, match="damaged"):
        await embedder.ready()
    with pytest.raises(EmbedderUnavailable, match="damaged"):
        await embedder.embed(["anything"])


async def test_a_model_of_an_earlier_version_is_refused(model_folder: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(model_folder, tmp_path / "model"))
    model = onnx.load(folder / "model.onnx")
    [tokens] = [output for output in model.graph.output if output.name == "states"]
    model.graph.output.remove(tokens)
    content = model.SerializeToString()
    (folder / "model.onnx").write_bytes(content)
    manifest = json.loads((folder / "model.json").read_text())
    manifest["files"]["model.onnx"] = hashlib.sha256(content).hexdigest()
    (folder / "model.json").write_text(json.dumps(manifest))

    with pytest.raises(EmbedderUnavailable, match="another version's") as raised:
        await OnnxEmbedder(folder, threads=1).ready()
    assert "scripts/install" in raised.value.advice
