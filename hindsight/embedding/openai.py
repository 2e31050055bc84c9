"""Embeddings from a service that speaks OpenAI's API: OpenAI itself, Ollama, vLLM or any other.

The server starts, stores and finds by words while the service is down, so nothing here waits for it unasked. What a
vector's dimension is, the settings say or the first answer tells: until then `dimension` is 0, and a bank goes by the
one it has written down. A service that has just failed is left alone for REST seconds, in which calls fail at once: a
retain does not wait for what the one before it has waited for in vain.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import time
from collections.abc import Sequence
from urllib.parse import urlsplit

import numpy as np
import openai

from hindsight.embedding import Vectors
from hindsight.errors import EmbedderUnavailable, TextRefused
from hindsight.settings import Settings

READY = 5.0  # seconds that `ready` waits for the service
REST = 2.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.25, 4.0
_PASSING = (openai.APIConnectionError, openai.RateLimitError, openai.InternalServerError)
# What the SDK meets in an answer that is none.
_NO_ANSWER = (ValueError, TypeError, AttributeError, OverflowError, RecursionError)
_REFUSING = (400, 413, 422)  # the statuses of a service that works, but not on these texts
# Four letters, a digit or any other character. Against MiniLM's tokenizer: a fifth too many in English prose and code,
# as many for scripts without spaces, a tenth too few in German, whose words it does not know.
_TOKEN = re.compile(r"[A-Za-z]{1,4}|\S")
_LOOPBACK = ("localhost", "127.0.0.1", "::1")

logger = logging.getLogger(__name__)


class OpenAiEmbedder:
    """Fulfils Embedder with the service that the settings name. Tokens are estimated, rather too many than too few."""

    def __init__(self, settings: Settings) -> None:
        self.name = settings.openai_model
        self.dimension = settings.openai_dimensions
        self.max_tokens = settings.openai_max_tokens
        self._asked: int | openai.Omit = settings.openai_dimensions or openai.omit
        self._batch = settings.openai_batch
        self._timeout = settings.openai_timeout
        self._client = _client(settings)
        self._closing = asyncio.Event()
        self._rest_until = 0.0

    async def ready(self) -> None:
        """Return when the service has answered or READY seconds have passed: what is down now may be up later."""
        try:
            async with asyncio.timeout(READY):
                await self.embed(["ready"])
        except TimeoutError:
            logger.warning("the embedding service does not answer yet; until it does, only words are searched")
        except EmbedderUnavailable:
            if self._closing.is_set():
                raise

    async def embed(self, texts: Sequence[str]) -> Vectors:
        """float32 [len(texts), dimension]; see Embedder. Sends `openai_batch` texts at a time, one after another."""
        rows = []
        for start in range(0, len(texts), self._batch):
            part = [self._sendable(text) for text in texts[start : start + self._batch]]
            rows.append(self._checked(await self._request(part), len(part)))
        return np.concatenate(rows) if rows else np.empty((0, self.dimension), np.float32)

    def token_ends(self, text: str) -> list[int]:
        """As Embedder says, by estimate: services do not tell how their models cut a text."""
        return [match.end() for match in _TOKEN.finditer(text)]

    async def aclose(self) -> None:
        """Close the connections; calls under way fail."""
        self._closing.set()
        await self._client.close()

    def _sendable(self, text: str) -> str:
        """As much of a text as the model reads, in characters that UTF-8 has."""
        if len(text) > self.max_tokens:
            ends = self.token_ends(text)
            text = text[: ends[self.max_tokens - 1]] if len(ends) > self.max_tokens else text
        # Services refuse an empty text.
        return text.encode("utf-8", "replace").decode() or " "

    async def _request(self, texts: list[str]) -> object:
        """The service's answer; asks again while it may get better. Raises EmbedderUnavailable."""
        end, pause = time.monotonic() + self._timeout, _FIRST_PAUSE
        while True:
            self._check_open()
            try:
                # Half the time, so that one request that hangs does not use up all of it.
                async with asyncio.timeout(min(self._timeout / 2, end - time.monotonic())):
                    return await self._client.embeddings.create(
                        input=texts, model=self.name, dimensions=self._asked, encoding_format="float"
                    )
            except (*_PASSING, TimeoutError) as error:
                wait = max(pause, _retry_after(error))
                if time.monotonic() + wait >= end:
                    raise self._failed("does not answer at the moment", error) from error
            except openai.APIError as error:
                if isinstance(error, openai.APIStatusError) and error.status_code in _REFUSING:
                    logger.warning("the embedding service refuses a text: status %d", error.status_code)
                    raise TextRefused("the embedding service refuses a text") from error
                raise self._failed("refuses the request", error) from error
            except _NO_ANSWER as error:
                raise self._failed("answers with something else than vectors", error) from error
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._closing.wait(), wait)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _check_open(self) -> None:
        if self._closing.is_set():
            raise EmbedderUnavailable("the embedder is closed")
        if time.monotonic() < self._rest_until:
            raise EmbedderUnavailable("the embedding service does not work at the moment")

    def _failed(self, what: str, error: Exception) -> EmbedderUnavailable:
        self._rest_until = time.monotonic() + REST
        # Not what the service says: that may quote the key or the texts.
        told = f"status {error.status_code}" if isinstance(error, openai.APIStatusError) else type(error).__name__
        logger.warning("the embedding service %s: %s", what, told)
        return EmbedderUnavailable(f"the embedding service {what}")

    def _checked(self, answer: object, count: int) -> Vectors:
        """The vectors of an answer in the order of their texts, at length 1. Raises EmbedderUnavailable."""
        try:
            found = {item.index: item.embedding for item in answer.data}  # type: ignore[attr-defined]  # the SDK checks no answer
            rows = np.array([found[place] for place in range(count)], np.float64)
        except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
            raise self._failed("answers with something else than a vector for each text", error) from error
        lengths = np.linalg.norm(rows, axis=-1, keepdims=True)
        if len(found) != count or rows.ndim != 2 or not (np.isfinite(lengths) & (lengths > 0)).all():
            raise self._failed("answers with something else than a vector for each text", ValueError())
        self.dimension = self.dimension or rows.shape[1]
        if rows.shape[1] != self.dimension:
            raise self._failed(f"answers with {rows.shape[1]} numbers a vector, not {self.dimension}", ValueError())
        unit: Vectors = (rows / lengths).astype(np.float32)
        return unit


def _client(settings: Settings) -> openai.AsyncOpenAI:
    url = settings.openai_base_url
    # A proxy of the environment is for the world outside.
    outside = urlsplit(url).hostname not in _LOOPBACK
    return openai.AsyncOpenAI(
        base_url=url,
        # The SDK insists on a key; services that need none do not look at it.
        api_key=settings.openai_api_key.get_secret_value() or "none",
        max_retries=0,
        http_client=openai.DefaultAsyncHttpxClient(base_url=url, trust_env=outside),
    )


def _retry_after(error: Exception) -> float:
    """The seconds that the service asks to be left alone for, 0 where it does not say."""
    if not isinstance(error, openai.APIStatusError):
        return 0.0
    try:
        return float(error.response.headers.get("retry-after", 0))
    except ValueError:  # a date: rare, and our own pause does
        return 0.0
