"""Configs that a product could have: those that differ in one thing from a given one, and fit the device."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from firelane.backends.cuda.device.linear_config import LinearConfig, ProductShape
from firelane.backends.cuda.device.shapes import K_TILE, ROW_BLOCK, round_up, segments

SHARED_BYTES = 232_448  # of one program, sm_90
MOST_SUMS = 128  # of one thread: half of its registers
MAX_STAGES = 8


def neighbours(config: LinearConfig, shape: ProductShape) -> list[LinearConfig]:
    """Without the config itself; all give the same results."""
    changed = dict.fromkeys(c for c in _changes(config, shape) if c != config and is_possible(c, shape))
    return list(changed)


def is_possible(config: LinearConfig, shape: ProductShape) -> bool:
    """Whether kernels take the config as it is (tiling.fitting would change nothing), and whether its tiles
    fit registers and shared memory."""
    fused = shape.is_coded and not config.decode_first
    if shape.experts and (config.parts or config.transpose or config.decode_first):
        return False
    halves = 1 + shape.gated
    padded = round_up(shape.rows // halves, ROW_BLOCK)
    return (
        config.row_tile < max(32, 2 * shape.max_rows)
        and (config.features == ROW_BLOCK or (padded % config.features == 0 and not fused))
        and ((config.k_tile, config.warps) == (K_TILE, 4) or not fused)
        and 2 <= config.stages <= MAX_STAGES
        and config.features * halves * config.row_tile <= MOST_SUMS * 32 * config.warps
        and _shared_bytes(config, halves, fused) <= SHARED_BYTES
    )


def _changes(config: LinearConfig, shape: ProductShape) -> Iterator[LinearConfig]:
    for row_tile in (config.row_tile // 2, config.row_tile * 2):
        if 16 <= row_tile <= 256:
            yield replace(config, row_tile=row_tile)
            yield replace(config, row_tile=row_tile, warps=4 if row_tile < config.row_tile else 8)
    for features in (64, 128):
        yield replace(config, features=features)
        yield replace(config, features=features, warps=4 * features // 64)
    for k_tile, stages in ((64, 2 * config.stages), (128, config.stages // 2)):
        yield replace(config, k_tile=k_tile)
        yield replace(config, k_tile=k_tile, stages=min(stages, MAX_STAGES))
    for warps in (4, 8):
        yield replace(config, warps=warps)
    for stages in range(config.stages - 2, config.stages + 3):
        yield replace(config, stages=stages)
    if not shape.gated and segments(shape.rows, shape.k) > 1:
        yield replace(config, parts=not config.parts and not config.decode_first)
    yield replace(config, transpose=not config.transpose)
    if shape.is_coded:
        yield replace(config, decode_first=not config.decode_first, parts=False)


def _shared_bytes(config: LinearConfig, halves: int, fused: bool) -> int:
    """Bytes of shared memory of all stages; of a coded matrix, whose decoded tile passes by once more, a
    little more."""
    if not fused:
        return config.stages * (config.features * halves + config.row_tile) * 2 * config.k_tile
    stage = config.features * halves * 3 * K_TILE // 2
    return (
        config.stages * stage + (config.stages + 1) * config.row_tile * 2 * K_TILE + config.features * K_TILE
    )
