"""Queries, keys and values as a checkpoint keeps them, put into the order in which kernels rotate heads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from firelane.models.blocks.rotary_layout import RotaryLayout
from firelane.program.ops import HeadShape
from firelane.program.recipes import Piece


@dataclass(frozen=True, kw_only=True)
class AttentionTensors:
    """Names of the tensors of attention in the checkpoint, below the layer's `block`. qkv: of queries,
    keys and values, or one that holds all of them. gated: the rows of each query head are followed by as many
    of a gate, whose sigmoid multiplies what the head finds."""

    block: str = "self_attn"
    qkv: tuple[str, ...] = ("q_proj", "k_proj", "v_proj")
    q_norm: str = "q_norm"
    k_norm: str = "k_norm"
    out: str = "o_proj"
    gated: bool = False


SEPARATE = AttentionTensors()


@dataclass(frozen=True, kw_only=True)
class Projections:
    """Projections of one layer: `tensors` holds queries, keys and values, one tensor each or all in one;
    `inputs` is the width of what they read. gated: behind the rows of each query head are those of its
    gate."""

    heads: HeadShape
    layout: RotaryLayout
    inputs: int
    tensors: tuple[str, ...]
    gated: bool = False

    @property
    def rows(self) -> int:
        return self.heads.q_width + self.heads.k_width + self.heads.v_width

    def matrix(self) -> tuple[Piece, ...]:
        """Rows of queries, then of keys, then of values."""
        heads, turn = self.heads, self.layout.matrix
        names = [f"{tensor}.weight" for tensor in self.tensors]
        if len(names) == 1:
            (fused,) = names
            turned = turn(fused, self._all, self.inputs, kept=self._turned)
            return (*turned, Piece(tensor=fused, shape=(self.rows, self.inputs), rows=self._values))
        q, k, v = names
        return (
            *turn(q, heads.heads, self.inputs, behind=heads.head_dim if self.gated else 0),
            *turn(k, heads.kv_heads, self.inputs),
            Piece(tensor=v, shape=(heads.v_width, self.inputs)),
        )

    def gate(self) -> tuple[Piece, ...]:
        """Rows of the gates of all query heads."""
        heads, d = self.heads.heads, self.heads.head_dim
        shape, view = (2 * heads * d, self.inputs), (heads, 2, d, self.inputs)
        return (Piece(tensor=f"{self.tensors[0]}.weight", shape=shape, view=view, take=(None, range(1, 2))),)

    def bias(self) -> tuple[Piece, ...]:
        heads, turn = self.heads, self.layout.vector
        names = [f"{tensor}.bias" for tensor in self.tensors]
        if len(names) == 1:
            (fused,) = names
            values = Piece(tensor=fused, shape=(self.rows,), rows=self._values)
            return (*turn(fused, self._all, kept=self._turned), values)
        q, k, v = names
        return (
            *turn(q, heads.heads),
            *turn(k, heads.kv_heads),
            Piece(tensor=v, shape=(heads.v_width,)),
        )

    def norm(self, tensor: str, kind: Literal["q", "k"], *, whole: bool, plus: float) -> tuple[Piece, ...]:
        """The weight of the norm of queries or of keys: of each head, or of all heads together."""
        count = (self.heads.heads if kind == "q" else self.heads.kv_heads) if whole else 1
        return self.layout.vector(f"{tensor}.weight", count, plus=plus)

    @property
    def _all(self) -> int:
        return self.heads.heads + 2 * self.heads.kv_heads

    @property
    def _turned(self) -> range:
        """Heads of queries and keys."""
        return range(self.heads.heads + self.heads.kv_heads)

    @property
    def _values(self) -> range:
        """Rows of values."""
        return range(self.rows - self.heads.v_width, self.rows)
