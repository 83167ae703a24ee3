"""Digests of a packed file's payload: what was written, told from what lies there now.

The payload is cut where each weight (or its panel table) begins: every byte, padding too, is in one extent.
xxh3 tells damage, not an attacker.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import xxhash
from numpy.typing import NDArray

CHECK_THREADS = 2
PIECE_BYTES = 4 << 20
"""Hashed in one go: less than a millisecond, after which a check may rest, or be stopped."""
Bytes = NDArray[np.uint8]


@dataclass(frozen=True, kw_only=True)
class PayloadDigests:
    """Digests of extents, in their order: where each ends, and the hex digits of its xxh3_128. The first
    begins at byte 0, each other where the one before ends."""

    ends: tuple[int, ...]
    digests: tuple[str, ...]

    @classmethod
    def of(cls, payload: Bytes, ends: Sequence[int], *, threads: int) -> PayloadDigests:
        """Hash the payload of `ends[-1]` bytes."""
        with ThreadPoolExecutor(threads, thread_name_prefix="digest") as pool:
            found = pool.map(digest, [payload[begin:end] for begin, end in _extents(ends)])
            return cls(ends=tuple(ends), digests=tuple(found))

    @classmethod
    def decode(cls, manifest: dict[str, Any]) -> PayloadDigests:
        """ValueError where a manifest has none that could be."""
        ends, digests = manifest.get("ends"), manifest.get("digests")
        if not isinstance(ends, list) or not isinstance(digests, list):
            raise ValueError("no digests")
        ends, digests = cast("list[Any]", ends), cast("list[Any]", digests)
        if not all(type(n) is int for n in ends) or not all(type(d) is str for d in digests):
            raise ValueError("not digests")
        if len(ends) != len(digests) or not ends or ends != sorted(ends) or ends[0] < 0:
            raise ValueError("not the ends of extents")
        return cls(ends=tuple(ends), digests=tuple(digests))

    def first_damaged(self, payload: Bytes, stopped: Callable[[], bool] = lambda: False) -> int | None:
        """The number of the first extent that is not what it was, or None. May be `stopped` early. Hashed by
        several threads: one reads half as fast as memory gives."""

        def is_damaged(extent: tuple[tuple[int, int], str]) -> bool:
            (begin, end), want = extent
            return digest(payload[begin:end], stopped) != want and not stopped()

        extents = zip(_extents(self.ends), self.digests, strict=True)
        with ThreadPoolExecutor(CHECK_THREADS, thread_name_prefix="check weights") as pool:
            found = pool.map(is_damaged, extents)
            return next((number for number, damaged in enumerate(found) if damaged), None)


def digest(data: Bytes, stopped: Callable[[], bool] = lambda: False) -> str:
    """Hex digits of xxh3_128; of no use once `stopped`."""
    found = xxhash.xxh3_128()
    for begin in range(0, len(data), PIECE_BYTES):
        if stopped():
            break
        found.update(data[begin : begin + PIECE_BYTES].data)
    return found.hexdigest()


def _extents(ends: Sequence[int]) -> list[tuple[int, int]]:
    return list(zip((0, *ends[:-1]), ends, strict=True))
