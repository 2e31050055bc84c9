"""all-MiniLM-L6-v2 on onnxruntime: texts become vectors inside this process, without a network.

One text is one run. The model's integer layers scale their input to the largest number in it, so in a batch a text's
vector would depend on its neighbours (cosine down to .98); nor would a batch be faster.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import anyio
import anyio.to_thread
import numpy as np

# onnxruntime reports to its maker unless this is set before it is imported.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

import onnxruntime
from onnxruntime.capi.onnxruntime_pybind11_state import Fail, RuntimeException
from tokenizers import Tokenizer

from hindsight.embedding import Vectors
from hindsight.errors import EmbedderUnavailable

_ERRORS_ONLY = 3
# Characters that nearly always hold as many tokens as the model takes; a megabyte takes half a second to tokenise.
_ENOUGH = 4096


class OnnxEmbedder:
    """Fulfils Embedder with the model in `folder`, as scripts/build_model.py makes it, on at most `threads` threads.

    The model is loaded at the first need of it, off the event loop; calls made meanwhile wait. Raises
    EmbedderUnavailable when there is no model.
    """

    def __init__(self, folder: Path, threads: int) -> None:
        try:
            manifest = json.loads((folder / "model.json").read_bytes())
        except OSError as error:
            raise EmbedderUnavailable(
                "the embedding model is not installed", next_action="Tell the operator to run scripts/install."
            ) from error
        self.name: str = manifest["name"]
        self.dimension: int = manifest["dimension"]
        self.max_tokens: int = manifest["max_tokens"]
        self._digests: dict[str, str] = manifest["files"]
        self._folder = folder
        self._threads = threads
        self._turns = anyio.CapacityLimiter(threads)
        self._opening = anyio.Lock()
        self._session: onnxruntime.InferenceSession | None = None
        self._closed = False

    async def ready(self) -> None:
        """Return once the model is loaded. Raises EmbedderUnavailable when its files are damaged, or after aclose."""
        await self._opened()

    async def embed(self, texts: Sequence[str]) -> Vectors:
        """float32 [len(texts), dimension]; see Embedder. A call waits for one text at most of each call before it."""
        session = await self._opened()
        vectors = np.empty((len(texts), self.dimension), np.float32)
        remaining = iter(enumerate(texts))

        async def work() -> None:
            for row, text in remaining:
                vectors[row] = await anyio.to_thread.run_sync(self._vector, session, text, limiter=self._turns)

        try:
            async with anyio.create_task_group() as workers:
                for _ in range(min(self._threads, len(texts))):
                    workers.start_soon(work)
        except ExceptionGroup as group:
            first = group.exceptions[0]
            raise first from first.__cause__
        return vectors

    def token_ends(self, text: str) -> list[int]:
        """For each token of `text`, uncut, the offset in characters at which it ends.

        Takes half a second for a million characters, in which other threads run: a long text belongs in a thread.
        """
        return [end for _, end in self._tokenizer.encode(_encodable(text), add_special_tokens=False).offsets]

    async def aclose(self) -> None:
        """Let go of the model; what is under way ends as usual, later calls raise EmbedderUnavailable."""
        self._closed = True
        self._session = None

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        tokenizer: Tokenizer = Tokenizer.from_buffer(self._intact("tokenizer.json"))
        tokenizer.no_padding()
        tokenizer.no_truncation()
        return tokenizer

    async def _opened(self) -> onnxruntime.InferenceSession:
        async with self._opening:
            if self._closed:
                raise EmbedderUnavailable("the embedder is closed")
            if self._session is None:
                self._session = await anyio.to_thread.run_sync(self._open, limiter=self._turns)
            return self._session

    def _open(self) -> onnxruntime.InferenceSession:
        onnxruntime.disable_telemetry_events()
        options = onnxruntime.SessionOptions()
        options.log_severity_level = _ERRORS_ONLY
        # A text is too short to be worth sharing: two threads on two texts are faster than two on each.
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        self._tokenizer  # noqa: B018  # loaded here, in the thread, rather than at the first text
        return onnxruntime.InferenceSession(self._intact("model.onnx"), options, providers=["CPUExecutionProvider"])

    def _intact(self, name: str) -> bytes:
        try:
            content = (self._folder / name).read_bytes()
        except OSError as error:
            raise self._damaged() from error
        if hashlib.sha256(content).hexdigest() != self._digests[name]:
            raise self._damaged()
        return content

    def _damaged(self) -> EmbedderUnavailable:
        return EmbedderUnavailable(
            "the embedding model's files are damaged", next_action="Tell the operator to run scripts/install."
        )

    def _vector(self, session: onnxruntime.InferenceSession, text: str) -> Vectors:
        input_ids = np.array([self._first_tokens(text)], np.int64)
        try:
            [vectors] = session.run(None, {"input_ids": input_ids, "attention_mask": np.ones_like(input_ids)})
        except (Fail, RuntimeException) as error:
            raise EmbedderUnavailable("the embedding model failed") from error
        vector: Vectors = vectors[0]
        return vector

    def _first_tokens(self, text: str) -> list[int]:
        """The ids of as many tokens of `text` as fit, between the two that mark its start and end."""
        # No token reaches over a blank, so the words before one make the same tokens whatever follows.
        head = text[: max(text.rfind(" ", 0, _ENOUGH), 0)] if len(text) > _ENOUGH else text
        tokens: list[int] = self._tokenizer.encode(_encodable(head)).ids
        if len(tokens) < self.max_tokens and head != text:
            tokens = self._tokenizer.encode(_encodable(text)).ids
        return tokens if len(tokens) <= self.max_tokens else [*tokens[: self.max_tokens - 1], tokens[-1]]


def _encodable(text: str) -> str:
    """`text` with a question mark for each half surrogate pair, which JSON can carry but UTF-8 can not."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()
