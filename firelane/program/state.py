"""Recurrent state: numbers that an op keeps of a sequence from token to token, of equal size however long the
sequence is.

The states of all sequences, and snapshots of states, lie in one pool (see contract.StepLimits). A state is
one contiguous range of bytes: the layers one after the other, each at a multiple of ALIGNMENT.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import prod

ALIGNMENT = 64


@dataclass(frozen=True)
class StateLayer:
    """The float32 numbers that one op keeps of one sequence: zeros before its first token. `name` is unique
    in the program."""

    name: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return 4 * prod(self.shape)


def state_bytes(layers: Sequence[StateLayer]) -> int:
    """Bytes of the state of one sequence, and from one state of the pool to the next."""
    return sum(map(_padded_bytes, layers))


def state_offsets(layers: Sequence[StateLayer]) -> dict[str, int]:
    """By name: where the layer's numbers begin in a state, in bytes."""
    starts = accumulate(map(_padded_bytes, layers), initial=0)
    return {layer.name: start for layer, start in zip(layers, starts, strict=False)}


def _padded_bytes(layer: StateLayer) -> int:
    return -(-layer.nbytes // ALIGNMENT) * ALIGNMENT
