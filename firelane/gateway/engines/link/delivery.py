"""Delivery of what an engine's steps bring to the sinks of the requests in flight there."""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable
from typing import NamedTuple

from firelane.errors import FirelaneError, RequestError
from firelane.gateway.engines.in_flight import InFlight
from firelane.gateway.engines.recovery.ejection import Wait
from firelane.gateway.engines.routed_engine import Load
from firelane.wire.frames import Finished, StepFrame, TokenLogprobs

log = logging.getLogger(__name__)


class Ends(NamedTuple):
    """returned: requests that the engine gives back; handed_over: those that go on at another one; ended:
    those that came to their end."""

    returned: list[InFlight]
    handed_over: list[InFlight]
    ended: list[InFlight]


class Delivery:
    """Requests in flight at one engine, by id, for as long as its connection lasts. Owned by its link.

    load: the work that lies before the engine. step_prompt_tokens: of the prompts that the last step began.
    waits: of requests that got their first token here in it. leaving: ids of requests that were stopped here,
    of which the engine has not told the end yet: what it still tells of these ids is not of requests that
    come back.
    """

    def __init__(self, abort: Callable[[int], object]) -> None:
        """abort: stops a request at the engine."""
        self.flights: dict[int, InFlight] = {}
        self.leaving: set[int] = set()
        self.load = Load()
        self.step_prompt_tokens = 0
        self.waits: list[Wait] = []
        self._sent: dict[int, tuple[float, int, int]] = {}
        self._begun: list[tuple[InFlight, int]] = []
        self._runs: defaultdict[int, list[int]] = defaultdict(list)
        """Tokens that wait for those of frames that are here already."""
        self._computed_tokens = 0
        self._abort = abort

    def add(self, flight: InFlight) -> None:
        flight.running = False
        self.flights[flight.id] = flight
        self.load.add(flight)
        computed = self._computed_tokens - sum(tokens for _, tokens in self._begun)
        self._sent[flight.id] = time.monotonic(), computed, len(flight.tokens)

    def remove(self, request_id: int) -> InFlight | None:
        flight = self.flights.pop(request_id, None)
        self._sent.pop(request_id, None)
        self.load.settle(self.flights)
        return flight

    def leave(self, request_id: int) -> bool:
        """A request is stopped here. False where it is not here."""
        if self.remove(request_id) is None:
            return False
        self.leaving.add(request_id)
        return True

    def gone(self, request_id: int) -> InFlight | None:
        """The engine has this request no more; returns it if it was here until now."""
        self.leaving.discard(request_id)
        return self.remove(request_id)

    def clear(self) -> list[InFlight]:
        """All, which are nobody's from now on."""
        gone, self.flights, self.load = list(self.flights.values()), {}, Load()
        self._sent.clear()
        self._begun.clear()
        self._runs.clear()
        self.leaving.clear()
        return gone

    def deliver(self, frame: StepFrame, now_s: float, *, more: bool = False) -> None:
        """All but the ends themselves. more: the next step's frame is here already, so that tokens wait for
        it, but for those of requests that end: a stream gets all that came together in one write."""
        self.step_prompt_tokens = 0
        if frame.counts:
            _deliver_ragged(frame, self, now_s)
        else:
            if frame.started or frame.logprobs or frame.finished:
                self._before_tokens(frame, now_s)
            self._gather(frame.ids, frame.tokens)
        if not more:
            self._hand_over(now_s)
        elif frame.finished:
            for finished in frame.finished:
                self.hand_over_of(finished.id, now_s)
        self.load.settle(self.flights)
        self.waits = self._first_tokens(now_s) if self._begun else []

    def _gather(self, ids: list[int], tokens: list[int]) -> None:
        """One token of each of these requests."""
        runs = self._runs
        for request_id, token in zip(ids, tokens, strict=True):
            runs[request_id].append(token)

    def gather(self, request_id: int, token: int) -> None:
        """Its next token."""
        self._runs[request_id].append(token)

    def _hand_over(self, now_s: float) -> None:
        """The sinks get the tokens that have been gathered."""
        flights = self.flights
        runs, self._runs = self._runs, defaultdict(list)
        for request_id, run in runs.items():
            flight = flights.get(request_id)
            if flight is None:
                continue
            flight.tokens.fromlist(run)
            try:
                flight.sink.on_tokens(run, now_s)
            except Exception:
                self._drop(request_id)

    def hand_over_of(self, request_id: int, now_s: float) -> None:
        """One sink gets its tokens before something else."""
        run = self._runs.pop(request_id, None)
        if run is not None:
            self._tell_tokens(request_id, run, now_s)

    def _first_tokens(self, now_s: float) -> list[Wait]:
        """Waits of requests that have begun, and drawn since."""
        waits: list[Wait] = []
        still: list[tuple[InFlight, int]] = []
        for flight, tokens in self._begun:
            sent = self._sent.get(flight.id)
            if sent is None:
                continue
            at_s, computed, before = sent
            if len(flight.tokens) > before:
                waits.append(Wait(self._computed_tokens - computed, now_s - at_s))
                del self._sent[flight.id]
            else:
                still.append((flight, tokens))
        self._begun = still
        return waits

    def end(self, finishes: list[Finished]) -> Ends:
        """Requests that the engine has no more."""
        returned: list[InFlight] = []
        handed_over: list[InFlight] = []
        ended: list[InFlight] = []
        for finished in finishes:
            flight = self.gone(finished.id)
            if flight is None:
                continue
            if finished.reason == "abort":
                returned.append(flight)
            elif flight.goes_on(finished.reason):
                handed_over.append(flight)
            elif finished.message:
                flight.fail(RequestError(finished.message, code="grammar_failed"))
            else:
                flight.finish(finished.pages)
                ended.append(flight)
        return Ends(returned, handed_over, ended)

    def _before_tokens(self, frame: StepFrame, now_s: float) -> None:
        self.tell_started(frame, now_s)
        for entry in frame.logprobs:
            self.tell_logprobs(entry, now_s)
        self.tell_embeddings(frame)
        for finished in frame.finished:
            self.tell_ending(finished, now_s)

    def tell_started(self, frame: StepFrame, now_s: float) -> None:
        for started in frame.started:
            flight = self.flights.get(started.id)
            if flight is not None:
                flight.running = True
                tokens = max(0, flight.prompt_tokens - started.cached_tokens)
                self._computed_tokens += tokens
                self._begun.append((flight, tokens))
                self.step_prompt_tokens += len(flight.request.prompt) // 4
                first, flight.told = not flight.told, True
                if first:
                    at_s = now_s - started.age_s
                    self._tell(started.id, flight.sink.on_started, started, at_s)

    def tell_logprobs(self, entry: TokenLogprobs, now_s: float) -> None:
        """Each position once, however often the prompt was computed."""
        self.hand_over_of(entry.id, now_s)
        flight = self.flights.get(entry.id)
        if flight is not None and entry.position > flight.reported:
            flight.reported = entry.position
            self._tell(entry.id, flight.sink.on_logprobs, entry)

    def tell_embeddings(self, frame: StepFrame) -> None:
        for embedding in frame.embeddings:
            flight = self.flights.get(embedding.id)
            if flight is not None:
                self._tell(embedding.id, flight.sink.on_embedding, embedding.values)

    def tell_ending(self, finished: Finished, now_s: float) -> None:
        """Not of those that the engine gives up because it ends: they go on elsewhere."""
        self.hand_over_of(finished.id, now_s)
        flight = self.flights.get(finished.id)
        if flight is not None and finished.reason != "abort" and not flight.goes_on(finished.reason):
            self._tell(finished.id, flight.sink.ending, finished)

    def _tell_tokens(self, request_id: int, tokens: list[int], now_s: float) -> None:
        flight = self.flights.get(request_id)
        if flight is not None:
            flight.tokens.fromlist(tokens)
            self._tell(request_id, flight.sink.on_tokens, tokens, now_s)

    def hold(self, request_id: int) -> None:
        """The request's next tokens are of one step: `release` gives out all that they make."""
        flight = self.flights.get(request_id)
        if flight is not None:
            self._tell(request_id, flight.sink.hold)

    def release(self, request_id: int) -> None:
        """Nothing of a request that has ended meanwhile."""
        flight = self.flights.get(request_id)
        if flight is not None:
            self._tell(request_id, flight.sink.release)

    def wants_logprobs(self, request_id: int) -> bool:
        flight = self.flights.get(request_id)
        return flight is not None and flight.request.sampling.logprobs >= 0

    def _tell(self, request_id: int, method: Callable[..., None], *news: object) -> None:
        try:
            method(*news)
        except Exception:
            self._drop(request_id)

    def _drop(self, request_id: int) -> None:
        """A defect in one stream must not end the others."""
        log.exception("request_failed id=%d", request_id)
        flight = self.flights.get(request_id)
        self._abort(request_id)
        if flight is not None:
            flight.fail(FirelaneError("internal error in the token stream"))


