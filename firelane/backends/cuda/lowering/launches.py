"""From a Program to the launches of one bucket: a function for each op kind, and no knowledge of models."""

from __future__ import annotations

from functools import singledispatch

from torch import Tensor

from firelane.backends.cuda.device.launch import Work
from firelane.backends.cuda.kernels.attention.attention_merge import merge_splits
from firelane.backends.cuda.kernels.attention.attention_split import attend_splits
from firelane.backends.cuda.kernels.attention.attention_tiles import attend_tiles
from firelane.backends.cuda.kernels.attention.latent import latent_cache
from firelane.backends.cuda.kernels.attention.query_tile import split_programs
from firelane.backends.cuda.kernels.embed import embed
from firelane.backends.cuda.kernels.matmul.experts import expert_gated, expert_linear, expert_squared
from firelane.backends.cuda.kernels.matmul.gated import gated_linear
from firelane.backends.cuda.kernels.matmul.head_linear import head_linear
from firelane.backends.cuda.kernels.matmul.linear import linear
from firelane.backends.cuda.kernels.matmul.linear_parts import linear_parts
from firelane.backends.cuda.kernels.norms.norm import rms_norm
from firelane.backends.cuda.kernels.rope import rope_and_cache
from firelane.backends.cuda.kernels.rows.cast import cast, select_rows
from firelane.backends.cuda.kernels.rows.features import read_features, tell_features
from firelane.backends.cuda.kernels.rows.gates import gated
from firelane.backends.cuda.kernels.rows.route import route
from firelane.backends.cuda.kernels.rows.store_hidden import store_hidden
from firelane.backends.cuda.kernels.sampling.sample import sample
from firelane.backends.cuda.lowering.lowering import Lowering, StepWork
from firelane.backends.cuda.lowering.product_plan import library_rows
from firelane.backends.cuda.lowering.recurrent_launches import apply_delta_rule, convolve, scan_state_space
from firelane.backends.cuda.lowering.segmented_launches import (
    all_reduce,
    gather,
    norm_of_sum,
    planes,
    receive,
    send,
    tree_linear,
    tree_of_experts,
)
from firelane.backends.cuda.step.split_k import SplitKSum
from firelane.backends.cuda.step.sum_order import SumOrder
from firelane.backends.cuda.step.tables import MAX_IN_FLIGHT
from firelane.backends.cuda.weights.placement import padded_rows
from firelane.program.ops import (
    AllReduce,
    Attention,
    Cast,
    DeltaRule,
    Embed,
    ExpertGatedLinear,
    ExpertLinear,
    Gated,
    GatedLinear,
    Gather,
    HeadLinear,
    LatentCache,
    Linear,
    Op,
    ReadFeatures,
    Receive,
    RMSNorm,
    RopeAndCache,
    Route,
    Sample,
    SelectRows,
    Send,
    ShortConv,
    StateSpace,
    TellFeatures,
)


def lower_step(to: Lowering) -> StepWork:
    """All launches of the bucket."""
    return StepWork(
        prepare=tuple(to.prepare(parity) for parity in range(MAX_IN_FLIGHT)),
        compute=tuple(work for op in to.program.ops for work in lower(op, to)),
    )


@singledispatch
def lower(op: Op, to: Lowering) -> list[Work]:
    """The launches that compute `op`."""
    raise NotImplementedError(f"no CUDA kernel for {type(op).__name__}")


lower.register(ShortConv, convolve)
lower.register(DeltaRule, apply_delta_rule)
lower.register(StateSpace, scan_state_space)
lower.register(AllReduce, all_reduce)
lower.register(Gather, gather)
lower.register(Send, send)
lower.register(Receive, receive)


@lower.register
def _(op: Embed, to: Lowering) -> list[Work]:
    table = to.matrix(op.table.name)
    launch = embed(
        table, to.memory.tables, to.at(op.out), scale=op.scale, part=op.part, max_tokens=to.bucket.tokens
    )
    return [launch]


@lower.register
def _(op: RMSNorm, to: Lowering) -> list[Work]:
    if total := to.rank_sums.pop(op.x, None):
        return norm_of_sum(op, total, to)
    launch = rms_norm(
        to.source(op.x),
        to.optional(op.weight),
        to.at(op.out),
        residual=to.at_or_none(op.residual),
        scalar=to.optional(op.scalar),
        width=op.x.width,
        groups=op.groups,
        eps=op.eps,
        **to.counted(op.x),
    )
    return [launch]


