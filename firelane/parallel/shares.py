"""Shares: how much of each op, weight and value one rank has when a program is cut over several.

Tensor parallel ranks cut products by their outputs (columns of a value) until an op needs whole rows, whose
product is cut by its inputs and added up over the ranks. Heads go with their keys, experts by their numbers.
The same rules in figures alone: what a rank runs, holds and sends can be said without its weights.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

from firelane.errors import UsageError
from firelane.program.ops import (
    Attention,
    Cast,
    DeltaRule,
    Embed,
    ExpertGatedLinear,
    ExpertLinear,
    Gated,
    GatedLinear,
    HeadLinear,
    HeadShape,
    LatentCache,
    Linear,
    Op,
    RMSNorm,
    RopeAndCache,
    ShortConv,
    StateSpace,
)
from firelane.program.program import Program
from firelane.program.values import Value

Experts = ExpertGatedLinear | ExpertLinear


@dataclass(frozen=True, kw_only=True)
class OpShare:
    """Parts of an op that one rank has: of its arithmetic, its weights, and what it keeps of tokens. reduced:
    numbers a row that the ranks then add up; gathered: numbers a row that they bring together."""

    flops: float = 1.0
    weights: float = 1.0
    kept: float = 1.0
    reduced: int = 0
    gathered: int = 0


WHOLE = OpShare()


@dataclass(frozen=True, kw_only=True)
class Shares:
    """Share of `program` that each of `tp` tensor parallel ranks has; experts are spread by their numbers
    over `ep` ranks, never cut: a layer's only one is whole on each. Raises UsageError for heads and experts
    that cannot be divided."""

    program: Program
    tp: int
    ep: int
    cut: frozenset[Value]
    """Values of whose columns a rank has a part: cut_values()."""

    def __post_init__(self) -> None:
        for op in self.program.ops:
            for what, count, parts in _divided(op, self.tp, self.ep):
                if count % parts and parts % count:
                    raise UsageError(f"{self.program.name}: {count} {what} cannot be divided by {parts}")
                if parts > count and what not in SHARED:
                    raise UsageError(f"{self.program.name}: {count} {what} for {parts} ranks")

    def value(self, value: Value) -> float:
        """The part of a value's columns that a rank has."""
        if value not in self.cut:
            return 1.0
        shape = self._heads_of.get(value)
        if shape is None:
            return 1 / self.tp
        q, kv = shape.q_width / self.tp, (shape.k_width + shape.v_width) * kv_share(shape, self.tp)
        return (q + kv) / (shape.q_width + shape.k_width + shape.v_width)

    def op(self, op: Op) -> OpShare:
        part = 1 / self.tp
        match op:
            case ExpertGatedLinear() | ExpertLinear():
                return self._experts(op)
            case Linear() if op is self.program.head:
                return OpShare(flops=part, weights=part, gathered=op.out.width * (self.tp > 1))
            case Linear() if op.x in self.cut:
                return OpShare(flops=part, weights=part, reduced=op.out.width * (self.tp > 1))
            case Linear() | GatedLinear():
                share = self.value(op.out)
                return OpShare(flops=share, weights=share)
            case Embed():
                return OpShare(flops=part, weights=part, reduced=op.out.width * (self.tp > 1))
            case Attention():
                return OpShare(flops=part, weights=part, kept=kv_share(op.shape, self.tp))
            case RopeAndCache():
                return OpShare(flops=part, kept=kv_share(op.shape, self.tp))
            case LatentCache():
                return OpShare(flops=part)
            case HeadLinear() | DeltaRule() | ShortConv() | StateSpace():
                return OpShare(flops=part, weights=part, kept=part)
            case _:
                share = min((self.value(value) for value in op.outputs), default=1.0)
                return OpShare(flops=share, weights=share)

    def _experts(self, op: Experts) -> OpShare:
        ranks = self.ep if spreads(op, self.ep) else 1
        reduced = op.out.width if isinstance(op, ExpertLinear) and ranks > 1 else 0
        return OpShare(flops=1 / ranks, weights=1 / ranks, reduced=reduced)

    @cached_property
    def _heads_of(self) -> dict[Value, HeadShape]:
        """By value of queries, keys and values, of what heads they are; where keys are fewer than ranks, each
        rank has one."""
        return {op.qkv: op.shape for op in self.program.ops if isinstance(op, RopeAndCache) and op.keys}


def spreads(op: Op, ep: int) -> bool:
    """Whether the op's experts are spread over ranks of their own."""
    return isinstance(op, Experts) and ep > 1 and op.weight.matrices > 1


def kv_share(shape: HeadShape, tp: int) -> float:
    """The part of a layer's keys and values that a rank keeps: all of them where heads share one."""
    return max(1 / tp, 1 / shape.kv_heads)


def cut_values(program: Program) -> frozenset[Value]:
    """Values whose columns are divided among tensor parallel ranks: heads, channels, and the inner width of
    MLPs."""
    found = {value for op in program.ops for value in _by_head(op)}
    size = -1
    while size != len(found):
        size = len(found)
        for op in program.ops:
            found.update(_alike(op, found))
    return frozenset(found)


SHARED = ("KV heads", "key heads", "groups")
"""Kinds of units of which several ranks can have the same one."""


def _divided(op: Op, tp: int, ep: int) -> Iterator[tuple[str, int, int]]:
    """Parts of an op that are divided, how many there are of it, and among how many ranks."""
    match op:
        case Attention(shape=shape):
            yield "heads", shape.heads, tp
            yield "KV heads", shape.kv_heads, tp
        case DeltaRule(shape=shape):
            yield "heads of linear attention", shape.heads, tp
            yield "key heads", shape.key_heads, tp
        case StateSpace(shape=shape):
            yield "heads of state", shape.heads, tp
            yield "groups", shape.groups, tp
        case ExpertGatedLinear() if spreads(op, ep):
            yield "experts", op.weight.matrices, ep
        case GatedLinear():
            yield "columns of an MLP", op.out.width, tp
        case _:
            pass


def _by_head(op: Op) -> Iterable[Value]:
    match op:
        case RopeAndCache():
            return (op.qkv, op.out)
        case Attention() | LatentCache():
            return (op.q, op.out)
        case HeadLinear() | ShortConv():
            return (op.x, op.out)
        case DeltaRule():
            return (op.qkv, op.decay, op.beta, op.out)
        case StateSpace():
            return (op.xbc, op.dt, op.out)
        case GatedLinear() | ExpertGatedLinear():
            return (op.out,)
        case Gated() if op.x == op.gate:  # the function of an MLP without a gate
            return (op.x, op.out)
        case _:
            return ()


def _alike(op: Op, cut: set[Value]) -> Iterable[Value]:
    """Values of an elementwise op that are cut because others of it are."""
    match op:
        case Cast() if {op.x, op.out} & cut:
            return (op.x, op.out)
        case Gated() if {op.x, op.gate, op.out} & cut:
            return (op.x, op.gate, op.out)
        case RMSNorm() if op.x in cut or (op.groups > 1 and op.out in cut):
            return (op.x, op.out)
        case _:
            return ()
