"""Random low-rank adapters for tests."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from firelane.contract import AdapterTensors, LowRank


def bf16_bits(x: NDArray[np.floating]) -> NDArray[np.uint16]:
    bits = x.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def random_adapter(
    modules: Mapping[str, tuple[int, int]], *, rank: int, seed: int, size: float = 1.0, keep: float = 1.0
) -> AdapterTensors:
    """Factors of rank 1 .. `rank` for about the share `keep` of the modules; changes are about `size` times
    as large as weights are."""
    rng = np.random.default_rng(seed)
    found: dict[str, LowRank] = {}
    for name, (n, k) in modules.items():
        if rng.random() > keep:
            continue
        r = int(rng.integers(1, rank + 1))
        a, b = rng.standard_normal((r, k)) * k**-0.5, rng.standard_normal((n, r))
        found[name] = LowRank(
            a=bf16_bits(a), b=bf16_bits(b), scale=size * r**-0.5 * float(rng.uniform(0.5, 1))
        )
    return found
