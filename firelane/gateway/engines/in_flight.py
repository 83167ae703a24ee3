"""A request between its submission and its end, with all that another engine needs to go on with it."""

from __future__ import annotations

import logging
import math
import sys
import time
from array import array
from collections.abc import Sequence
from typing import Protocol

import msgspec

from firelane.errors import FirelaneError
from firelane.wire.frames import Finished, FinishReason, NewRequest, PagesAt, Started, TokenLogprobs

log = logging.getLogger(__name__)


class Sink(Protocol):
    """Receives what one engine request produces. Calls come from the event loop, in this order within a
    frame: on_started, on_logprobs, on_embedding, ending, on_tokens, on_end. Where a step gave the request
    several tokens they come between hold and release, each but the first one having been drafted. Nothing
    follows on_end or on_failed. An engine's death between two calls is not seen, but for on_waiting.
    """

    def on_started(self, started: Started, planned_s: float) -> None:
        """Once. planned_s: when the first engine took it out of its queue, by the monotonic clock."""
        ...

    def on_logprobs(self, entry: TokenLogprobs) -> None: ...
    def on_embedding(self, values: bytes) -> None:
        """values: as in wire.Embedding."""
        ...

    def ending(self, finished: Finished) -> None: ...
    def hold(self) -> None:
        """Keep what the next tokens make, to give it out in one piece."""
        ...

    def release(self) -> None:
        """Give out what has been kept."""
        ...

    def on_tokens(self, tokens: Sequence[int], now_s: float) -> None:
        """The next tokens, at least one: those of several steps where they came together."""
        ...

    def on_waiting(self) -> None:
        """Every few seconds while the request has lost its engine and has no new token yet."""
        ...

    def on_pages(self, pages: PagesAt) -> None:
        """Before on_end, where the request has tells_pages."""
        ...

    def on_end(self) -> None: ...
    def on_failed(self, error: FirelaneError) -> None: ...


class InFlight:
    """One submitted request.

    tokens: its output so far. reported: last position whose log-probability the sink has. told: the sink
    knows that it has started. running: its present engine has begun it. proofs, deaths, losses, solo_deaths:
    of engines, without progress between them (Resume tells them apart). kept: tokens at the last loss.
    parked_s: since when it has no engine; resumed_at: tokens that it had when it lost its last one.
    hands_over: its present engine draws one token alone, next_engine goes on; pages_at: that has pages of its
    prompt, once one has; pages_address: as in NewRequest, of that one.
    session: those of one share prefixes; empty where it has none. cached_tokens: of its prompt, likely in its
    engine's cache. chunk_tokens: as in NewRequest, at its present engine. due_s: its deadline by
    time.monotonic(), infinite where it has none. version: of the weights that it is computed with.
    """

    __slots__ = (
        "cached_tokens",
        "chunk_tokens",
        "deaths",
        "due_s",
        "hands_over",
        "kept",
        "losses",
        "next_engine",
        "pages_address",
        "pages_at",
        "parked_s",
        "proofs",
        "reported",
        "request",
        "resumed_at",
        "running",
        "session",
        "sink",
        "solo_deaths",
        "tokens",
        "told",
        "version",
    )

    def __init__(self, request: NewRequest, sink: Sink, session: bytes = b"", version: str = "") -> None:
        self.request = request
        self.session, self.version = session, version
        self.cached_tokens = self.chunk_tokens = 0
        self.sink = sink
        self.tokens = array("i")
        self.reported = 0
        self.told = self.running = self.hands_over = False
        self.pages_at = self.pages_address = self.next_engine = ""
        self.proofs = self.deaths = self.losses = self.solo_deaths = 0
        self.kept = self.resumed_at = 0
        self.parked_s = 0.0
        left_ms = request.deadline_ms
        self.due_s = time.monotonic() + left_ms / 1000 if left_ms else math.inf

    @property
    def id(self) -> int:
        return self.request.id

    @property
    def prompt_tokens(self) -> int:
        """Tokens that the next engine has to compute before it draws: the prompt and the output so far."""
        return len(self.request.prompt) // 4 + len(self.tokens)

    def goes_on(self, reason: FinishReason) -> bool:
        """Its part at one engine ends, not the request."""
        return self.hands_over and reason == "length"

    def finish(self, pages: PagesAt | None = None) -> None:
        """Tell the sink that nothing more comes."""
        try:
            if pages is not None:
                self.sink.on_pages(pages)
            self.sink.on_end()
        except Exception:
            log.exception("request_end_failed")
            self.fail(FirelaneError("internal error at the end of the request"))

    def fail(self, error: FirelaneError) -> None:
        """Tell the sink that the request cannot be served."""
        try:
            self.sink.on_failed(error)
        except Exception:
            log.exception("request_failure_not_reported")

    def have_pages_of(self, engine_id: str, address: str) -> None:
        """The next engine may have pages of its prompt from this one."""
        self.pages_at, self.pages_address = engine_id, address

    def announcement(self, engine_id: str, address: str) -> NewRequest:
        """For the engine that goes on once another one, of this id, has begun."""
        return msgspec.structs.replace(
            self.request,
            grammar=None,
            prediction=b"",
            pages_at=engine_id,
            pages_address=address,
            prefetch=True,
        )

    def continuation(self) -> NewRequest:
        """The request for the next engine."""
        request = self.request
        if self.hands_over:
            sampling = msgspec.structs.replace(request.sampling, max_tokens=len(self.tokens) + 1)
            request = msgspec.structs.replace(request, sampling=sampling)
        if self.pages_at:
            request = msgspec.structs.replace(
                request, pages_at=self.pages_at, pages_address=self.pages_address
            )
        if self.chunk_tokens:
            request = msgspec.structs.replace(request, chunk_tokens=self.chunk_tokens)
        if self.due_s < math.inf:
            left_ms = max(1, round(1000 * (self.due_s - time.monotonic())))
            request = msgspec.structs.replace(request, deadline_ms=left_ms)
        if not self.tokens:
            return request
        output = self.tokens[:]
        if sys.byteorder == "big":
            output.byteswap()
        prompt, start = request.prompt + output.tobytes(), len(request.prompt) // 4
        return msgspec.structs.replace(request, prompt=prompt, output_start=start)
