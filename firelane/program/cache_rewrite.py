"""A Program whose cache holds keys and values in a code."""

from __future__ import annotations

from dataclasses import replace

from firelane.program.cache_codes import CacheCode
from firelane.program.ops import Attention, LatentCache, Op, RopeAndCache
from firelane.program.program import Program


def with_cache_code(program: Program, code: CacheCode | None) -> Program:
    """The program with all its cache layers in `code`; recurrent states stay as they are."""
    return replace(program, ops=tuple(_rewritten(op, code) for op in program.ops))


def _rewritten(op: Op, code: CacheCode | None) -> Op:
    match op:
        case Attention() | RopeAndCache():
            return replace(op, shape=replace(op.shape, code=code))
        case LatentCache():
            return replace(op, code=code)
        case _:
            return op
