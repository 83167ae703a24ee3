"""Tokens of a request's choices, from the engine's frames to the chunks that Dynamo's frontend takes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any

from firelane.errors import FirelaneError
from firelane.gateway.requests.formats import params_of
from firelane.wire.frames import Finished, FinishReason, NewRequest, PagesAt, Started, TokenLogprobs

Chunk = dict[str, Any]
"""GenerateChunk in dynamo.common.backend.engine."""
REASONS: dict[FinishReason, str] = {
    "stop": "stop",
    "length": "length",
    "abort": "cancelled",
    "error": "error: the engine could not go on",
}


class Choice:
    """Sink of one sequence. Keeps what has come since the last chunk."""

    def __init__(self, request: NewRequest, index: int, on_news: Callable[[], None]) -> None:
        self.id, self.index = request.id, index
        self.tokens = self.cached_tokens = 0
        self.prompt_tokens = len(request.prompt) // 4
        self.error: FirelaneError | None = None
        self.pages: PagesAt | None = None
        self.is_open = True
        self._reports = request.sampling.logprobs
        self._on_news = on_news
        self._new: list[int] = []
        self._logprobs: list[TokenLogprobs] = []
        self._prompt_logprobs: list[TokenLogprobs] = []
        self._reason: FinishReason = "stop"
        self._is_ended = False

    def on_started(self, started: Started, planned_s: float) -> None:
        del planned_s
        self.cached_tokens = started.cached_tokens

    def on_logprobs(self, entry: TokenLogprobs) -> None:
        at_prompt = entry.position < self.prompt_tokens
        (self._prompt_logprobs if at_prompt else self._logprobs).append(entry)

    def on_embedding(self, values: bytes) -> None:
        del values

    def ending(self, finished: Finished) -> None:
        self._reason = finished.reason

    def hold(self) -> None:
        """A chunk has all that is new when it is taken."""

    def release(self) -> None:
        pass

    def on_tokens(self, tokens: Sequence[int], now_s: float) -> None:
        del now_s
        self.tokens += len(tokens)
        self._new += tokens
        self._on_news()

    def on_waiting(self) -> None:
        pass

    def on_pages(self, pages: PagesAt) -> None:
        self.pages = pages

    def on_end(self) -> None:
        self._is_ended = True
        self._on_news()

    def on_failed(self, error: FirelaneError) -> None:
        self.error = error
        self._on_news()

    def cancel(self) -> None:
        self._reason = "abort"
        self.on_end()

    def take(self) -> Chunk | None:
        """All that is new, as one chunk; None for nothing. Raises the error of a choice that failed."""
        if self.error is not None:
            raise self.error
        if not self.is_open or not (self._new or self._is_ended):
            return None
        chunk: Chunk = {"token_ids": self._new, "index": self.index}
        if self._reports >= 0 and self._new:
            chunk |= _logprobs(self._logprobs)
        self._new, self._logprobs = [], []
        if self._is_ended:
            self.is_open = False
            chunk["finish_reason"] = REASONS[self._reason]
            if self._prompt_logprobs:
                chunk["engine_data"] = {"prompt_logprobs": _of_prompt(self._prompt_logprobs)}
        return chunk


class Choices:
    """All choices of one request."""

    def __init__(self, requests: Sequence[NewRequest]) -> None:
        self._news = asyncio.Event()
        self.all = [Choice(request, index, self._news.set) for index, request in enumerate(requests)]

    def cancel(self) -> None:
        for choice in self.all:
            choice.cancel()

    def handed_over(self) -> Chunk:
        """The words for a worker for decode of a prompt: where its pages are, if they can be had."""
        pages = self.all[0].pages
        return {} if pages is None else {"kv_transfer_params": params_of(pages)}

    async def chunks(self) -> AsyncGenerator[Chunk, None]:
        """Yield chunks as they come; a reader that is slow gets several tokens in one. Dynamo's frontend
        reads up to the first end of a choice: the ends of several come behind all tokens, in order, the first
        with the usage."""
        ends: list[Chunk] = []
        while any(choice.is_open for choice in self.all):
            await self._news.wait()
            self._news.clear()
            for choice in self.all:
                chunk = choice.take()
                if chunk is not None and not choice.is_open:
                    chunk, end = _parted(chunk) if len(self.all) > 1 else (None, chunk)
                    ends.append(end)
                if chunk is not None:
                    yield chunk
        ends.sort(key=lambda end: end["index"])
        ends[0]["completion_usage"] = self._usage()
        for end in ends:
            yield end

    def _usage(self) -> dict[str, Any]:
        prompt, output = self.all[0].prompt_tokens, sum(choice.tokens for choice in self.all)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": output,
            "total_tokens": prompt + output,
            "prompt_tokens_details": {"cached_tokens": self.all[0].cached_tokens},
        }


def _parted(chunk: Chunk) -> tuple[Chunk | None, Chunk]:
    """Tokens, if there are any, and the end."""
    names = ("finish_reason", "engine_data")
    end: Chunk = {"token_ids": [], "index": chunk["index"]}
    end |= {name: chunk[name] for name in names if name in chunk}
    tokens = {name: value for name, value in chunk.items() if name not in names}
    return tokens if tokens["token_ids"] else None, end


def _logprobs(entries: Sequence[TokenLogprobs]) -> Chunk:
    """The frontend finds the tokens' texts itself."""
    return {
        "log_probs": [entry.logprob for entry in entries],
        "top_logprobs": [
            [
                {"rank": rank, "token_id": token, "token": None, "logprob": logprob}
                for rank, token, logprob in _ranked(entry)
            ]
            for entry in entries
        ],
    }


def _of_prompt(entries: Sequence[TokenLogprobs]) -> list[dict[str, dict[str, Any]] | None]:
    """The first token has none."""
    of_tokens = [
        {str(token): {"rank": rank, "logprob": logprob} for rank, token, logprob in _ranked(entry)}
        | ({} if entry.token in entry.top_ids else {str(entry.token): {"logprob": entry.logprob}})
        for entry in entries
    ]
    return [None, *of_tokens]


def _ranked(entry: TokenLogprobs) -> list[tuple[int, int, float]]:
    return [
        (rank, token, logprob)
        for rank, (token, logprob) in enumerate(zip(entry.top_ids, entry.top_logprobs, strict=True), 1)
    ]
