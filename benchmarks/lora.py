"""The cost of low-rank adapters: decoding and prompts with them over the base model alone.

    python benchmarks/lora.py MODEL [--rank 16] [--adapters 64] [--rounds 9] [--steps 8]

MODEL: a directory. Two executors of it lie in one process and are driven in turns: one without adapters, and
one that has as many as --adapters names, with random factors of --rank for every module that can be adapted.
Measured are one sequence, with an adapter and without; as many sequences as adapters, each with its own; and
a prompt with one adapter. The table has the median of the rounds' ratios, and the medians of the times.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np
from lossless_steps import BLOCK_TOKENS, MAX_SEQS, Driver

from firelane import env
from firelane.backends.cpu import loader
from firelane.backends.cpu.executor import CpuExecutor
from firelane.bench.table import format_table
from firelane.contract import LowRank
from firelane.engine_config import EngineConfig
from firelane.models.config.reader import read_config
from firelane.models.registry import load_program
from firelane.native.machine import cpu_identity

PROMPT_TOKENS = 512
Work = Callable[[Driver], float]
"""Seconds of what is measured."""


def load(model: Path, adapters: int, rank: int) -> CpuExecutor:
    config = EngineConfig(
        model_dir=model,
        cache_dir=env.read().cache_dir,
        max_num_seqs=MAX_SEQS,
        max_model_len=PROMPT_TOKENS + BLOCK_TOKENS,
        max_num_batched_tokens=PROMPT_TOKENS,
        block_size=BLOCK_TOKENS,
        kv_cache_bytes=1 << 30,
        max_loras=adapters,
        max_lora_rank=rank,
    )
    program = load_program(read_config(model), max_model_len=config.max_model_len)
    return loader.load(program, model, config, lambda *_: None)


def fill(executor: CpuExecutor, rank: int) -> float:
    """Random factors in all places; returns the bytes of one adapter."""
    memory, rng = executor.adapters, np.random.default_rng(1)
    assert memory is not None
    tensors = {
        module: LowRank(a=_bits(rng, (rank, k)), b=_bits(rng, (n, rank)), scale=0.01)
        for module, (n, k) in memory.modules.items()
    }
    for place in range(1, memory.limits.max_adapters + 1):
        memory.put(place, tensors)
    return sum(one.a.nbytes + one.b.nbytes for one in tensors.values())


def _bits(rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    return (rng.standard_normal(shape, np.float32).view(np.uint32) >> 16).astype(np.uint16)


def with_places(work: Work, places: list[int]) -> Work:
    """The work with these adapters of the first slots; the others have none."""

    def run(driver: Driver) -> float:
        adapter = driver.executor.state.adapter
        adapter[:] = 0
        adapter[: len(places)] = places
        return work(driver)

    return run


def works(adapters: int, steps: int) -> dict[str, tuple[Work, Work]]:
    """By what is measured: the work of the base, and the same with adapters."""

    def decode(rows: int) -> Work:
        return lambda driver: driver.decode(rows, steps)

    def prompt(driver: Driver) -> float:
        return driver.prefill(PROMPT_TOKENS)

    each, alike, many = list(range(1, adapters + 1)), [1] * adapters, decode(adapters)
    return {
        "decode 1, no adapter": (decode(1), with_places(decode(1), [0])),
        "decode 1, one adapter": (decode(1), with_places(decode(1), [1])),
        f"decode {adapters}, one adapter for all": (many, with_places(many, alike)),
        f"decode {adapters}, {adapters} adapters": (many, with_places(many, each)),
        f"prompt of {PROMPT_TOKENS}, one adapter": (prompt, with_places(prompt, [1])),
    }


def measure(base: Driver, adapted: Driver, arguments: argparse.Namespace) -> list[list[str]]:
    rows: list[list[str]] = []
    for name, (plain, changed) in works(arguments.adapters, arguments.steps).items():
        pairs: list[tuple[float, float]] = []
        for turn in range(arguments.rounds + 1):
            order = [(plain, base), (changed, adapted)]
            times = {work: work(driver) for work, driver in (order if turn % 2 else order[::-1])}
            pairs.append((times[plain], times[changed]))
        del pairs[0]  # warms the caches
        ratios = [with_it / without for without, with_it in pairs]
        milliseconds = [f"{1e3 * median(column):.2f}" for column in zip(*pairs, strict=True)]
        rows.append([name, *milliseconds, *(f"{of(ratios):.3f}" for of in (median, min, max))])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--adapters", type=int, default=MAX_SEQS)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=8)
    arguments = parser.parse_args()
    base, adapted = load(arguments.model, 0, 16), load(arguments.model, arguments.adapters, arguments.rank)
    nbytes = fill(adapted, arguments.rank)
    print(f"{cpu_identity().model}; adapters of rank {arguments.rank}, {nbytes / 1e6:.1f} MB each")
    rows = measure(Driver(base), Driver(adapted), arguments)
    print(format_table(["step", "base, ms", "with adapters, ms", "ratio", "least", "most"], rows))
    base.release()
    adapted.release()


if __name__ == "__main__":
    main()
