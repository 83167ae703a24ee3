"""Program: a model as a flat list of ops over named values. Every backend, and every pass, starts from it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from firelane.program.ops import Attention, HeadShape, Linear, Op, Sample
from firelane.program.values import Cost, DType, StepShape, Value, Weight


@dataclass(frozen=True, kw_only=True)
class CacheLayer:
    """Keys and values of one attention layer: kv_heads x head_dim each a token, in `dtype`; window 0 = all
    positions.
    """

    layer: int
    shape: HeadShape
    dtype: DType
    window: int

    @property
    def bytes_per_token(self) -> int:
        return 2 * self.shape.kv_heads * self.shape.head_dim * self.dtype.itemsize


@dataclass(frozen=True, kw_only=True)
class Program:
    """A whole model. `max_model_len` is the longest sequence that the checkpoint was made for, in tokens."""

    name: str
    vocab_size: int
    max_model_len: int
    ops: tuple[Op, ...]

    def __post_init__(self) -> None:
        """Checks that each value is made once, before it is used."""
        made: set[Value] = set()
        names: set[str] = set()
        for op in self.ops:
            for value in op.inputs:
                assert value in made, f"{type(op).__name__} uses {value.name} before it is made"
            for value in op.outputs:
                assert value.name not in names, f"{value.name} is made twice"
                names.add(value.name)
                made.add(value)

    @property
    def weights(self) -> tuple[Weight, ...]:
        """Each weight once, in order of first use (a tied weight is one Weight used by two ops)."""
        return tuple(dict.fromkeys(w for op in self.ops for w in op.weights))

    @property
    def head(self) -> Linear | None:
        """The product that makes the logits. Its input is the model's hidden state, after the last norm."""
        sampled = {op.logits for op in self.ops if isinstance(op, Sample)}
        return next((op for op in self.ops if isinstance(op, Linear) and op.out in sampled), None)

    @property
    def hidden_width(self) -> int:
        """0 where the program has no head."""
        return self.head.x.width if self.head else 0

    @property
    def cache_layers(self) -> tuple[CacheLayer, ...]:
        return tuple(self._cache_layers())

    def _cache_layers(self) -> Iterator[CacheLayer]:
        for op in self.ops:
            if isinstance(op, Attention):
                yield CacheLayer(layer=op.layer, shape=op.shape, dtype=op.out.dtype, window=op.window)

    @property
    def kv_bytes_per_token(self) -> int:
        return sum(layer.bytes_per_token for layer in self.cache_layers)

    @property
    def weights_bytes(self) -> int:
        return sum(w.nbytes for w in self.weights)

    def cost(self, shape: StepShape) -> Cost:
        total = Cost()
        for op in self.ops:
            total = total + op.cost(shape)
        return total
