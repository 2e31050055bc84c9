"""all-MiniLM-L6-v2 on onnxruntime: texts become vectors inside this process, without a network.

One text is one run. The model's integer layers scale their input to the largest number in it, so in a batch a text's
vector would depend on its neighbours (cosine down to .98); nor would a batch be faster.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from pathlib import Path

import anyio
import anyio.to_thread
import numpy as np

# onnxruntime reports to its maker unless this is set before it is imported.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

import onnxruntime
from onnxruntime.capi.onnxruntime_pybind11_state import Fail, RuntimeException
from tokenizers import Encoding, Tokenizer

from hindsight.embedding import Parted, Vectors
from hindsight.errors import EmbedderUnavailable

_ERRORS_ONLY = 3
_INSTALL = "Tell the operator to run scripts/install."
_WHOLE, _TOKENS = "embedding", "states"  # the model's outputs
# Characters of a short text, and of how many of those the tokens are kept: each is cut first and embedded soon after.
_SHORT, _RECENT = 500, 256
# Characters that nearly always hold as many tokens as the model takes; a megabyte takes half a second to tokenise.
_ENOUGH = 4096
_BEHIND = 5  # a third of the time that others get which compete for the same core
# A long text is cut before a character that no token reaches over, behind so many others.
_EDGE, _PART = re.compile("[ \t\n\r!-/:-@\\[-`{-~\u4e00-\u9fff]"), 1 << 16


@dataclass(frozen=True, slots=True)
class _Model:
    """The model, and the threads on which calls of several texts run it."""

    session: onnxruntime.InferenceSession
    workers: ThreadPoolExecutor


class OnnxEmbedder:
    """Fulfils PartsEmbedder with the model in `folder`, as scripts/build_model.py makes it, on `threads` threads.

    The model is loaded at the first need of it, off the event loop; calls made meanwhile wait. Raises
    EmbedderUnavailable when there is no model.
    """

    def __init__(self, folder: Path, threads: int) -> None:
        try:
            manifest = json.loads((folder / "model.json").read_bytes())
        except OSError as error:
            raise EmbedderUnavailable("the embedding model is not installed", next_action=_INSTALL) from error
        self.name: str = manifest["name"]
        self.dimension: int = manifest["dimension"]
        self.max_tokens: int = manifest["max_tokens"]
        self._digests: dict[str, str] = manifest["files"]
        self._folder = folder
        self._threads = threads
        self._turns = anyio.CapacityLimiter(threads)
        self._opening = anyio.Lock()
        self._model: _Model | None = None
        self._closed = False
        self._lately = lru_cache(maxsize=_RECENT)(self._tokenised)

    async def ready(self) -> None:
        """Return once the model is loaded. Raises EmbedderUnavailable when its files are damaged, or after aclose."""
        await self._opened()

    async def embed(self, texts: Sequence[str]) -> Vectors:
        """float32 [len(texts), dimension]; see Embedder. A text alone goes ahead of those in longer calls."""
        found = await self.embed_parts([Parted(text) for text in texts])
        return np.concatenate(found) if found else np.empty((0, self.dimension), np.float32)

    async def embed_parts(self, texts: Sequence[Parted]) -> list[Vectors]:
        """See PartsEmbedder; as for `embed`."""
        model = await self._opened()
        if len(texts) == 1:
            return [await anyio.to_thread.run_sync(self._vectors, model.session, texts[0], limiter=self._turns)]
        found: dict[int, Vectors] = {}
        remaining = iter(enumerate(texts))
        loop = asyncio.get_running_loop()

        async def work() -> None:
            for row, text in remaining:
                found[row] = await loop.run_in_executor(model.workers, self._vectors, model.session, text)

        try:
            async with anyio.create_task_group() as tasks:
                # Two for each thread, which else would wait for the event loop between two texts.
                for _ in range(min(2 * self._threads, len(texts))):
                    tasks.start_soon(work)
        except ExceptionGroup as group:
            first = group.exceptions[0]
            raise first from first.__cause__
        return [found[row] for row in range(len(texts))]

    def token_ends(self, text: str) -> list[int]:
        """For each token of `text`, uncut, the offset in characters at which it ends.

        Takes half a second for a million characters, in which other threads run: a long text belongs in a thread.
        """
        if len(text) <= _SHORT:
            return [end for _, end in self._lately(text).offsets[1:-1]]  # without the two that mark start and end
        starts = [0]
        while edge := _EDGE.search(text, starts[-1] + _PART):
            starts.append(edge.start())
        parts = [_encodable(text[start:end]) for start, end in pairwise([*starts, len(text)])]
        # Not `encode`, which holds Python's lock all the time; so does what lists the tokens of one part.
        encoded = self._tokenizer.encode_batch(parts, add_special_tokens=False)
        return [start + end for start, part in zip(starts, encoded, strict=True) for _, end in part.offsets]

    async def aclose(self) -> None:
        """Let go of the model; what is under way ends as usual, later calls raise EmbedderUnavailable."""
        self._closed = True
        self._model = None  # its threads end with it

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        tokenizer: Tokenizer = Tokenizer.from_buffer(self._intact("tokenizer.json"))
        tokenizer.no_padding()
        tokenizer.no_truncation()
        return tokenizer

    async def _opened(self) -> _Model:
        async with self._opening:
            if self._closed:
                raise EmbedderUnavailable("the embedder is closed")
            if self._model is None:
                session = await anyio.to_thread.run_sync(self._open, limiter=self._turns)
                self._model = _Model(session, ThreadPoolExecutor(self._threads, "embed", _step_back))
            return self._model

    def _open(self) -> onnxruntime.InferenceSession:
        onnxruntime.disable_telemetry_events()
        options = onnxruntime.SessionOptions()
        options.log_severity_level = _ERRORS_ONLY
        # A text is too short to be worth sharing: two threads on two texts are faster than two on each.
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        self._tokenizer  # noqa: B018  # loaded here, in the thread, rather than at the first text
        model = onnxruntime.InferenceSession(self._intact("model.onnx"), options, providers=["CPUExecutionProvider"])
        if {_WHOLE, _TOKENS} - {output.name for output in model.get_outputs()}:
            raise EmbedderUnavailable("the embedding model is another version's", next_action=_INSTALL)
        return model

    def _intact(self, name: str) -> bytes:
        try:
            content = (self._folder / name).read_bytes()
        except OSError as error:
            raise self._damaged() from error
        if hashlib.sha256(content).hexdigest() != self._digests[name]:
            raise self._damaged()
        return content

    def _damaged(self) -> EmbedderUnavailable:
        return EmbedderUnavailable("the embedding model's files are damaged", next_action=_INSTALL)

    def _vectors(self, session: onnxruntime.InferenceSession, parted: Parted) -> Vectors:
        tokens, spans = self._first_tokens(parted.text)
        input_ids = np.array([tokens], np.int64)
        wanted = [_WHOLE, _TOKENS] if parted.stops else [_WHOLE]
        try:
            found = session.run(wanted, {"input_ids": input_ids, "attention_mask": np.ones_like(input_ids)})
        except (Fail, RuntimeException) as error:
            raise EmbedderUnavailable("the embedding model failed") from error
        whole: Vectors = found[0]
        return np.concatenate([whole, _pooled(found[1][0], spans, parted.stops, whole)]) if parted.stops else whole

    def _tokenised(self, text: str) -> Encoding:
        return self._tokenizer.encode(_encodable(text))

    def _first_tokens(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """As many tokens of `text` as fit, between the two that mark its start and end: their ids, and their bounds."""
        # No token reaches over a blank, so the words before one make the same tokens whatever follows.
        head = text[: max(text.rfind(" ", 0, _ENOUGH), 0)] if len(text) > _ENOUGH else text
        tokens = self._lately(text) if len(text) <= _SHORT else self._tokenised(head)
        if len(tokens.ids) < self.max_tokens and head != text:
            tokens = self._tokenised(text)
        ids, spans = tokens.ids, tokens.offsets
        if len(ids) <= self.max_tokens:
            return ids, spans
        return [*ids[: self.max_tokens - 1], ids[-1]], [*spans[: self.max_tokens - 1], spans[-1]]


def _pooled(states: Vectors, spans: Sequence[tuple[int, int]], stops: Sequence[int], whole: Vectors) -> Vectors:
    """A vector for each part: the mean of its tokens' states, of length 1; `whole` [1, dimension] where it has none."""
    starts, ends = np.array(spans, np.int64).T
    # The markers of a text's start and end have no length.
    part = np.where(ends > starts, np.searchsorted(stops, starts, side="right"), -1)
    totals = np.stack([states[part == place].sum(axis=0) for place in range(len(stops))])
    sizes = np.linalg.norm(totals, axis=1, keepdims=True)
    pooled: Vectors = np.where(sizes > 0, totals / np.maximum(sizes, np.finfo(np.float32).tiny), whole)
    return pooled


def _step_back() -> None:
    """Let what somebody waits for go first: a load takes all the time there is."""
    if sys.platform == "linux":  # where a thread has a priority of its own
        os.nice(_BEHIND)


def _encodable(text: str) -> str:
    """`text` with a question mark for each half surrogate pair, which JSON can carry but UTF-8 can not."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()