def _deliver_ragged(frame: StepFrame, to: Delivery, now_s: float) -> None:
    """A frame in which a request has several tokens, or none: all but the ends themselves."""
    to.tell_started(frame, now_s)
    to.tell_embeddings(frame)
    entries: defaultdict[int, list[TokenLogprobs]] = defaultdict(list)
    for entry in frame.logprobs:
        entries[entry.id].append(entry)
    ending = {finished.id: finished for finished in frame.finished}
    at = 0
    for request_id, count in zip(frame.ids, frame.counts, strict=True):
        run = TokenRun(request_id, frame.tokens[at : at + count], entries.pop(request_id, []))
        run.deliver(to, ending.pop(request_id, None) if count else None, now_s)
        at += count
    for own in entries.values():
        for entry in own:
            to.tell_logprobs(entry, now_s)
    for finished in ending.values():
        to.tell_ending(finished, now_s)


class TokenRun(NamedTuple):
    """The tokens that one request got from one step. entries: all log-probabilities that came with them, in
    the order of their positions."""

    request_id: int
    tokens: list[int]
    entries: list[TokenLogprobs]

    def deliver(self, to: Delivery, finished: Finished | None, now_s: float) -> None:
        """Each token as if it had come in a frame of its own: its log-probability before it, `ending` before
        the last one. What several make goes out in one piece."""
        wants_logprobs = to.wants_logprobs(self.request_id)
        first = len(self.entries) - (len(self.tokens) if wants_logprobs else 0)
        for entry in self.entries[:first]:
            to.tell_logprobs(entry, now_s)
        if len(self.tokens) < 2:
            self._tell(to, finished, now_s, with_logprobs=wants_logprobs)
            return
        to.hand_over_of(self.request_id, now_s)
        to.hold(self.request_id)
        self._tell(to, finished, now_s, with_logprobs=wants_logprobs)
        to.hand_over_of(self.request_id, now_s)
        to.release(self.request_id)

    def _tell(self, to: Delivery, finished: Finished | None, now_s: float, *, with_logprobs: bool) -> None:
        last = len(self.tokens) - 1
        for i, token in enumerate(self.tokens):
            if with_logprobs:
                to.tell_logprobs(self.entries[i - len(self.tokens)], now_s)
            if finished is not None and i == last:
                to.tell_ending(finished, now_s)
            to.gather(self.request_id, token)
