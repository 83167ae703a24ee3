"""Sizes that results depend on: the order of every sum follows from these and from the model's shape alone.

A sequence's bytes must not depend on its batch, its chunking or the bucket that a step runs in. So nothing
here may depend on the number of rows, on the device or on a measurement.
"""

from __future__ import annotations

ROW_BLOCK = 64  # rows of a matrix that share a range of exponents and a list of escapes
K_TILE = 128  # inputs beside each other in the coded form
WAVE = 128  # parts that a product is cut into at least, as long as its inputs allow
MAX_SEGMENTS = 8
MIN_SEGMENT = 512  # inputs of one segment at least
STRIDE_ELEMENTS = 64  # rows of values begin at multiples of so many
ATTENTION_TILE = 64  # positions whose scores are computed at once
ATTENTION_SPLIT = 256  # positions whose softmax is finished before it is merged with those before


def segments(rows: int, k: int) -> int:
    """Into how many runs of inputs the sum of a product with a matrix [rows, k] is cut: a power of two.

    Each run is summed by itself, in increasing order of k, and the sums are added from the first on. One
    token's product with few rows would otherwise leave most of the device idle.
    """
    count = 1
    while (
        count < MAX_SEGMENTS
        and -(-rows // ROW_BLOCK) * count < WAVE
        and k >= 2 * count * MIN_SEGMENT
        and k % (2 * count * K_TILE) == 0
    ):
        count *= 2
    return count


def round_up(n: int, multiple: int) -> int:
    return -(-n // multiple) * multiple
