"""RopeAndCache: rotate queries and keys by position (Su et al., "RoFormer", 2021), and write keys and values
to the cache.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from firelane.program.ops.base import Op
from firelane.program.ops.heads import HeadNorm, HeadShape, Temperature
from firelane.program.ops.merge_rows import PLAIN
from firelane.program.values import Cost, DType, StepShape, Value, Weight

if TYPE_CHECKING:
    from firelane.program.reference_step import ReferenceStep

F32 = NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class Rotary:
    """Inverse frequencies, one for each pair of dimensions (i, i + head_dim / 2), in radians a position;
    float32 exact. cos and sin are computed in float64 from the float32 frequency times the position, times
    `scale`, then rounded to float32. A pair with frequency 0 is passed on, without the scale."""

    inverse_frequencies: tuple[float, ...]
    scale: float = 1.0

    def table(self, positions: int, *, begin: int = 0) -> F32:
        """float32 [positions, head_dim]: of each position, from `begin` on, the cosines of all frequencies,
        then the sines."""
        return np.concatenate(self._cos_sin(np.arange(begin, begin + positions, dtype=np.int64)), axis=1)

    def rotate(self, x: F32, positions: NDArray[np.int64]) -> F32:
        """x: float32 [tokens, heads, head_dim], rotated by positions: int64 [tokens]."""
        cos, sin = (part[:, None, :] for part in self._cos_sin(positions))
        return _turned_by(x, cos, sin)

    def rotate_placed(self, x: F32, positions: NDArray[np.int64], axes: tuple[int, ...]) -> F32:
        """x as in rotate(), whose frequency j turns by column axes[j] of positions: int64 [tokens, 3]."""
        tables = [self._cos_sin(positions[:, axis]) for axis in range(positions.shape[1])]
        chosen = np.array(axes)
        cos, sin = (
            np.take_along_axis(np.stack([t[part] for t in tables]), chosen[None, None, :], axis=0)[0, :, None]
            for part in (0, 1)
        )
        return _turned_by(x, cos, sin)

    def _cos_sin(self, positions: NDArray[np.int64]) -> tuple[F32, F32]:
        """float32 [positions, head_dim / 2] each."""
        frequencies = np.array(self.inverse_frequencies, np.float64)
        angles = positions.astype(np.float64)[:, None] * frequencies
        scale = np.where(frequencies == 0, 1.0, self.scale)
        return (np.cos(angles) * scale).astype(np.float32), (np.sin(angles) * scale).astype(np.float32)


def _turned_by(x: F32, cos: F32, sin: F32) -> F32:
    half = x.shape[-1] // 2
    low, high = x[..., :half], x[..., half:]
    out = np.empty_like(x)
    out[..., :half] = low * cos - high * sin
    out[..., half:] = high * cos + low * sin
    return out


@dataclass(frozen=True, kw_only=True)
class RopeAndCache(Op):
    """qkv rows hold [q heads | k heads | v heads]. Queries and keys are normalised, if there is a norm, then
    rotated, if there are angles; queries are multiplied by their position's temperature, if there is one. q
    goes to `out` [heads * head_dim]; k and v, rounded to out's dtype or to the shape's code, to the cache of
    `layer`. Without `keys`
    rows are queries alone, which will attend to what another op has written there (Gemma 4, 2026). Keys that
    hold their values are LatentCache's. places: F32 [PLACE_WIDTH] (merge_rows.py); a row whose kind is not
    PLAIN turns by its time, row and column, frequency j by number axes[j] of these (Qwen2-VL, 2024)."""

    qkv: Value
    layer: int
    shape: HeadShape
    rotary: Rotary | None
    norm: HeadNorm | None = None
    temperature: Temperature | None = None
    keys: bool = True
    places: Value | None = None
    axes: tuple[int, ...] = ()
    out: Value

    def __post_init__(self) -> None:
        s = self.shape
        assert not s.shared, f"RopeAndCache {self.layer}: keys that hold their values are LatentCache's"
        assert self.qkv.width == s.q_width + self.keys * (s.k_width + s.v_width), (
            f"RopeAndCache {self.layer}: qkv {self.qkv.width}"
        )
        assert self.out.width == s.q_width, f"RopeAndCache {self.layer}: out {self.out.width}"
        assert self.qkv.dtype is DType.F32, f"RopeAndCache {self.layer}: qkv is F32"
        if self.rotary is not None:
            assert len(self.rotary.inverse_frequencies) == s.head_dim // 2, (
                f"RopeAndCache {self.layer}: frequencies"
            )
        if self.norm is not None:
            self.norm.check(s, keys=self.keys)
        if self.places is not None:
            assert self.rotary is not None, f"RopeAndCache {self.layer}: places without a rotation"
            assert len(self.axes) == s.head_dim // 2, f"RopeAndCache {self.layer}: axes {len(self.axes)}"

    @property
    def weights(self) -> tuple[Weight, ...]:
        return () if self.norm is None else self.norm.weights

    @property
    def tables(self) -> tuple[Rotary | Temperature, ...]:
        """Tables that a backend keeps by position."""
        return tuple(t for t in (self.rotary, self.temperature) if t is not None)

    def cost(self, shape: StepShape) -> Cost:
        s, tokens = self.shape, shape.tokens
        written = self.keys * s.cached_bytes(self.out.dtype)
        return Cost(
            flops=3.0 * tokens * (s.heads + self.keys * s.kv_heads) * s.head_dim,
            weight_bytes=float(sum(w.nbytes for w in self.weights)),
            kv_bytes=float(tokens * written),
        )

    def reference(self, step: ReferenceStep) -> None:
        s, norm, qkv = self.shape, self.norm, step.read(self.qkv)
        parts = np.split(qkv, [s.q_width, s.q_width + s.k_width], axis=1)
        q = self._turned(parts[0], norm.q if norm else None, step)
        if self.temperature is not None:
            q = q * self.temperature.at(step.positions)[:, None, None]
        step.write(self.out, q.reshape(len(q), -1))
        if self.keys:
            v = parts[2].reshape(len(qkv), s.kv_heads, s.v_dim)
            v = norm.apply_values(v) if norm and norm.values else v
            step.write_cache(self.layer, self._turned(parts[1], norm.k if norm else None, step), v)

    def _turned(self, rows: F32, weight: Weight | None, step: ReferenceStep) -> F32:
        """Heads normalised and rotated: [tokens, heads, head_dim]."""
        heads = rows.reshape(len(rows), -1, self.shape.head_dim)
        if self.norm is not None:
            heads = self.norm.apply(heads, weight, step)
        if self.rotary is None:
            return heads
        turned = self.rotary.rotate(heads, step.positions)
        if self.places is None:
            return turned
        places = step.read(self.places)
        placed = self.rotary.rotate_placed(heads, places[:, 1:].astype(np.int64), self.axes)
        return np.where(places[:, :1, None] == PLAIN, turned, placed)
