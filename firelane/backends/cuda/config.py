"""LinearConfig: how a product is spread over the device. Never what it gives: any config of a matrix gives
the same bits."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class LinearConfig:
    """row_tile: tokens of a program; features: rows of the matrix of a program, 64 or 128; k_tile: inputs
    of one turn of its loop. parts: segments are summed by programs of their own, and their reader adds them
    up.
    decode_first: a matrix in the window form is decoded into a buffer as a whole, then multiplied as a
    plain one.
    """

    row_tile: int
    features: int = 64
    k_tile: int = 128
    warps: int = 4
    stages: int = 4
    parts: bool = False
    decode_first: bool = False
