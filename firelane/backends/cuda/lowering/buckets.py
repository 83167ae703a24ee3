"""Buckets: the sizes that steps are rounded up to, one captured graph each.

Launches of a bucket are made for its largest step; kernels read the real counts and leave where there is
nothing to do. So a bucket that is too large costs little, and results do not depend on it.
"""

from __future__ import annotations

from dataclasses import dataclass

from firelane.contract import StepLimits

DECODE_TOKENS = (1, 4, 16, 32, 64, 128, 256)
MIXED_TOKENS = (64, 256, 512, 1024, 2048)


@dataclass(frozen=True, kw_only=True)
class Bucket:
    """tokens, rows, chunks: the most of a step. decode: all of its chunks are attended in KV splits (one
    token each)."""

    tokens: int
    rows: int
    chunks: int
    decode: bool

    def __str__(self) -> str:
        return f"{self.tokens} tokens, {'decode' if self.decode else 'mixed'}"


def make_buckets(limits: StepLimits) -> tuple[Bucket, ...]:
    """Buckets of decode steps by increasing size, then those of all others."""
    decode = [
        Bucket(tokens=n, rows=n, chunks=n, decode=True) for n in _sizes(DECODE_TOKENS, limits.max_num_seqs)
    ]
    mixed = [
        Bucket(
            tokens=n,
            rows=min(n, limits.max_output_rows),
            chunks=min(n, limits.max_num_seqs),
            decode=False,
        )
        for n in _sizes(MIXED_TOKENS, limits.max_num_batched_tokens)
    ]
    return (*decode, *mixed)


def choose(buckets: tuple[Bucket, ...], *, tokens: int, decode: bool) -> Bucket:
    """The smallest bucket for a step. AssertionError where the step is larger than the limits allow."""
    for bucket in buckets:
        if bucket.decode == decode and bucket.tokens >= tokens:
            return bucket
    raise AssertionError(f"no bucket for {tokens} tokens")


def _sizes(sizes: tuple[int, ...], most: int) -> list[int]:
    """`sizes` below `most`, then doubled from the last one on, then `most` itself."""
    found = [n for n in sizes if n < most]
    while found and 2 * found[-1] < most and found[-1] >= sizes[-1]:
        found.append(2 * found[-1])
    return [*found, most]
