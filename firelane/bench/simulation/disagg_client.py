"""The client of a simulated request."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from firelane.bench.simulation.disagg_loads import RequestArrival
from firelane.errors import FirelaneError
from firelane.wire.frames import Finished, PagesAt, Started, TokenLogprobs


class SimulatedClient:
    """The sink of a request: the times of its tokens."""

    def __init__(self, arrival: RequestArrival) -> None:
        self.arrived_s, self.prompt_tokens = arrival.at_s, arrival.prompt_tokens
        self.tenant = arrival.tenant
        self.times_s: list[float] = []
        self.has_ended = False

    def on_started(self, started: Started, planned_s: float) -> None: ...
    def on_logprobs(self, entry: TokenLogprobs) -> None: ...
    def on_embedding(self, values: bytes) -> None: ...
    def ending(self, finished: Finished) -> None: ...
    def hold(self) -> None: ...
    def release(self) -> None: ...
    def on_tokens(self, tokens: Sequence[int], now_s: float) -> None:
        self.times_s += [now_s] * len(tokens)

    def on_waiting(self) -> None: ...
    def on_pages(self, pages: PagesAt) -> None: ...
    def on_end(self) -> None:
        self.has_ended = True

    def on_failed(self, error: FirelaneError) -> None:
        raise error

    @property
    def gaps_s(self) -> list[float]:
        return [later - earlier for earlier, later in pairwise(self.times_s)]
