"""StatePool: the recurrent states of all slots, and their snapshots, on the device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from firelane.backends.cuda.device import Device
from firelane.contract import StepLimits
from firelane.program.program import Program
from firelane.program.state import StateLayer, state_offsets


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
