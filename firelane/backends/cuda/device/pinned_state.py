"""PinnedState: the contract's SlotState in host memory that the device reads and writes in place.

The engine writes slots with NumPy; kernels read just what a step needs of them, over the bus, and write
each sampled token back to `tokens`, where both the next step and the host find it. So no copy of the state
has to be kept in step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from firelane.backends.cuda.device.device import Device
from firelane.contract import (
    DRAFT_MASKS,
    MAX_BIAS,
    MAX_STOP_IDS,
    SAMPLING_DTYPE,
    SlotState,
    StepLimits,
)

PARAM_WORDS = SAMPLING_DTYPE.itemsize // 4
_FIELDS: Any = SAMPLING_DTYPE.fields
PARAM_OFFSETS: dict[str, int] = {name: _FIELDS[name][1] // 4 for name in SAMPLING_DTYPE.names or ()}
"""By field of SAMPLING_DTYPE its first 32-bit word in a row of `params`; `seed` has two, the low one
first."""


@dataclass(frozen=True, kw_only=True)
class PinnedState:
    """tokens, block_tables, bias_ids, stop_ids, adapter: int32; bias_values: float32; masks: int32 (the bits
    of uint32);
    params: int32 [slots, PARAM_WORDS], the bits of SAMPLING_DTYPE; shapes as in SlotState."""

    tokens: Tensor
    block_tables: Tensor
    params: Tensor
    bias_ids: Tensor
    bias_values: Tensor
    stop_ids: Tensor
    masks: Tensor
    adapter: Tensor

    @classmethod
    def allocate(cls, limits: StepLimits, vocab_size: int, device: Device) -> PinnedState:
        slots = limits.max_num_seqs
        return cls(
            tokens=device.pinned(slots, limits.max_model_len + 1),
            block_tables=device.pinned(len(limits.spans), slots, limits.blocks_per_seq),
            params=device.pinned(slots, PARAM_WORDS),
            bias_ids=device.pinned(slots, MAX_BIAS),
            bias_values=device.pinned(slots, MAX_BIAS, dtype=torch.float32),
            stop_ids=device.pinned(slots, MAX_STOP_IDS),
            masks=device.pinned(slots + DRAFT_MASKS, vocab_size // 32 + 1),
            adapter=device.pinned(slots),
        )

    @classmethod
    def over(cls, state: SlotState, device: Device) -> PinnedState:
        """The state that other processes see, too, in one piece of memory."""
        first, last = state.tokens, state.adapter
        address = first.ctypes.data
        device.register(address, last.ctypes.data + last.nbytes - address)
        return cls(
            tokens=torch.from_numpy(state.tokens),
            block_tables=torch.from_numpy(state.block_tables),
            params=torch.from_numpy(state.sampling.view(np.int32).reshape(len(state.tokens), PARAM_WORDS)),
            bias_ids=torch.from_numpy(state.bias_ids),
            bias_values=torch.from_numpy(state.bias_values),
            stop_ids=torch.from_numpy(state.stop_ids),
            masks=torch.from_numpy(state.masks.view(np.int32)),
            adapter=torch.from_numpy(state.adapter),
        )

    def slots(self) -> SlotState:
        """The same memory as the engine sees it."""
        sampling: NDArray[Any] = self.params.numpy().view(SAMPLING_DTYPE)[:, 0]
        masks: NDArray[np.uint32] = self.masks.numpy().view(np.uint32)
        return SlotState(
            tokens=self.tokens.numpy(),
            block_tables=self.block_tables.numpy(),
            sampling=sampling,
            bias_ids=self.bias_ids.numpy(),
            bias_values=self.bias_values.numpy(),
            stop_ids=self.stop_ids.numpy(),
            masks=masks,
            adapter=self.adapter.numpy(),
        )
