"""A Program whose KV cache holds its numbers in another way."""

from __future__ import annotations

from dataclasses import replace

from firelane.errors import UsageError
from firelane.program.cache_codes import CacheCode
from firelane.program.ops import Attention, IndexTopK, LatentCache, Op, RopeAndCache
from firelane.program.program import Program
from firelane.program.values import DType


def with_cache_dtype(program: Program, dtype: str) -> Program:
    """The program with a cache of `dtype`, one of engine_config.KV_CACHE_DTYPES. Raises UsageError for "bf16"
    where the program computes in float32."""
    if dtype == "auto":
        return program
    if dtype != DType.BF16.value:
        return with_cache_code(program, CacheCode(dtype))
    if any(layer.dtype is not DType.BF16 for layer in program.cache_layers):
        raise UsageError(
            "--kv-cache-dtype bf16: this model computes in float32, and so is its cache; leave it out, or "
            "take int8 or fp8"
        )
    return program


def with_cache_code(program: Program, code: CacheCode | None) -> Program:
    """The program with all its cache layers in `code`; recurrent states stay as they are. Raises UsageError
    where an indexer chooses what attention reads: there are no kernels for its keys in a code."""
    if code is not None and any(isinstance(op, IndexTopK) for op in program.ops):
        raise UsageError(
            f"--kv-cache-dtype {code.value}: keys of an indexer are not kept so yet; leave it out"
        )
    return replace(program, ops=tuple(_rewritten(op, code) for op in program.ops))


def _rewritten(op: Op, code: CacheCode | None) -> Op:
    match op:
        case Attention() | RopeAndCache():
            return replace(op, shape=replace(op.shape, code=code))
        case LatentCache():
            return replace(op, code=code)
        case _:
            return op
