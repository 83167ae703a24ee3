"""Memory that a model needs, from its config alone: before its engines have told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from firelane.contract import BackendDefaults
from firelane.contract.resolve import smallest_limits
from firelane.engine_config import QUANTIZING, EngineConfig
from firelane.models.config.reader import read_config
from firelane.models.registry import load_program
from firelane.program.cache_rewrite import with_cache_dtype
from firelane.program.program import Program
from firelane.program.values import DType

GIB = 1 << 30
DEFAULTS = BackendDefaults(block_size=16, max_num_batched_tokens=512)
MOST_DEFAULT_KV = GIB
BITS = {"int8": 8.5, "int4": 4.5}
"""Bits of a weight that is quantised when it is packed."""


@dataclass(frozen=True, kw_only=True)
class Need:
    """Bytes of weights, and of the KV cache of all replicas with its tier in host memory."""

    weights: int
    kv: int

    @property
    def total(self) -> int:
        return self.weights + self.kv

    def __str__(self) -> str:
        return f"{gib(self.total)} (weights {gib(self.weights)}, KV cache {gib(self.kv)})"


def gib(nbytes: int) -> str:
    """In words."""
    return f"{nbytes / GIB:.2f} GiB"


def need_of(engine: EngineConfig, replicas: int) -> Need:
    """replicas: engines, whatever their roles. Weights count once for each: on a GPU each has its own. Raises
    ModelError, UsageError."""
    program = _program(engine, engine.model_dir)
    draft = _draft(engine, program)
    weights = program.weights_bytes + sum(one.weights_bytes for one in draft)
    if engine.weights in QUANTIZING:
        weights = int(weights * BITS[engine.weights] / 16)
    kv = engine.kv_cache_bytes or _one_sequence(program, engine, draft)
    kv += engine.tiers.host_bytes if engine.tiers else 0
    return Need(weights=weights * replicas, kv=kv)


def default_kv_bytes(engine: EngineConfig, budget: int, engines: int = 1) -> EngineConfig:
    """With a size of the KV cache of all engines where none is given: as much as the weights take, at most
    1 GiB or what they leave of the budget, and enough for one sequence on each.
    """
    if engine.kv_cache_bytes is not None:
        return engine
    program = _program(engine, engine.model_dir)
    draft = _draft(engine, program)
    left = max(0, budget - engines * (program.weights_bytes + sum(one.weights_bytes for one in draft)))
    kv = max(
        engines * _one_sequence(program, engine, draft), min(program.weights_bytes, MOST_DEFAULT_KV, left)
    )
    return msgspec.structs.replace(engine, kv_cache_bytes=max(kv, 1))


def _one_sequence(program: Program, engine: EngineConfig, draft: Sequence[Program]) -> int:
    """Bytes of its pages, and of those of the draft model that mirror them."""
    limits = smallest_limits(program, engine, DEFAULTS)
    per_token = program.kv_bytes_per_token + sum(one.kv_bytes_per_token * len(one.spans) for one in draft)
    return limits.num_blocks * limits.block_size * per_token + program.state_bytes


def _draft(engine: EngineConfig, program: Program) -> Sequence[Program]:
    """The programs that draft beside `program`: a model's or those of a head; () where none does."""
    if engine.draft_model is not None:
        return (_program(engine, engine.draft_model),)
    if engine.eagle3_head is None and engine.speculative != "mtp":
        return ()
    from firelane.engine.process.load_head import read_head

    head = read_head(engine, program)
    return () if head is None else head.head.programs


def _program(engine: EngineConfig, directory: Path) -> Program:
    dtype = DType.BF16 if engine.rounds else None
    program = load_program(read_config(directory), max_model_len=engine.max_model_len, dtype=dtype)
    return with_cache_dtype(program, engine.kv_cache_dtype)
