"""Coded keys and values in the pages of the CPU backend, read from their description (docs/kv-cache.md), with
torch's e4m3."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from firelane.program.cache import CacheLayer
from firelane.program.cache_codes import CacheCode
from firelane.program.reference_step import CachedRows, ReferenceStep
from tests.backends.cpu_harness import Machine, widen_bf16

U8 = NDArray[np.uint8]
MOST_FLIPPED = 0.002
"""The most codes that may differ, as a share of all: a number that lies between two codes, but for the order
of a sum, may get either."""


def cached_rows(m: Machine, layer: CacheLayer, slot: int, positions: NDArray[np.int64]) -> CachedRows:
    """Contents of the pages at these positions."""
    layout, s = m.executor.layout, layer.shape
    place, size, width = layout.cache_places[layer.layer], layout.limits.block_size, s.head_dim
    blocks, at = m.executor.state.block_tables[place.group, slot, positions // size], positions % size
    held = m.executor.pages[blocks, place.keys : place.keys + layer.bytes_per_token * size]
    heads, rows = held.reshape(len(positions), s.kv_heads, -1), np.arange(len(positions))
    if s.shared:
        codes, scales = np.split(heads, [width * size], axis=-1)
        key_codes = _positions_apart(codes, size)[rows, :, at]
        value_codes = key_codes[..., : s.v_dim]
    else:
        codes, scales, apart = np.split(heads, [width * size, (width + 4) * size], axis=-1)
        by_column = codes.reshape(*codes.shape[:2], width // 4, size, 4)
        key_codes = by_column[rows, :, :, at].reshape(len(rows), s.kv_heads, width)
        value_codes = _positions_apart(apart, size)[rows, :, at]
    factors = widen_bf16(np.ascontiguousarray(scales).view(np.uint16))
    first, second = factors.reshape(len(rows), s.kv_heads, 2, size)[rows, :, :, at].transpose(2, 0, 1)
    assert s.code is not None
    keys, values = numbers(key_codes, s.code), numbers(value_codes, s.code)
    if s.shared:
        of_column = np.where(np.arange(width) < s.v_dim, first[..., None], second[..., None])
        return CachedRows(keys * of_column, values, first)
    return CachedRows(keys * first[..., None], values, second)


def _positions_apart(codes: U8, size: int) -> U8:
    """[rows, heads, positions, columns] of [positions / 4][column][4]."""
    fours = codes.reshape(*codes.shape[:2], size // 4, -1, 4)
    return fours.transpose(0, 1, 2, 4, 3).reshape(*codes.shape[:2], size, -1)


def numbers(codes: U8, code: CacheCode) -> NDArray[np.float32]:
    codes = np.ascontiguousarray(codes)
    if code is CacheCode.INT8:
        return codes.view(np.int8).astype(np.float32)
    return torch.from_numpy(codes).view(torch.float8_e4m3fn).float().numpy()


def check_codes(m: Machine, step: ReferenceStep, layer: CacheLayer) -> None:
    """Pages, as the step's tokens have left them, are the reference's, but for codes that the order of a sum
    decides; the reference goes on with what the pages hold."""
    for slot in np.unique(step.slots).tolist():
        positions = step.positions[step.slots == slot]
        mine = cached_rows(m, layer, slot, positions)
        at = slice(int(positions[0]), int(positions[-1]) + 1)
        cache = step.cache
        parts = cache.keys[layer.layer], cache.values[layer.layer], cache.value_scales[layer.layer]
        for found, held in zip(mine, parts, strict=True):
            want = held[slot, at]
            close = np.abs(found - want) <= 2.0**-3 * np.abs(want) + np.abs(want).max() / 120
            assert close.all(), f"layer {layer.layer}: {np.abs(found - want).max()} of {np.abs(want).max()}"
            flipped = (np.abs(found - want) > 2.0**-6 * np.abs(want)).sum()
            assert flipped <= max(2, MOST_FLIPPED * want.size), f"layer {layer.layer}: {flipped} codes"
            held[slot, at] = found
