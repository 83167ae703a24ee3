"""A program that does nothing with weights of every recipe: rearranged, stacked, cut, by expert."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from firelane.program.ops import Product
from firelane.program.program import Program
from firelane.program.recipes import Padding, Piece, WeightLayout
from firelane.program.state import StateLayer
from firelane.program.values import Cost, DType, StepShape, Value, Weight

HEADS, D, K, E, N = 5, 16, 128, 3, 40
SHAPES = {
    "q": (HEADS * D, K),
    "k": (2 * D, K),
    "gate_up": (2 * N, K),
    "stored_transposed": (K, N),
    "experts": (E, K, 2 * N),
    "expert.0": (N, K),
    "expert.1": (N, K),
    "norm": (K,),
    "head_norm": (D,),
}
PAIRS: dict[str, Any] = {"view": (HEADS, D // 2, 2, K), "order": (0, 2, 1, 3)}


def piece(tensor: str, **fields: Any) -> Piece:
    return Piece(tensor=tensor, shape=SHAPES[tensor], **fields)


def weights() -> dict[str, Weight]:
    def weight(name: str, shape: tuple[int, ...], *pieces: Piece, **fields: Any) -> Weight:
        dtype = DType.BF16 if len(shape) > 1 else DType.F32
        return Weight(name=name, shape=shape, dtype=dtype, pieces=pieces, **fields)

    alternating = [piece("gate_up", view=(N, 2, K), take=(None, range(i, i + 1))) for i in (0, 1)]
    experts = piece("experts", view=(E, K, N, 2), order=(0, 3, 2, 1))
    found = [
        weight("qkk", ((HEADS + 4) * D, K), piece("q", **PAIRS), piece("k"), piece("k")),
        weight("gated", (2 * N, K), *alternating, layout=WeightLayout.GATED),
        weight("fused", (2 * N, K), piece("gate_up"), layout=WeightLayout.GATED),
        weight("turned", (N, K), piece("stored_transposed", order=(1, 0))),
        weight("together", (E, 2 * N, K), experts, layout=WeightLayout.GATED_EXPERTS),
        weight("apart", (2, N, K), piece("expert.0"), piece("expert.1"), layout=WeightLayout.EXPERTS),
        weight("norm", (K,), piece("norm", plus=1.0)),
        weight("head_norm", (D,), piece("head_norm", view=(D // 2, 2), order=(1, 0))),
    ]
    found += [replace(w.cut(rows=(range(7, 19), range(2))), name=f"{w.name} rows") for w in found[:6]]
    found += [replace(w.cut(columns=range(16, 32)), name=f"{w.name} columns") for w in found[:6]]
    rows, columns = Padding(own=D // 2, room=10), Padding(own=K // 4, room=40, of_columns=True)
    padded = weight("padded rows", (10 * 2 * HEADS, K), piece("q", padding=rows))
    found += [padded, replace(padded.cut(rows=(range(8, 10), range(29, 80))), name="padded rows, cut")]
    found += [
        weight("padded columns", (2 * D, 4 * 40), piece("k", padding=columns)),
        weight("padded vector", (20,), piece("head_norm", padding=rows, plus=1.0)),
    ]
    return {w.name: w for w in found}


@dataclass(frozen=True)
class Holder:
    """An op that has weights and does nothing."""

    weights: tuple[Weight, ...]
    inputs: tuple[Value, ...] = ()
    outputs: tuple[Value, ...] = ()
    products: tuple[Product, ...] = ()
    states: tuple[StateLayer, ...] = ()

    def cost(self, shape: StepShape) -> Cost:  # noqa: ARG002
        return Cost()

    def reference(self, step: object) -> None: ...


WEIGHTS = weights()
PROGRAM = Program(name="toy", vocab_size=1, max_model_len=1, ops=(Holder(tuple(WEIGHTS.values())),))
