"""Engines that can still keep a request's deadline."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

from firelane.gateway.engines.in_flight import InFlight
from firelane.gateway.engines.routed_engine import tokens_before
from firelane.gateway.engines.routing.policies import EngineT


def in_time(flight: InFlight, engines: Sequence[EngineT]) -> Sequence[EngineT]:
    """The engines that are likely to be through with the request by its deadline, by what lies before it
    there and by their own times; all of them where none is, or where it has no deadline. An engine that has
    told no times yet is taken to be able to."""
    if flight.due_s == math.inf or len(engines) < 2:
        return engines
    left_ms = 1000 * (flight.due_s - time.monotonic())
    own, output = flight.prompt_tokens, max(1, flight.request.due_tokens - len(flight.tokens))
    able = [
        engine
        for tokens, engine in zip(tokens_before(flight, engines), engines, strict=True)
        if engine.token_ms * (tokens + own) + engine.step_ms * output <= left_ms
    ]
    return able or engines
