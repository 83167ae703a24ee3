"""Attention of a tower whose heads are padded with zeros, where kernels do not take them as wide as they are.

Zeros add nothing to a sum. Each half of a head is padded by itself, as rotation pairs numbers of one half
with those of the other."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from firelane.models.blocks.blocks import Layer
from firelane.models.blocks.encoder import attend_both_sides
from firelane.models.blocks.stacked import stacked_vector
from firelane.program.ops import HeadShape, Linear, Rotary
from firelane.program.recipes import Padding, Piece
from firelane.program.values import DType, Value, Weight

THETA = 10000.0
ROW, COLUMN = 1, 2
UNIT = 16
"""Kernels of attention take heads that are a multiple of so many numbers wide."""


@dataclass(frozen=True, kw_only=True)
class PaddedHeads:
    """The heads of a tower, each `own` numbers wide in the checkpoint, a multiple of 4."""

    count: int
    own: int

    @property
    def shape(self) -> HeadShape:
        """With the zeros."""
        return HeadShape(heads=self.count, kv_heads=self.count, head_dim=-(-self.own // UNIT) * UNIT)

    def attend(self, layer: Layer, x: Value, places: Value, *, stream: Value) -> Value:
        """`stream`, plus attention of x over the whole image."""
        qkv = layer.decoder.add(self._inputs(layer, x))
        scale, rotary, axes = self.own**-0.5, self._rotary(), self._axes()
        seen = attend_both_sides(layer, qkv, self.shape, rotary=rotary, places=places, axes=axes, scale=scale)
        return layer.decoder.add(self._output(layer, seen, stream))

    def _padding(self, *, of_columns: bool = False) -> Padding | None:
        wide = self.shape.head_dim
        if wide == self.own:
            return None
        return Padding(own=self.own // 2, room=wide // 2, of_columns=of_columns)

    def _rotary(self) -> Rotary:
        """Half of the frequencies for the row, the same for the column; zeros do not turn."""
        quarter = self.own // 4
        turns = THETA ** -(np.arange(quarter, dtype=np.float32) / np.float32(quarter))
        zeros = (0.0,) * (self.shape.head_dim // 2 - 2 * quarter)
        return Rotary(inverse_frequencies=(*(float(f) for f in turns), *(float(f) for f in turns), *zeros))

    def _axes(self) -> tuple[int, ...]:
        quarter = self.own // 4
        return (ROW,) * quarter + (COLUMN,) * (self.shape.head_dim // 2 - quarter)

    def _inputs(self, layer: Layer, x: Value) -> Linear:
        stored, made = 3 * self.count * self.own, 3 * self.shape.q_width
        tensor, padding = layer.tensor("attn.qkv"), self._padding()
        matrix = Piece(tensor=f"{tensor}.weight", shape=(stored, x.width), padding=padding)
        vector = Piece(tensor=f"{tensor}.bias", shape=(stored,), padding=padding)
        dtype, name = layer.decoder.dtype, layer.name("qkv_bias")
        return Linear(
            x=x,
            weight=Weight(name=layer.name("qkv"), shape=(made, x.width), dtype=dtype, pieces=(matrix,)),
            bias=Weight(name=name, shape=(made,), dtype=DType.F32, pieces=(vector,)),
            out=layer.value("qkv", made, DType.F32),
        )

    def _output(self, layer: Layer, seen: Value, stream: Value) -> Linear:
        tensor, width = layer.tensor("attn.proj"), stream.width
        shape = (width, self.count * self.own)
        matrix = Piece(tensor=f"{tensor}.weight", shape=shape, padding=self._padding(of_columns=True))
        name, dtype = layer.name("output"), layer.decoder.dtype
        return Linear(
            x=seen,
            weight=Weight(name=name, shape=(width, seen.width), dtype=dtype, pieces=(matrix,)),
            bias=stacked_vector(f"{name}_bias", [(tensor, width)], "bias"),
            residual=stream,
            out=layer.stream("middle"),
        )
