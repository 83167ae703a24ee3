"""Seeded request mixes: how long prompts and outputs are, and what the prompts hold."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

# Log-normal lengths in the manner of ShareGPT conversations: short turns, and a long tail of pasted text.
PROMPT_MEAN, PROMPT_SIGMA = 220.0, 1.1
OUTPUT_MEAN, OUTPUT_SIGMA = 200.0, 0.9
SHORTEST, LONGEST = 4, 1024
# Ids below are special tokens in most vocabularies.
FIRST_PLAIN_ID = 100


@dataclass(frozen=True, kw_only=True)
class BenchRequest:
    """One request of a load: a prompt as token ids or as text, and how many tokens to generate."""

    prompt: list[int] | str
    output_tokens: int


@dataclass(frozen=True, kw_only=True)
class Lengths:
    prompt_tokens: int
    output_tokens: int


def sharegpt_like(count: int, *, seed: int, longest: int = LONGEST) -> list[Lengths]:
    """Log-normal lengths, 220 tokens in and 200 out on average before clipping to 4 .. `longest`."""
    rng = random.Random(seed)
    return [
        Lengths(
            prompt_tokens=_log_normal(rng, PROMPT_MEAN, PROMPT_SIGMA, longest),
            output_tokens=_log_normal(rng, OUTPUT_MEAN, OUTPUT_SIGMA, longest),
        )
        for _ in range(count)
    ]


def exponential(
    count: int, *, seed: int, prompt_mean: float, output_mean: float, longest: int = LONGEST
) -> list[Lengths]:
    """Exponential lengths, clipped to 1 .. `longest`."""
    rng = random.Random(seed)

    def draw(mean: float) -> int:
        return min(longest, max(1, round(rng.expovariate(1 / mean))))

    return [Lengths(prompt_tokens=draw(prompt_mean), output_tokens=draw(output_mean)) for _ in range(count)]


def _log_normal(rng: random.Random, mean: float, sigma: float, longest: int) -> int:
    drawn = rng.lognormvariate(math.log(mean) - sigma * sigma / 2, sigma)
    return min(longest, max(SHORTEST, round(drawn)))


def token_requests(lengths: Sequence[Lengths], *, seed: int, vocab_size: int) -> list[BenchRequest]:
    """Prompts of random plain token ids: exact lengths on any server that takes lists of ids."""
    rng = random.Random(seed)
    ids = plain_ids(vocab_size)
    return [
        BenchRequest(
            prompt=[rng.randrange(ids.start, ids.stop) for _ in range(n.prompt_tokens)],
            output_tokens=n.output_tokens,
        )
        for n in lengths
    ]


def plain_ids(vocab_size: int) -> range:
    """Ids that stand for text."""
    return range(FIRST_PLAIN_ID if vocab_size > 2 * FIRST_PLAIN_ID else 0, vocab_size)


def text_requests(
    lengths: Sequence[Lengths], *, seed: int, vocab_size: int, decode: Callable[[list[int]], str]
) -> list[BenchRequest]:
    """Prompts as text, for the server to tokenise: about as long as asked (ids may re-encode otherwise)."""
    return [
        BenchRequest(prompt=decode(r.prompt), output_tokens=r.output_tokens)
        for r in token_requests(lengths, seed=seed, vocab_size=vocab_size)
        if isinstance(r.prompt, list)
    ]
