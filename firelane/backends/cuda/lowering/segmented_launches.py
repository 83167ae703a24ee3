"""Launches of a program that several ranks share: sums in segments, what the ranks of a stage exchange, and
what one stage hands on to the next."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor

from firelane.backends.cuda.device.launch import Work
from firelane.backends.cuda.device.linear_config import LinearConfig
from firelane.backends.cuda.kernels.matmul.linear import linear
from firelane.backends.cuda.kernels.matmul.linear_parts import linear_parts
from firelane.backends.cuda.kernels.matmul.transpose import are_worth
from firelane.backends.cuda.kernels.norms.tree_norm import tree_norm
from firelane.backends.cuda.kernels.rows.cast import cast
from firelane.backends.cuda.kernels.tree import sum_of_experts, tree_sum
from firelane.backends.cuda.lowering.lowering import Lowering
from firelane.backends.cuda.lowering.step_memory import stride_of
from firelane.backends.cuda.rank_sum import RankSum
from firelane.backends.cuda.step.sum_order import SumOrder, is_ragged
from firelane.program.ops import AllReduce, ExpertLinear, Gather, Linear, Receive, RMSNorm, Send
from firelane.program.segments import SEGMENTS


def tree_linear(op: Linear, to: Lowering, config: LinearConfig, counted: dict[str, Any]) -> list[Work]:
    """A product whose segments are added as a tree: in parts that another launch adds up, or one segment
    after the other."""
    matrix, x, out = to.matrix(op.weight.name), to.at(op.x), to.at(op.out)
    assert not are_worth(matrix.escapes), f"{op.weight.name}: escapes of a matrix that ranks share"
    order = SumOrder(
        count=len(op.segments), bounds=to.memory.bounds[op.segments], is_ragged=is_ragged(op.segments)
    )
    operands: dict[str, Any] = {
        "bias": to.optional(op.bias),
        "residual": to.at_or_none(op.residual),
        "scale": op.scale,
    }
    if config.parts:
        parts = planes(order.count, op, to)
        works = linear_parts(matrix, x, parts, config=config, x_t=None, order=order, **counted)
        return [*works, tree_sum(list(parts), out, width=op.out.width, **operands, **counted)]
    config = roomy(config, order)
    scratch = to.memory.decoded if config.decode_first else None
    levels = planes(order.levels, op, to) if order.levels else None
    return linear(
        matrix, x, out, config=config, scratch=scratch, order=order, levels=levels, **operands, **counted
    )


def roomy(config: LinearConfig, order: SumOrder) -> LinearConfig:
    """A config whose programs have registers for the addresses of all sums that wait."""
    if order.levels < 3 or config.row_tile <= 128:
        return config
    return replace(config, row_tile=128, stages=4)


def planes(count: int, op: Linear | ExpertLinear, to: Lowering) -> Tensor:
    """Scratch for so many sums of each number of the op's result."""
    rows, stride = to.rows(op.out), stride_of(op.out)
    return to.memory.parts[: count * rows * stride].view(count, rows, stride)


def tree_of_experts(op: ExpertLinear, slots: Tensor, to: Lowering) -> Work:
    """The sum of a row's slots, by runs of experts."""
    part, runs = op.part, len(op.segments)
    experts = part.of if part else op.weight.matrices
    lowest = (SEGMENTS * ((part.first if part else 0) + 1) - 1) // experts
    return sum_of_experts(
        slots,
        to.at(op.picks),
        to.at(op.out),
        experts=experts,
        first=lowest // runs * runs,
        runs=runs,
        width=op.out.width,
        residual=to.at_or_none(op.residual),
        **to.counted(op.out),
    )


def all_reduce(op: AllReduce, to: Lowering) -> list[Work]:
    """One shot: each rank reads what all have left, and adds it in the order of the tree; together with the
    norm behind it, where there is one."""
    meeting, parts = to.memory.exchange.meeting(op.x, to.rows(op.x))
    total = RankSum(
        parts=parts,
        bias=to.optional(op.bias),
        residual=to.at_or_none(op.residual),
        scale=op.scale,
        out=to.at(op.out),
        closing=to.memory.exchange.closing(op.x),
    )
    if op.out in to.normed_sums:
        to.rank_sums[op.out] = total
        return [meeting]
    added = tree_sum(
        total.parts,
        total.out,
        width=op.out.width,
        bias=total.bias,
        residual=total.residual,
        scale=total.scale,
        **to.counted(op.out),
    )
    return [meeting, added, *total.closing]


def norm_of_sum(op: RMSNorm, total: RankSum, to: Lowering) -> list[Work]:
    """The sum of what all ranks have left, and its norm."""
    launch = tree_norm(
        total,
        to.optional(op.weight),
        to.at(op.out),
        added=to.at_or_none(op.residual),
        scalar=to.optional(op.scalar),
        width=op.x.width,
        eps=op.eps,
        **to.counted(op.x),
    )
    return [launch, *total.closing]


def gather(op: Gather, to: Lowering) -> list[Work]:
    """Logits of all ranks, beside each other on the first."""
    meeting, parts = to.memory.exchange.meeting(op.x, to.rows(op.x))
    works: list[Work] = [meeting]
    if op.out is not None:
        counted, first = to.counted(op.x, is_head=True), 0
        for part, width in zip(parts, op.widths, strict=True):
            works.append(cast(part, to.at(op.out)[:, first:], width=width, **counted))
            first += width
    return works


def send(op: Send, to: Lowering) -> list[Work]:
    """A copy, so that the memory of values is this stage's own while the next one reads."""
    before, memory, after = to.memory.stages.sending(op.x, to.rows(op.x))
    return [before, cast(to.source(op.x), memory, width=op.x.width, **to.counted(op.x)), after]


def receive(op: Receive, to: Lowering) -> list[Work]:
    before, memory, after = to.memory.stages.receiving(op.out, to.rows(op.out))
    return [before, cast(memory, to.at(op.out), width=op.out.width, **to.counted(op.out)), after]
