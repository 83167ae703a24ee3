"""Memory that a model needs, from its config alone: before its engines have told."""

from __future__ import annotations

from dataclasses import dataclass

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
    program = _program(engine)
    weights = program.weights_bytes
    if engine.weights in QUANTIZING:
        weights = int(weights * BITS[engine.weights] / 16)
    kv = engine.kv_cache_bytes or _one_sequence(program, engine)
    kv += engine.tiers.host_bytes if engine.tiers else 0
    return Need(weights=weights * replicas, kv=kv)


def default_kv_bytes(engine: EngineConfig, budget: int, engines: int = 1) -> EngineConfig:
    """With a size of the KV cache of all engines where none is given: as much as the weights take, at most
    1 GiB or what they leave of the budget, and enough for one sequence on each.
    """
    if engine.kv_cache_bytes is not None:
        return engine
    program = _program(engine)
    left = max(0, budget - engines * program.weights_bytes)
    kv = max(engines * _one_sequence(program, engine), min(program.weights_bytes, MOST_DEFAULT_KV, left))
    return msgspec.structs.replace(engine, kv_cache_bytes=max(kv, 1))


def _one_sequence(program: Program, engine: EngineConfig) -> int:
    limits = smallest_limits(program, engine, DEFAULTS)
    return limits.num_blocks * limits.block_size * program.kv_bytes_per_token + program.state_bytes


def _program(engine: EngineConfig) -> Program:
    dtype = DType.BF16 if engine.rounds else None
    program = load_program(read_config(engine.model_dir), max_model_len=engine.max_model_len, dtype=dtype)
    return with_cache_dtype(program, engine.kv_cache_dtype)
