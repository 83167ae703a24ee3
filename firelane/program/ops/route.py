"""Route: the experts that each token goes to (Shazeer et al., "Outrageously Large Neural Networks", 2017)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from firelane.program.ops.base import F32, Op
from firelane.program.values import Cost, DType, StepShape, Value, Weight

if TYPE_CHECKING:
    from firelane.program.reference_step import ReferenceStep

LEAST_SUM = np.float32(1e-20)
"""Added to the sum that normalised shares are divided by."""


@dataclass(frozen=True, kw_only=True)
class Groups:
    """Groups of experts that lie beside each other: `count` of them, of which each token uses the `keep`
    best. A group is as good as the sum of its `best` best experts."""

    count: int
    keep: int
    best: int


@dataclass(frozen=True, kw_only=True)
class Route(Op):
    """picks: of each row the k experts with the highest score + bias, in ascending order of their ids; of
    equals the lower id is chosen. shares: what each of them counts for, in the same order, from the scores
    without bias: divided by their sum if `normalise`, times `scale`, times the expert's factor.

    logits: [T, experts] F32; picks: [T, k] I32; shares: [T, k] F32; bias, factors: [experts]. Experts of
    groups that are not kept are never chosen.
    """

    logits: Value
    bias: Weight | None = None
    score: Literal["softmax", "sigmoid"] = "softmax"
    groups: Groups | None = None
    normalise: bool = True
    scale: float = 1.0
    factors: Weight | None = None
    picks: Value
    shares: Value

    def __post_init__(self) -> None:
        experts, k, name = self.logits.width, self.picks.width, f"Route {self.picks.name}"
        assert self.logits.dtype is self.shares.dtype is DType.F32, f"{name}: logits and shares are F32"
        assert self.picks.dtype is DType.I32, f"{name}: picks are I32"
        assert self.shares.width == k, f"{name}: {k} picks, {self.shares.width} shares"
        assert 0 < k <= experts, f"{name}: {k} of {experts} experts"
        for vector in (self.bias, self.factors):
            assert vector is None or vector.shape == (experts,), f"{name}: {vector and vector.shape}"
        if (g := self.groups) is not None:
            assert experts % g.count == 0, f"{name}: {experts} experts in {g.count} groups"
            size = experts // g.count
            assert 0 < g.keep <= g.count, f"{name}: {g.keep} of {g.count} groups"
            assert 0 < g.best <= size, f"{name}: the best {g.best} of {size}"
            assert k <= g.keep * size, f"{name}: {k} of {g.keep * size} experts"

    @property
    def inputs(self) -> tuple[Value, ...]:
        return (self.logits,)

    @property
    def outputs(self) -> tuple[Value, ...]:
        return (self.picks, self.shares)

    def cost(self, shape: StepShape) -> Cost:  # noqa: ARG002 - a few comparisons a token
        return Cost()

    def reference(self, step: ReferenceStep) -> None:
        scores = self._scores(step.read(self.logits))
        wanted = scores if self.bias is None else scores + step.weight(self.bias)
        wanted = wanted if self.groups is None else masked(wanted, self.groups)
        picks = np.sort(np.argsort(-wanted, axis=1, kind="stable")[:, : self.picks.width], axis=1)
        shares = np.take_along_axis(scores, picks, axis=1)
        if self.normalise:
            shares = shares / (shares.sum(axis=1, keepdims=True) + LEAST_SUM)
        shares = shares * np.float32(self.scale)
        if self.factors is not None:
            shares = shares * step.weight(self.factors)[picks]
        step.write(self.picks, picks.astype(np.float32))
        step.write(self.shares, shares)

    def _scores(self, logits: F32) -> F32:
        if self.score == "sigmoid":
            return np.float32(0.5) * (1 + np.tanh(np.float32(0.5) * logits))
        powers = np.exp(logits - logits.max(axis=1, keepdims=True))
        return powers / powers.sum(axis=1, keepdims=True)


def masked(scores: F32, groups: Groups) -> F32:
    """-inf for experts of groups that are not among the best; of equal groups the first is kept."""
    by_group = scores.reshape(len(scores), groups.count, -1)
    goodness = np.sort(by_group, axis=2)[:, :, -groups.best :].sum(axis=2)
    kept = np.argsort(-goodness, axis=1, kind="stable")[:, : groups.keep]
    mask = np.full((len(scores), groups.count), -np.inf, np.float32)
    np.put_along_axis(mask, kept, 0, axis=1)
    return (by_group + mask[:, :, None]).reshape(scores.shape)
