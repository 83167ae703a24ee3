"""FeatureRows: features of the steps in flight, in pinned memory that the device reads and writes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from firelane.backends.cuda.device.device import Device
from firelane.backends.cuda.step.tables import MAX_IN_FLIGHT
from firelane.contract import StepInputs, StepLimits, StepOutputs
from firelane.program.program import Program


@dataclass(frozen=True, kw_only=True)
class FeatureRows:
    """Rows that a step reads, and rows that it tells: pinned float32 [MAX_IN_FLIGHT, max_num_batched_tokens,
    width], the sets by parity; None where the program reads, or tells, none."""

    read: Tensor | None
    told: Tensor | None

    @classmethod
    def allocate(cls, program: Program, limits: StepLimits, device: Device) -> FeatureRows:
        def rows(width: int) -> Tensor | None:
            shape = MAX_IN_FLIGHT, limits.max_num_batched_tokens, width
            return device.pinned(*shape, dtype=torch.float32) if width else None

        return cls(read=rows(program.features_in), told=rows(program.features_out))

    def give(self, inputs: StepInputs, parity: int) -> None:
        """Copy what the step reads, while no step in flight has the set."""
        if self.read is not None:
            self.read.numpy()[parity, : inputs.num_tokens] = inputs.features[: inputs.num_tokens]

    def take(self, outputs: StepOutputs, parity: int, tokens: int) -> None:
        """Copy what a step of so many tokens, which has ended, has told."""
        if self.told is not None:
            outputs.features[:tokens] = self.told.numpy()[parity, :tokens]