@lower.register
def _(op: Cast, to: Lowering) -> list[Work]:
    return [cast(to.source(op.x), to.at(op.out), width=op.x.width, **to.counted(op.x))]


@lower.register
def _(op: RopeAndCache, to: Lowering) -> list[Work]:
    by_position = to.memory.by_position
    launch = rope_and_cache(
        to.source(op.qkv),
        op=op,
        tables=to.memory.tables,
        rotary=None if op.rotary is None else by_position[op.rotary],
        temperature=None if op.temperature is None else by_position[op.temperature],
        q_norm=to.optional(op.norm.q) if op.norm else None,
        k_norm=to.optional(op.norm.k) if op.norm else None,
        cache=to.memory.pages.layers[op.layer],
        out=to.at(op.out),
        max_tokens=to.bucket.tokens,
    )
    return [launch]


@lower.register
def _(op: Attention, to: Lowering) -> list[Work]:
    memory, cache = to.memory, to.memory.pages.layers[op.layer]
    sinks = to.optional(op.sinks)
    programs = split_programs(op, to.num_sms)
    split = attend_splits(
        to.at(op.q),
        cache,
        memory.tables,
        op=op,
        partial=memory.partial,
        stats=memory.stats,
        programs=min(programs, memory.tables.max_kv_splits),
    )
    merge = merge_splits(
        memory.tables,
        op=op,
        partial=memory.partial,
        stats=memory.stats,
        sinks=sinks,
        out=to.at(op.out),
        max_chunks=to.bucket.chunks,
    )
    if to.bucket.decode:
        return [split, merge]
    tiles = -(-to.bucket.tokens // to.tile_tokens) + to.bucket.chunks
    many = attend_tiles(
        to.at(op.q),
        cache,
        memory.tables,
        to.at(op.out),
        op=op,
        sinks=sinks,
        tokens=to.tile_tokens,
        max_tiles=min(tiles, memory.tables.tiles.shape[0]),
    )
    return [split, merge, many]


@lower.register
def _(op: SelectRows, to: Lowering) -> list[Work]:
    launch = select_rows(
        to.source(op.x), to.memory.tables, to.at(op.out), width=op.x.width, max_rows=to.bucket.rows
    )
    return [launch]


@lower.register
def _(op: ReadFeatures, to: Lowering) -> list[Work]:
    features, columns = to.memory.features.read, op.columns
    assert features is not None
    mine = features[:, :, columns.start : columns.stop]
    return [read_features(mine, to.memory.tables, to.at(op.out), max_rows=to.bucket.tokens)]


@lower.register
def _(op: TellFeatures, to: Lowering) -> list[Work]:
    features, columns = to.memory.features.told, op.columns
    assert features is not None
    mine = features[:, :, columns.start : columns.stop]
    return [tell_features(to.source(op.x), to.memory.tables, mine, max_rows=to.bucket.tokens)]


@lower.register
def _(op: Linear, to: Lowering) -> list[Work]:
    is_head = op == to.program.head
    matrix, config = to.matrix(op.weight.name), to.config(op)
    works: list[Work] = []
    if is_head:
        works.append(
            store_hidden(
                to.at(op.x),
                to.memory.tables,
                to.memory.hidden,
                width=op.x.width,
                max_rows=to.bucket.rows,
            )
        )
    counted = to.counted(op.x, is_head=is_head)
    if op.segments:
        return works + tree_linear(op, to, config, counted)
    order = SumOrder(count=to.products.run_count(op.products[0]))
    if not config.parts:
        residual = to.at_or_none(op.residual)
        scratch = to.memory.decoded if config.decode_first else None
        return works + linear(
            matrix,
            to.at(op.x),
            to.at(op.out),
            bias=to.optional(op.bias),
            residual=residual,
            scale=op.scale,
            softcap=op.softcap,
            config=config,
            scratch=scratch,
            x_t=to.x_t(op.x),
            order=order,
            **counted,
        )
    split_k = _split_k(op, order.count + 1, to)
    to.split_k[op.out] = split_k
    return works + linear_parts(
        matrix, to.at(op.x), split_k.parts, config=config, x_t=to.x_t(op.x), order=order, **counted
    )


def _split_k(op: Linear, count: int, to: Lowering) -> SplitKSum:
    readers = to.products.readers[op.out]
    return SplitKSum(
        parts=planes(count, op, to),
        width=op.out.width,
        bias=to.optional(op.bias),
        residual=to.at_or_none(op.residual),
        out=None if len(readers) == 1 else to.at(op.out),
        scale=op.scale,
    )


@lower.register
def _(op: GatedLinear, to: Lowering) -> list[Work]:
    config = to.config(op)
    return gated_linear(
        to.matrix(op.weight.name),
        to.at(op.x),
        to.at(op.out),
        bias=to.optional(op.bias),
        gate=op.gate,
        config=config,
        scratch=to.memory.decoded if config.decode_first else None,
        sums=_library_sums(op, to) if config.library else None,
        x_t=to.x_t(op.x),
        **to.counted(op.x),
    )


def _library_sums(op: GatedLinear, to: Lowering) -> Tensor:
    rows, width = library_rows(to.rows(op.x)), padded_rows(op.weight)
    return to.memory.parts[: rows * width].view(rows, width)


@lower.register
def _(op: Route, to: Lowering) -> list[Work]:
    launch = route(
        to.source(op.logits),
        to.at(op.picks),
        to.at(op.shares),
        op=op,
        bias=to.optional(op.bias),
        factors=to.optional(op.factors),
        **to.counted(op.logits),
    )
    return [launch]


@lower.register
def _(op: ExpertGatedLinear, to: Lowering) -> list[Work]:
    works, operands = to.experts(op)
    matrix = to.matrix(op.weight.name)
    if op.gate.halves == 1:
        return [*works, expert_squared(matrix, to.at(op.x), to.at(op.out), **operands)]
    return [*works, expert_gated(matrix, to.at(op.x), to.at(op.out), gate=op.gate, **operands)]


@lower.register
def _(op: ExpertLinear, to: Lowering) -> list[Work]:
    works, operands = to.experts(op)
    parts = planes(op.picks.width, op, to)
    works.append(expert_linear(to.matrix(op.weight.name), to.at(op.x), parts, **operands))
    if op.segments:
        return [*works, tree_of_experts(op, parts, to)]
    residual = to.at_or_none(op.residual)
    if op.out in to.products.may_be_parts:
        out = None if len(to.products.readers[op.out]) == 1 else to.at(op.out)
        to.split_k[op.out] = SplitKSum(parts=parts, width=op.out.width, bias=None, residual=residual, out=out)
        return works
    total = SplitKSum(parts=parts, width=op.out.width, bias=None, residual=residual, out=None)
    return [*works, cast(total, to.at(op.out), width=op.out.width, **to.counted(op.out))]


@lower.register
def _(op: LatentCache, to: Lowering) -> list[Work]:
    by_position = to.memory.by_position
    launches = latent_cache(
        to.at(op.q),
        to.source(op.latent),
        op=op,
        tables=to.memory.tables,
        rotary=None if op.rotary is None else by_position[op.rotary],
        temperature=None if op.temperature is None else by_position[op.temperature],
        norm=to.weights.vector(op.norm.name),
        cache=to.memory.pages.layers[op.layer],
        out=to.at(op.out),
        max_tokens=to.bucket.tokens,
    )
    return [*launches]


@lower.register
def _(op: HeadLinear, to: Lowering) -> list[Work]:
    launch = head_linear(
        to.matrix(op.weight.name),
        to.at(op.x),
        to.at(op.out),
        heads=op.weight.matrices,
        keep=op.keep,
        config=to.products.expert_config(op, to.bucket),
        **to.counted(op.x),
    )
    return [launch]


@lower.register
def _(op: Gated, to: Lowering) -> list[Work]:
    return [gated(to.at(op.x), to.at(op.gate), to.at(op.out), op=op, **to.counted(op.x))]


@lower.register
def _(op: Sample, to: Lowering) -> list[Work]:
    memory = to.memory
    launches = sample(
        to.at(op.logits),
        memory.tables,
        memory.state,
        memory.outputs,
        memory.sampling,
        vocab=op.logits.width,
        max_rows=to.bucket.rows,
    )
    return [*launches]
