"""Random inputs made of good ones."""

from __future__ import annotations

import random
from collections.abc import Sequence


def mutate(
    draw: random.Random, seeds: Sequence[bytes], tokens: Sequence[bytes], most_bytes: int = 1 << 16
) -> bytes:
    """One of `seeds` with some changes: bytes flipped, dropped, repeated, `tokens` put in, another seed
    behind it.
    """
    data = bytearray(draw.choice(seeds))
    for _ in range(draw.randrange(1, 8)):
        at = draw.randrange(len(data) + 1)
        end = min(len(data), at + draw.choice((1, 2, 8, 64)))
        kind = draw.randrange(6)
        if kind == 0 and data:
            data[at % len(data)] = draw.randrange(256)
        elif kind == 1:
            del data[at:end]
        elif kind == 2:
            data[at:at] = bytes(data[at:end]) * draw.choice((1, 2, 50, 2000))
        elif kind == 3:
            data[at:at] = draw.choice(tokens)
        elif kind == 4:
            data[at:end] = draw.choice(tokens)
        else:
            data += draw.choice(seeds)
    return bytes(data[:most_bytes])
