"""LatentCache: what latent attention (DeepSeek V2, 2024) does between its projections and its scores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from firelane.program.cache_codes import CacheCode
from firelane.program.ops.base import Op
from firelane.program.ops.heads import Temperature
from firelane.program.ops.rope import Rotary
from firelane.program.values import Cost, DType, StepShape, Value, Weight

if TYPE_CHECKING:
    from firelane.program.reference_step import ReferenceStep


@dataclass(frozen=True, kw_only=True)
class LatentCache(Op):
    """A row of `latent` is [c | r]: the latent, which is RMS-normalised, and a key for the position, which is
    rotated; both, rounded to out's dtype or each in `code`, are the one key of `layer` in the cache. A row of
    q is [n | r] for each head: its last r columns are rotated, and all are multiplied by the position's
    temperature, if there is one, on their way to `out`.

    norm: [c]; q, latent: F32. rotary: None without positions.
    """

    q: Value
    latent: Value
    layer: int
    heads: int
    norm: Weight
    eps: float
    rotary: Rotary | None
    temperature: Temperature | None = None
    code: CacheCode | None = None
    out: Value

    def __post_init__(self) -> None:
        name = f"LatentCache {self.layer}"
        assert self.q.dtype is self.latent.dtype is DType.F32, f"{name}: q and latent are F32"
        assert self.q.width == self.out.width, f"{name}: q {self.q.width}, out {self.out.width}"
        assert self.rank <= self.latent.width, f"{name}: norm {self.norm.shape}, latent {self.latent.width}"
        assert self.q.width % self.heads == 0, f"{name}: q {self.q.width} of {self.heads} heads"
        assert self.rope_dim <= self.q.width // self.heads, f"{name}: {self.rope_dim} of q's columns turn"
        assert self.rotary is None or 2 * len(self.rotary.inverse_frequencies) == self.rope_dim, (
            f"{name}: frequencies"
        )

    @property
    def rank(self) -> int:
        """c, the width of the latent."""
        return self.norm.shape[0]

    @property
    def rope_dim(self) -> int:
        """r, the columns of a head, and of the key, that are for the position."""
        return self.latent.width - self.rank

    @property
    def tables(self) -> tuple[Rotary | Temperature, ...]:
        """Tables that a backend keeps by position."""
        return tuple(t for t in (self.rotary, self.temperature) if t is not None)

    def cost(self, shape: StepShape) -> Cost:
        turned = self.heads * self.rope_dim + self.latent.width
        return Cost(
            flops=3.0 * shape.tokens * turned,
            weight_bytes=float(self.norm.nbytes),
            kv_bytes=float(shape.tokens * self.latent.width * (1 if self.code else self.out.dtype.itemsize)),
        )

    def reference(self, step: ReferenceStep) -> None:
        latent = step.read(self.latent)
        c, k = latent[:, : self.rank], latent[:, None, self.rank :]
        q = step.read(self.q).reshape(len(latent), self.heads, -1)
        n, r = np.split(q, [q.shape[-1] - self.rope_dim], axis=-1)
        if self.rotary is not None:
            r, k = self.rotary.rotate(r, step.positions), self.rotary.rotate(k, step.positions)
        q = np.concatenate([n, r], axis=-1)
        if self.temperature is not None:
            q = q * self.temperature.at(step.positions)[:, None, None]
        scale = np.sqrt(np.mean(c * c, axis=-1, keepdims=True) + np.float32(self.eps))
        normed = c / scale * step.weight(self.norm)
        step.write(self.out, q.reshape(len(q), -1))
        step.write_cache(self.layer, np.concatenate([normed[:, None], k], axis=-1), None)
