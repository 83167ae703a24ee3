"""Mixed loads: long prompts that arrive while other requests decode."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.random import Generator, default_rng

LONGEST_PROMPT = 30_000
VOCABULARY = 1 << 15


class RequestArrival(NamedTuple):
    """A request: when it comes, and its tokens."""

    at_s: float
    prompt_tokens: int
    output_tokens: int
    tenant: str = ""


Lengths = Callable[[Generator], tuple[int, int]]
"""Prompt and output tokens of one request."""


def _lognormal(rng: Generator, median: float, sigma: float, least: int, most: int) -> int:
    return int(np.clip(rng.lognormal(np.log(median), sigma), least, most))


def conversation(rng: Generator) -> tuple[int, int]:
    """Long histories: 8,000 tokens in the middle, 11,000 on average, and some 350 of output. So is Mooncake's
    published trace of conversations (FAST'25), but for what its prompts share."""
    return _lognormal(rng, 8000, 0.95, 500, LONGEST_PROMPT), _lognormal(rng, 350, 0.6, 10, 1000)


def documents(rng: Generator) -> tuple[int, int]:
    """Chats of a few hundred tokens, and with each fifth request a document of 8,000 to 30,000 tokens."""
    if rng.random() < 0.2:
        return int(rng.integers(8000, LONGEST_PROMPT)), _lognormal(rng, 200, 0.5, 10, 1000)
    return _lognormal(rng, 220, 1.0, 20, 4000), _lognormal(rng, 250, 0.7, 10, 1000)


def summaries(rng: Generator) -> tuple[int, int]:
    """Documents of 8,000 to 30,000 tokens alone, with some 200 tokens of output."""
    return int(rng.integers(8000, LONGEST_PROMPT)), _lognormal(rng, 200, 0.5, 10, 1000)


def chat(rng: Generator) -> tuple[int, int]:
    """Short prompts alone."""
    return _lognormal(rng, 220, 1.0, 20, 4000), _lognormal(rng, 250, 0.7, 10, 1000)


LOADS: Mapping[str, Lengths] = MappingProxyType(
    {"conversation": conversation, "documents": documents, "summaries": summaries, "chat": chat}
)


def arrivals(load: str, rate: float, seconds: float, seed: int) -> Iterator[RequestArrival]:
    """Poisson arrivals, `rate` a second."""
    rng = default_rng(seed)
    at_s = rng.exponential(1 / rate)
    while at_s < seconds:
        yield RequestArrival(at_s, *LOADS[load](rng))
        at_s += rng.exponential(1 / rate)


def prompt_of(number: int, tokens: int) -> bytes:
    """Token ids of a request, of which no two share a beginning."""
    return default_rng((1, number)).integers(VOCABULARY, size=tokens, dtype=np.int32).tobytes()
