"""Tensor parallel: the program of one of several ranks that share the heads, the insides of MLPs and the
vocabulary (Shoeybi et al., "Megatron-LM", 2019).

The residual stream, norms and routing are on every rank. Products whose inputs are of heads or of an MLP's
inside hold a subtree of their segments (program.segments); what leads there makes those columns alone, and an
all-reduce adds up. Heads go by KV head; a KV head that several ranks need is on each of them. Where a cut
does not fall between heads, or a norm is over all of them, that block is whole on every rank: it costs time,
never bits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from enum import Enum

from firelane.errors import UsageError
from firelane.parallel.columns import Columns, Held, joined, width
from firelane.parallel.cuts import Cut, cut
from firelane.parallel.segments import segmented
from firelane.program.ops import (
    AllReduce,
    Attention,
    Embed,
    Gather,
    LatentCache,
    Linear,
    Op,
    RopeAndCache,
    Sample,
)
from firelane.program.program import Program
from firelane.program.segments import SEGMENTS, subtree
from firelane.program.values import RankPart, Value

VOCABULARY_UNIT = 32
"""Rows of the head that stay together: those of a panel."""
RANKS = tuple(2**i for i in range(SEGMENTS.bit_length()))


class AttentionShare(Enum):
    """Share of ranks in attention and in recurrent layers. HEADS: heads, as far as they divide. ROWS: of
    attention the rows of a step, with one KV cache (see rows.py), of recurrent layers heads. WHOLE: nothing,
    each rank computes all of it, and keeps all of the KV cache."""

    HEADS = "heads"
    ROWS = "rows"
    WHOLE = "whole"


def shard(
    program: Program, tp: int, rank: int, *, attention: AttentionShare = AttentionShare.HEADS
) -> Program:
    """The program of rank `rank` of `tp`, with segments also where that is one. Experts stay whole: see
    experts(). Raises UsageError for a number of ranks that no cut exists for."""
    check_ranks("tensor parallel", tp)
    program = segmented(program)
    if tp == 1:
        return program
    _check_vocabulary(program, tp)
    shared = _shared(program, tp, attention=attention)
    return _ShardRewrite(program, tp, rank, demand(program, shared, tp, rank)).program()


def divides_heads(program: Program, tp: int) -> bool:
    """Whether ranks can share all attention by heads, and none of them needs keys that another one has."""
    program = segmented(program)
    found = [op for op in program.ops if isinstance(op, Attention)]
    ends = _ends_of(program, _attends)
    is_even = all(op.shape.kv_heads % tp == 0 for op in found)
    return is_even and ends <= _shared(program, tp, attention=AttentionShare.HEADS)


def whole_products(program: Program, tp: int, *, attention: AttentionShare) -> list[str]:
    """Names of the row-parallel products that every rank computes whole."""
    program = segmented(program)
    shared = _shared(program, tp, attention=attention)
    left = (op for i, op in enumerate(program.ops) if _is_candidate(op) and i not in shared)
    return [value.name for op in left for value in op.outputs]


def check_ranks(kind: str, ranks: int) -> None:
    if ranks not in RANKS:
        raise UsageError(f"{kind} {ranks}: sums are cut for {', '.join(map(str, RANKS))} ranks")


def _check_vocabulary(program: Program, tp: int) -> None:
    if program.vocab_size < tp * VOCABULARY_UNIT:
        raise UsageError(f"tensor parallel {tp}: a vocabulary of {program.vocab_size} is too small to cut")


@dataclass
class Demand:
    """Parts that a rank makes of values that it does not have whole. cuts: by number of the op. shares: by
    number of the row-parallel product, the inputs that the rank has. refused: products that cannot be shared
    so."""

    cuts: dict[int, tuple[Columns, Cut]] = field(default_factory=dict[int, tuple[Columns, Cut]])
    shares: dict[int, range] = field(default_factory=dict[int, range])
    refused: set[int] = field(default_factory=set[int])


def _is_candidate(op: Op) -> bool:
    return isinstance(op, Linear) and len(op.segments) == SEGMENTS


def _shared(program: Program, tp: int, *, attention: AttentionShare) -> set[int]:
    """The numbers of the products that all ranks can share."""
    shared = {i for i, op in enumerate(program.ops) if _is_candidate(op)}
    if attention is not AttentionShare.HEADS:
        shared -= _ends_of(program, _attends)
    if attention is AttentionShare.WHOLE:
        shared -= _ends_of(program, lambda op: bool(op.states))
    while refused := set[int]().union(*(demand(program, shared, tp, r).refused for r in range(tp))):
        shared -= refused
    return shared


def _attends(op: Op) -> bool:
    return isinstance(op, Attention)


def _ends_of(program: Program, is_mixer: Callable[[Op], bool]) -> set[int]:
    """The numbers of the products that attention or recurrent layers end with, whichever are asked for."""
    found, mixed = set[int](), set[Value]()
    for i, op in enumerate(program.ops):
        is_mixed = not mixed.isdisjoint(op.inputs)
        if is_mixed and isinstance(op, Linear):
            found.add(i)
        elif is_mixed or is_mixer(op):
            mixed.update(op.outputs)
    return found


def demand(program: Program, shared: set[int], tp: int, rank: int) -> Demand:
    """From the last op to the first: each product that is shared wants columns of its input, and so on."""
    return _Backward(program, shared, tp, rank).run()


@dataclass
class _Wanted:
    """Columns of a value that a rank needs, and the products that need them in the end."""

    value: Value
    ranges: list[range] = field(default_factory=list[range])
    products: set[int] = field(default_factory=set[int])


class _Backward:
    """One pass from the last op to the first."""

    def __init__(self, program: Program, shared: set[int], tp: int, rank: int) -> None:
        self._program, self._shared, self._tp, self._rank = program, shared, tp, rank
        self._found = Demand()
        self._wanted: dict[Value, _Wanted] = {}
        self._whole: set[Value] = set()
        self._layers: dict[int, list[tuple[range, set[int]]]] = {}

    def run(self) -> Demand:
        for i, op in reversed(list(enumerate(self._program.ops))):
            wanted = [self._wanted[value] for value in op.outputs if value in self._wanted]
            if wanted:
                self._cut(i, op, wanted[0])
            elif i in self._shared and isinstance(op, Linear):
                self._share(i, op)
            else:
                self._keep(op, set())
        for uses in self._layers.values():
            if len({heads for heads, _ in uses}) > 1:
                self._found.refused |= set[int]().union(*(products for _, products in uses))
        return self._found

    def _cut(self, i: int, op: Op, wanted: _Wanted) -> None:
        columns = joined(wanted.ranges)
        made = None if wanted.value in self._whole or i in self._shared else cut(op, columns)
        if made is None:
            self._found.refused |= wanted.products
            self._keep(op, wanted.products)
            return
        self._found.cuts[i] = columns, made
        for value, needed in made.needs:
            self._want(value, needed, wanted.products)
        self._whole.update({*op.inputs} - {value for value, _ in made.needs})
        if made.cache is not None:
            layer, heads = made.cache
            self._layers.setdefault(layer, []).append((heads, wanted.products))

    def _share(self, i: int, op: Linear) -> None:
        mine = subtree(op.segments, self._tp, self._rank)
        if not mine:
            self._found.refused.add(i)
        self._found.shares[i] = mine
        self._want(op.x, (mine,), {i})
        self._whole.update({*op.inputs} - {op.x})

    def _keep(self, op: Op, products: set[int]) -> None:
        """The op whole, which some products wanted otherwise."""
        self._whole.update(op.inputs)
        match op:
            case Attention(layer=layer, shape=shape) | RopeAndCache(layer=layer, shape=shape):
                self._layers.setdefault(layer, []).append((range(shape.kv_heads), products))
            case LatentCache(layer=layer):
                self._layers.setdefault(layer, []).append((range(1), products))
            case _:
                pass

    def _want(self, value: Value, columns: Columns, products: set[int]) -> None:
        wanted = self._wanted.setdefault(value, _Wanted(value))
        wanted.ranges += columns
        wanted.products |= products


class _ShardRewrite:
    """One pass from the first op to the last."""

    def __init__(self, program: Program, tp: int, rank: int, wanted: Demand) -> None:
        self._program, self._tp, self._rank, self._wanted = program, tp, rank, wanted
        self._parts: dict[Value, Held] = {}
        self._table = next((i for i, op in enumerate(program.ops) if isinstance(op, Embed)), None)
        self._head: Linear | None = None

    def program(self) -> Program:
        ops = tuple(made for i, op in enumerate(self._program.ops) for made in self._made(i, op))
        return replace(self._program, ops=ops, head=self._head)

    def _made(self, i: int, op: Op) -> Iterator[Op]:
        if i in self._wanted.cuts:
            columns, made = self._wanted.cuts[i]
            (whole,) = op.outputs
            out = replace(whole, width=width(columns))
            self._parts[whole] = Held(out, columns)
            yield made.make(out, self._parts)
        elif i in self._wanted.shares and isinstance(op, Linear):
            yield from self._row_parallel(op, self._wanted.shares[i])
        elif i == self._table and isinstance(op, Embed):
            yield from self._embed(op)
        elif op == self._program.head and isinstance(op, Linear):
            yield from self._column_parallel(op)
        elif not (isinstance(op, Sample) and self._rank):
            yield op

    def _row_parallel(self, op: Linear, mine: range) -> Iterator[Op]:
        each = SEGMENTS // self._tp
        segments = op.segments[self._rank * each : (self._rank + 1) * each]
        out = replace(op.out, name=f"{op.out.name}.part")
        yield Linear(
            x=self._parts[op.x].value, weight=op.weight.cut(columns=mine), segments=segments, out=out
        )
        yield AllReduce(x=out, ranks=self._tp, bias=op.bias, scale=op.scale, residual=op.residual, out=op.out)

    def _embed(self, op: Embed) -> Iterator[Op]:
        rows = self._rows(op.table.rows)
        out, place = replace(op.out, name=f"{op.out.name}.part"), RankPart(rows.start, op.table.rows)
        yield replace(op, table=op.table.cut(rows=(rows,)), part=place, out=out)
        yield AllReduce(x=out, ranks=self._tp, out=op.out)

    def _column_parallel(self, op: Linear) -> Iterator[Op]:
        """The head: its part of the logits, which the first rank gathers."""
        widths = tuple(len(self._rows(op.out.width, rank)) for rank in range(self._tp))
        rows = self._rows(op.out.width)
        out = replace(op.out, name=f"{op.out.name}.part", width=len(rows))
        bias = op.bias.cut(rows=(rows,)) if op.bias else None
        self._head = replace(op, weight=op.weight.cut(rows=(rows,)), bias=bias, out=out)
        yield self._head
        gathered = None if self._rank else op.out
        yield Gather(x=out, widths=widths, rank=self._rank, name=op.out.name, out=gathered)

    def _rows(self, count: int, rank: int | None = None) -> range:
        """Rows of the vocabulary that a rank has, by default this one."""
        rank, units = self._rank if rank is None else rank, -(-count // VOCABULARY_UNIT)
        first, last = (min(units * r // self._tp * VOCABULARY_UNIT, count) for r in (rank, rank + 1))
        return range(first, last)
