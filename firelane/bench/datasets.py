"""Data sets of a serving benchmark, as `vllm bench serve` defines them: random tokens, and ShareGPT."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from firelane.bench.workload import BenchRequest, plain_ids
from firelane.errors import UsageError

CountTokens = Callable[[str], int]
SHORTEST, LONGEST_PROMPT, LONGEST_TOTAL = 4, 1024, 2048
"""Tokens of the conversations of ShareGPT that are taken."""


@dataclass(frozen=True, kw_only=True)
class RandomLengths:
    """Tokens, uniform within input_len and output_len * (1 ± range_ratio), both ends included, after
    prefix_len tokens that all prompts share.
    """

    input_len: int = 1024
    output_len: int = 128
    range_ratio: float = 0.0
    prefix_len: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.range_ratio < 1:
            raise UsageError(f"--random-range-ratio {self.range_ratio}: give 0 or more, and less than 1")
        if self.prefix_len + _low(self.input_len, self.range_ratio) < 1:
            raise UsageError("--random-input-len is too small for its range: some prompts would be empty")


def random_requests(count: int, lengths: RandomLengths, *, seed: int, vocab_size: int) -> list[BenchRequest]:
    """Prompts of token ids: a prefix that all share, then ids in a row from a random one on."""
    rng = np.random.default_rng(seed)
    ids = plain_ids(vocab_size)
    ratio = lengths.range_ratio
    inputs = rng.integers(_low(lengths.input_len, ratio), _high(lengths.input_len, ratio) + 1, count)
    least = max(1, _low(lengths.output_len, ratio))
    outputs = rng.integers(least, max(1, _high(lengths.output_len, ratio)) + 1, count)
    firsts = rng.integers(0, len(ids), count)
    prefix = [ids[i] for i in rng.integers(0, len(ids), lengths.prefix_len)]
    return [
        BenchRequest(
            prompt=[*prefix, *(ids[(first + i + k) % len(ids)] for k in range(tokens))], output_tokens=output
        )
        for i, (tokens, output, first) in enumerate(
            zip(inputs.tolist(), outputs.tolist(), firsts.tolist(), strict=True)
        )
    ]


def _low(length: int, ratio: float) -> int:
    return math.floor(length * (1 - ratio))


def _high(length: int, ratio: float) -> int:
    return math.ceil(length * (1 + ratio))


def sharegpt_requests(
    path: Path, count: int, *, seed: int, count_tokens: CountTokens, output_len: int | None = None
) -> list[BenchRequest]:
    """Prompts are first turns of shuffled conversations, as text; outputs are as long as the second turns, or
    output_len. Drawn again where the file has too few. Raises UsageError.
    """
    turns = _turns(path)
    random.Random(seed).shuffle(turns)
    found: list[BenchRequest] = []
    for prompt, answer in turns:
        if len(found) == count:
            break
        tokens = count_tokens(prompt)
        output = count_tokens(answer) if output_len is None else output_len
        if _fits(tokens, output, any_output=output_len is not None):
            found.append(BenchRequest(prompt=prompt, output_tokens=output))
    if not found:
        raise UsageError(
            f"{path}: no conversation has a prompt of {SHORTEST} to {LONGEST_PROMPT} tokens and an answer "
            "that fits"
        )
    return found + random.Random(seed).choices(found, k=count - len(found))


def _fits(prompt: int, output: int, *, any_output: bool) -> bool:
    long_enough = prompt >= SHORTEST and (any_output or output >= SHORTEST)
    return long_enough and prompt <= LONGEST_PROMPT and prompt + output <= LONGEST_TOTAL


def _turns(path: Path) -> list[tuple[str, str]]:
    try:
        entries = json.loads(path.read_bytes())
        return list(_first_two(entries))
    except OSError as error:
        raise UsageError(f"--dataset-path {path}: {error.strerror}") from error
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise UsageError(
            f"--dataset-path {path} is no ShareGPT file: give a JSON list of objects with `conversations`, "
            "a list of turns with `value`"
        ) from error


def _first_two(entries: Sequence[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    for entry in entries:
        turns = entry.get("conversations", ())
        if len(turns) >= 2:
            yield str(turns[0]["value"]), str(turns[1]["value"])
