"""The products of a layer with experts: each row times the matrices of the experts that Route picked for it.

The k results of a row, its slots, lie beside each other: slot j is of expert picks[row, j].
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from firelane.program.ops.base import F32, Op, Product
from firelane.program.ops.gated_linear import SILU, Gate
from firelane.program.segments import segment_ranges, tree_sum
from firelane.program.values import Cost, DType, RankPart, StepShape, Value, Weight

if TYPE_CHECKING:
    from firelane.program.reference_step import ReferenceStep


@dataclass(frozen=True, kw_only=True)
class ExpertGatedLinear(Op):
    """Slot j of out = gate(share · (x · gateᵀ + gate bias), share · (x · upᵀ + up bias)), with [gate; up] =
    weight[picks[j]] and share = shares[j], 1 if there are none. weight: [experts, 2 N, x.width]; bias:
    [experts, 2 N, 1] F32; out: [T, k · N]. Where the gate has no half of its own ("relu2"), up's N rows are
    all that a weight has. Sums and the gate's function in float32. Of a rank the experts may be a `part`:
    slots of those that it does not have hold nothing."""

    x: Value
    picks: Value
    weight: Weight
    bias: Weight | None = None
    gate: Gate = SILU
    shares: Value | None = None
    part: RankPart | None = None
    out: Value

    def __post_init__(self) -> None:
        n, name = self.out.width // self.picks.width, f"ExpertGatedLinear {self.out.name}"
        check_slots(name, self.picks, self.shares, self.out.width)
        assert self.weight.shape[1:] == (self.gate.halves * n, self.x.width), (
            f"{name}: {self.weight.shape}, x {self.x.width}"
        )
        gated = self.gate.halves == 2
        assert all(w.layout.by_expert and w.layout.is_gated == gated for w in self.weights), f"{name}: layout"
        check_bias(name, self.weight, self.bias)

    @property
    def products(self) -> tuple[Product, ...]:
        return (Product(self.x, self.weight, self.out),)

    def cost(self, shape: StepShape) -> Cost:
        return expert_cost(self.weights, self.picks, self.part, shape)

    def reference(self, step: ReferenceStep) -> None:
        x, n = step.read(self.x), self.out.width // self.picks.width
        out = np.zeros((len(x), self.picks.width, n), np.float32)
        for expert, rows, slots in by_expert(step.read(self.picks), held(self.part, self.weight)):
            both = step.product(x[rows], self.weight, matrix=expert)
            if self.bias is not None:
                both += step.weight(self.bias)[expert, :, 0]
            if self.shares is not None:
                both *= step.read(self.shares)[rows, slots, None]
            out[rows, slots] = self.gate.of_sums(both)
        step.write(self.out, out.reshape(len(x), -1))


@dataclass(frozen=True, kw_only=True)
class ExpertLinear(Op):
    """out = residual + the sum over slots, in their order, of shares[j] · (x's slot j · weight[picks[j]]ᵀ +
    bias[picks[j]]); all shares are 1 if there are none. x: [T, k · N]; weight: [experts, out.width, N]; bias:
    [experts, out.width, 1] F32; out, residual: F32.

    With `segments`, runs of so many experts, the slots of each are summed apart, then as a tree (see
    program.segments); the residual comes last. Of a rank the experts may be a `part`."""

    x: Value
    picks: Value
    shares: Value | None = None
    weight: Weight
    bias: Weight | None = None
    residual: Value | None = None
    part: RankPart | None = None
    segments: tuple[int, ...] = ()
    out: Value

    def __post_init__(self) -> None:
        n, name = self.x.width // self.picks.width, f"ExpertLinear {self.out.name}"
        check_slots(name, self.picks, self.shares, self.x.width)
        assert self.weight.shape[1:] == (self.out.width, n), f"{name}: {self.weight.shape}, x {self.x.width}"
        assert self.weight.layout.by_expert, f"{name}: layout"
        assert self.out.dtype is DType.F32, f"{name}: out is F32"
        assert self.residual is None or self.residual.width == self.out.width, f"{name}: residual"
        check_bias(name, self.weight, self.bias)
        experts = self.weight.matrices
        assert not self.segments or sum(self.segments) == experts, (
            f"{name}: {self.segments} of {experts} experts"
        )

    @property
    def products(self) -> tuple[Product, ...]:
        return (Product(self.x, self.weight, self.out),)

    def cost(self, shape: StepShape) -> Cost:
        return expert_cost(self.weights, self.picks, self.part, shape)

    def reference(self, step: ReferenceStep) -> None:
        added = None if self.residual is None else step.read(self.residual)
        if not self.segments:
            step.write(self.out, self._add(step, range(self.weight.matrices), added))
            return
        ranges = segment_ranges(self.segments)
        out = tree_sum([self._add(step, experts, None) if experts else None for experts in ranges])
        assert out is not None
        step.write(self.out, out if added is None else out + added)

    def _add(self, step: ReferenceStep, experts: range, added: F32 | None) -> F32:
        """`added`, and the slots of these experts, counted from the first that the weight has."""
        picks = step.read(self.picks)
        x = step.read(self.x).reshape(*picks.shape, -1)
        out = np.zeros((len(x), self.out.width), np.float32) if added is None else added.copy()
        wanted = held(self.part, self.weight)[experts.start : experts.stop]
        for at, rows, slots in by_expert(picks, wanted):  # ascending, as a row's slots are
            expert = experts.start + at
            part = step.product(x[rows, slots], self.weight, matrix=expert)
            if self.bias is not None:
                part += step.weight(self.bias)[expert, :, 0]
            if self.shares is not None:
                part *= step.read(self.shares)[rows, slots, None]
            out[rows] += part
        return out


def held(part: RankPart | None, weight: Weight) -> range:
    """Ids of the experts that the weight has."""
    first = part.first if part else 0
    return range(first, first + weight.matrices)


def by_expert(picks: F32, experts: range) -> Iterator[tuple[int, NDArray[np.intp], NDArray[np.intp]]]:
    """Each of these experts that was picked, by its place among them and in ascending order, with the rows
    that picked it and in which slot."""
    for expert in np.unique(picks).astype(int).tolist():
        rows, slots = np.nonzero(picks == expert)
        if expert in experts:
            yield expert - experts.start, rows, slots


def experts_touched(experts: int, picks: int, rows: int) -> float:
    """The number of experts that a step of so many rows reads, on average, if picks are equally likely."""
    return experts * (1 - (1 - picks / experts) ** rows)


def expert_cost(weights: tuple[Weight, ...], picks: Value, part: RankPart | None, shape: StepShape) -> Cost:
    """Cost of products with the picked experts' matrices, the first of `weights`, if all are equally
    likely."""
    rows, (experts, n, k) = shape.rows(picks.rows), weights[0].shape
    total = part.of if part else experts
    share = experts_touched(total, picks.width, rows) / total
    products = rows * picks.width * experts / total
    return Cost(flops=2.0 * products * n * k, weight_bytes=share * sum(w.nbytes for w in weights))


def check_slots(name: str, picks: Value, shares: Value | None, width: int) -> None:
    assert picks.dtype is DType.I32, f"{name}: picks are I32"
    assert width % picks.width == 0, f"{name}: {width} in {picks.width} slots"
    if shares is not None:
        assert shares.dtype is DType.F32, f"{name}: shares are F32"
        assert shares.width == picks.width, f"{name}: {picks.width} picks, {shares.width} shares"


def check_bias(name: str, weight: Weight, bias: Weight | None) -> None:
    if bias is not None:
        assert bias.shape == (*weight.shape[:2], 1), f"{name}: bias {bias.shape}"
        assert bias.dtype is DType.F32, f"{name}: bias is F32"
