"""Traces for the simulation of a router: sessions of turns, each of which sends the whole conversation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator, default_rng

VOCABULARY = 1 << 15
SHORTEST, LONGEST = 100, 100_000


@dataclass(frozen=True, slots=True)
class Turn:
    """A request and its answer. new_tokens: of the prompt, behind what the conversation holds already.
    pause_s: from the answer's end to the next turn."""

    new_tokens: int
    output_tokens: int
    pause_s: float


@dataclass(frozen=True, slots=True)
class TraceSession:
    """One client's turns, of which the first comes at start_s. shared: (kind, tokens) of the prefix that all
    sessions of a kind begin with. has_key: its requests name it."""

    number: int
    start_s: float
    turns: tuple[Turn, ...]
    shared: tuple[int, int] = (0, 0)
    has_key: bool = True

    @property
    def key(self) -> bytes:
        return b"session-%d" % self.number if self.has_key else b""

    def prefix(self) -> bytes:
        kind, tokens = self.shared
        return _text((0, kind), tokens)

    def text(self, turn: int, output: bool) -> bytes:
        """Token ids of a turn's new part of the prompt, or of its output; always the same."""
        tokens = self.turns[turn].output_tokens if output else self.turns[turn].new_tokens
        return _text((1, self.number, turn, int(output)), tokens)


def _text(seed: tuple[int, ...], tokens: int) -> bytes:
    return default_rng(seed).integers(VOCABULARY, size=tokens, dtype=np.int32).tobytes()


def _lognormal(rng: Generator, median: float, sigma: float, least: int, most: int) -> int:
    return int(np.clip(rng.lognormal(np.log(median), sigma), least, most))


def agents(rng: Generator) -> Iterator[TraceSession]:
    """Tools' results of hundreds to thousands of tokens in each turn, short outputs, short pauses."""
    for number in range(48):
        turns = tuple(
            Turn(
                _lognormal(rng, 1000, 0.9, 50, 12_000),
                _lognormal(rng, 120, 0.7, 10, 800),
                rng.exponential(3.0),
            )
            for _ in range(int(rng.integers(12, 30)))
        )
        yield TraceSession(number, rng.uniform(0, 60), turns, (number % 4, 2500))


def chat(rng: Generator) -> Iterator[TraceSession]:
    """Short turns, long pauses: conversations of people behind one system prompt."""
    for number in range(400):
        turns = tuple(
            Turn(
                _lognormal(rng, 60, 1.0, 4, 4000),
                _lognormal(rng, 200, 0.7, 10, 1000),
                rng.exponential(10.0),
            )
            for _ in range(int(rng.geometric(0.25)))
        )
        yield TraceSession(number, rng.uniform(0, 120), turns, (0, 600))


def batch(rng: Generator) -> Iterator[TraceSession]:
    """Independent requests, without a session, of a few jobs that have a template of their own."""
    for number in range(1200):
        turn = Turn(_lognormal(rng, 700, 0.6, 100, 8000), _lognormal(rng, 60, 0.5, 5, 300), 0.0)
        yield TraceSession(number, rng.uniform(0, 40), (turn,), (number % 12, 1200), has_key=False)


def long_tail(rng: Generator) -> Iterator[TraceSession]:
    """Independent prompts of 100 to 100,000 tokens by Pareto's law: one in a hundred is over 10,000."""
    start_s = 0.0
    for number in range(8000):
        start_s += rng.exponential(1 / 60)
        tokens = int(1 / (1 / SHORTEST - rng.uniform(0, 1 / SHORTEST - 1 / LONGEST)))
        turn = Turn(tokens, _lognormal(rng, 60, 0.7, 5, 400), 0.0)
        yield TraceSession(number, start_s, (turn,), has_key=False)


def documents(rng: Generator) -> Iterator[TraceSession]:
    """Independent prompts of 100 to 100,000 tokens, log-normal: one in a hundred is over 40,000, and its own
    computation takes longer than most queues."""
    start_s = 0.0
    for number in range(4000):
        start_s += rng.exponential(1 / 11)
        turn = Turn(_lognormal(rng, 700, 1.8, SHORTEST, LONGEST), _lognormal(rng, 80, 0.7, 5, 400), 0.0)
        yield TraceSession(number, start_s, (turn,), has_key=False)


TRACES: dict[str, Callable[[Generator], Iterator[TraceSession]]] = {
    "agents": agents,
    "chat": chat,
    "batch": batch,
    "long-tail": long_tail,
    "documents": documents,
}
