"""Cuts of ops: how each kind makes some columns of what it makes, and what it needs of its inputs for that.

A kind that is not here makes all of its columns or none: norms over whole rows, what is sampled, routing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import singledispatch

from firelane.parallel.columns import Columns, Held, of_units, shifted, units
from firelane.program.ops import (
    Attention,
    Cast,
    DeltaRule,
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
from firelane.program.values import Value, Weight

Parts = Mapping[Value, Held]
"""By the whole value, what the rank has of it; values that are not in it, it has whole."""


@dataclass(frozen=True, kw_only=True)
class Cut:
    """A cut of an op. needs: columns of its inputs, of all that it does not need whole. make: the rank's op,
    which makes `out`. cache: the layer of the KV cache that it touches, and the KV heads that it needs
    there."""

    needs: tuple[tuple[Value, Columns], ...] = ()
    make: Callable[[Value, Parts], Op]
    cache: tuple[int, range] | None = field(default=None)


@singledispatch
def cut(op: Op, columns: Columns) -> Cut | None:
    """`op` for these columns of what it makes; None where it cannot be cut so."""
    del op, columns
    return None


def part(parts: Parts, value: Value) -> Value:
    """The part of a value that the rank has."""
    return parts[value].value if value in parts else value


def place(parts: Parts, value: Value, columns: Columns) -> int:
    """The place where these columns begin in what the rank has of a value."""
    return parts[value].at(columns) if value in parts else columns[0].start


def rows_of(weight: Weight | None, rows: Columns) -> Weight | None:
    return None if weight is None else weight.cut(rows=rows)


@cut.register
def _(op: Linear, columns: Columns) -> Cut | None:
    if op.residual is not None or op.segments:
        return None

    def make(out: Value, parts: Parts) -> Op:
        weight, bias = op.weight.cut(rows=columns), rows_of(op.bias, columns)
        return replace(op, x=part(parts, op.x), weight=weight, bias=bias, out=out)

    return Cut(make=make)


@cut.register
def _(op: GatedLinear, columns: Columns) -> Cut | None:
    def make(out: Value, parts: Parts) -> Op:
        weight, bias = op.weight.cut(rows=columns), rows_of(op.bias, columns)
        return replace(op, x=part(parts, op.x), weight=weight, bias=bias, out=out)

    return Cut(make=make)


@cut.register
def _(op: Cast, columns: Columns) -> Cut | None:
    def make(out: Value, parts: Parts) -> Op:
        return replace(op, x=part(parts, op.x), out=out)

    return Cut(needs=((op.x, columns),), make=make)


@cut.register
def _(op: Gated, columns: Columns) -> Cut | None:
    gate = shifted(columns, op.column)

    def make(out: Value, parts: Parts) -> Op:
        assert place(parts, op.x, columns) == 0, f"{op.out.name}: x has other columns in front"
        at = place(parts, op.gate, gate)
        return replace(op, x=part(parts, op.x), gate=part(parts, op.gate), column=at, out=out)

    return Cut(needs=((op.x, columns), (op.gate, gate)), make=make)


@cut.register
def _(op: RMSNorm, columns: Columns) -> Cut | None:
    groups = units(columns, op.x.width // op.groups)
    if op.groups == 1 or op.residual is not None or op.scalar is not None or groups is None:
        return None

    def make(out: Value, parts: Parts) -> Op:
        weight = rows_of(op.weight, columns)
        return replace(op, x=part(parts, op.x), weight=weight, groups=len(groups), out=out)

    return Cut(needs=((op.x, columns),), make=make)


@cut.register
def _(op: HeadLinear, columns: Columns) -> Cut | None:
    total, made, read = op.weight.shape
    heads = units(columns, made + op.keep)
    if heads is None or total == 1:
        return None

    def make(out: Value, parts: Parts) -> Op:
        return replace(op, x=part(parts, op.x), weight=op.weight.cut(experts=heads), out=out)

    return Cut(needs=((op.x, (of_units(heads, read + op.keep),)),), make=make)


def kv_heads(heads: range | None, groups: int, group: int) -> range | None:
    """The KV heads, or groups, that these heads read, in each of which are `group` of them: whole ones, or
    one of which they are a part; None where it is neither."""
    if heads is None:
        return None
    first, last = heads.start // group, -(-heads.stop // group)
    is_whole = heads.start % group == 0 == heads.stop % group
    return range(first, last) if is_whole or last == first + 1 <= groups else None


def _shape(shape: HeadShape, heads: range, kv: range) -> HeadShape:
    return replace(shape, heads=len(heads), kv_heads=len(kv))


@cut.register
def _(op: Attention, columns: Columns) -> Cut | None:
    s = op.shape
    heads = units(columns, s.v_dim)
    kv = kv_heads(heads, s.kv_heads, s.group)
    if heads is None or kv is None:
        return None

    def make(out: Value, parts: Parts) -> Op:
        sinks = rows_of(op.sinks, (heads,))
        return replace(op, q=part(parts, op.q), shape=_shape(s, heads, kv), sinks=sinks, out=out)

    return Cut(needs=((op.q, (of_units(heads, s.head_dim),)),), make=make, cache=(op.layer, kv))


@cut.register
def _(op: RopeAndCache, columns: Columns) -> Cut | None:
    s = op.shape
    heads = units(columns, s.head_dim)
    kv = kv_heads(heads, s.kv_heads, s.group)
    if heads is None or kv is None or (op.norm is not None and op.norm.whole):
        return None
    keys = of_units(kv, s.head_dim, s.q_width), of_units(kv, s.v_dim, s.q_width + s.k_width)
    qkv = (of_units(heads, s.head_dim), *(keys if op.keys else ()))

    def make(out: Value, parts: Parts) -> Op:
        return replace(op, qkv=part(parts, op.qkv), shape=_shape(s, heads, kv), out=out)

    return Cut(needs=((op.qkv, qkv),), make=make, cache=(op.layer, kv))


@cut.register
def _(op: LatentCache, columns: Columns) -> Cut | None:
    heads = units(columns, op.q.width // op.heads)
    if heads is None:
        return None

    def make(out: Value, parts: Parts) -> Op:
        return replace(op, q=part(parts, op.q), heads=len(heads), out=out)

    return Cut(needs=((op.q, columns),), make=make, cache=(op.layer, range(1)))


@cut.register
def _(op: ShortConv, columns: Columns) -> Cut | None:
    taps = tuple(r for tap in range(op.taps) for r in shifted(columns, tap * op.out.width))

    def make(out: Value, parts: Parts) -> Op:
        assert place(parts, op.x, columns) == 0, f"{op.out.name}: x has other columns in front"
        weight, bias = op.weight.cut(rows=taps), rows_of(op.bias, columns)
        return replace(op, x=part(parts, op.x), weight=weight, bias=bias, out=out)

    return Cut(needs=((op.x, columns),), make=make)


@cut.register
def _(op: DeltaRule, columns: Columns) -> Cut | None:
    s, (decay_at, beta_at) = op.shape, op.columns
    heads = units(columns, s.value_dim)
    keys = kv_heads(heads, s.key_heads, s.group)
    if heads is None or keys is None:
        return None
    channels = of_units(heads, s.decay_width // s.heads)
    decay, beta = shifted((channels,), decay_at), shifted((heads,), beta_at)
    parts_of_qkv = (
        of_units(keys, s.key_dim),
        of_units(keys, s.key_dim, s.key_width),
        of_units(heads, s.value_dim, 2 * s.key_width),
    )

    def make(out: Value, parts: Parts) -> Op:
        return replace(
            op,
            qkv=part(parts, op.qkv),
            decay=part(parts, op.decay),
            beta=part(parts, op.beta),
            columns=(place(parts, op.decay, decay), place(parts, op.beta, beta)),
            a_log=op.a_log.cut(rows=(heads,)),
            dt_bias=op.dt_bias.cut(rows=(channels,)),
            shape=replace(s, key_heads=len(keys), heads=len(heads)),
            out=out,
        )

    needs = (op.qkv, parts_of_qkv), (op.decay, decay), (op.beta, beta)
    return Cut(needs=needs, make=make)


@cut.register
def _(op: StateSpace, columns: Columns) -> Cut | None:
    s = op.shape
    heads = units(columns, s.head_dim)
    groups = kv_heads(heads, s.groups, s.heads // s.groups)
    if heads is None or groups is None:
        return None
    dt, behind = shifted((heads,), op.column), s.width + s.groups * s.state_dim
    xbc = (
        columns[0],
        of_units(groups, s.state_dim, s.width),
        of_units(groups, s.state_dim, behind),
    )

    def make(out: Value, parts: Parts) -> Op:
        return replace(
            op,
            xbc=part(parts, op.xbc),
            dt=part(parts, op.dt),
            column=place(parts, op.dt, dt),
            a_log=op.a_log.cut(rows=(heads,)),
            dt_bias=op.dt_bias.cut(rows=(heads,)),
            skip=op.skip.cut(rows=(heads,)),
            shape=replace(s, heads=len(heads), groups=len(groups)),
            out=out,
        )

    return Cut(needs=((op.xbc, xbc), (op.dt, dt)), make=make)


def is_row_parallel(op: Op, producer: Op | None) -> bool:
    """Whether the product's inputs are of heads or of an MLP's inside, which ranks may share out: its sums
    are then made of segments."""
    if not isinstance(op, Linear) or op.softcap:
        return False
    if isinstance(producer, RMSNorm):
        return producer.groups > 1
    return isinstance(producer, Attention | HeadLinear | GatedLinear | Gated)
