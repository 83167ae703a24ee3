"""StatePool: the recurrent states of all slots, and their snapshots, on the device."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from firelane.backends.cuda.device.device import Device
from firelane.contract import StepLimits
from firelane.program.program import Program
from firelane.program.state import StateLayer, state_offsets

FORMAT = 1
"""The version of the layout of a layer's numbers inside of a state."""


@dataclass(frozen=True, kw_only=True)
class StatePool:
    """pool: float32 [num_states, numbers of a state]; offsets: in bytes, by name of a state layer."""

    pool: Tensor
    offsets: Mapping[str, int]

    @classmethod
    def allocate(cls, program: Program, limits: StepLimits, device: Device) -> StatePool:
        numbers = limits.state_bytes // torch.float32.itemsize
        pool = device.empty(limits.num_states, numbers, dtype=torch.float32)
        return cls(pool=pool, offsets=state_offsets(program.state_layers))

    def layer(self, layer: StateLayer) -> Tensor:
        """float32 [num_states, numbers of the layer], a view."""
        first = self.offsets[layer.name] // torch.float32.itemsize
        return self.pool[:, first : first + layer.nbytes // torch.float32.itemsize]


def state_layout_id(program: Program) -> str:
    """The id of the layout of a recurrent state, like layout_id of pages."""
    offsets = state_offsets(program.state_layers)
    layers = [(one.name, one.shape, offsets[one.name]) for one in program.state_layers]
    return hashlib.sha256(repr(("cuda", FORMAT, layers)).encode()).hexdigest()[:16]
