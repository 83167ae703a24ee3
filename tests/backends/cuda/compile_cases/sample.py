"""Sampling at the vocabularies of an 8 B model, of the largest in use, and of a toy."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from firelane.backends.cuda.device.pinned_state import PinnedState
from firelane.backends.cuda.kernels.sampling.sample import SampleOutputs, SampleScratch, sample
from firelane.backends.cuda.step.tables import StepTables
from firelane.contract import StepLimits
from tests.backends.cuda.compile_driver import WIDE_LOADS, Case, untouched
from tests.backends.cuda.host_device import HostDevice

ROWS = 288
LIMITS = StepLimits(
    max_num_seqs=256,
    max_num_batched_tokens=2048,
    max_output_rows=ROWS,
    max_model_len=8192,
    block_size=64,
    num_blocks=64,
)


class UntouchedDevice(HostDevice):
    """Address space only."""

    def empty(self, *shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
        return untouched(*shape, dtype=dtype)

    zeros = pinned = empty


def cases() -> Iterator[Case]:
    device = UntouchedDevice()
    for vocab in (128256, 262144, 97):
        launches = sample(
            untouched(ROWS, -(-vocab // 64) * 64, dtype=torch.float32),
            StepTables.allocate(LIMITS, tile_tokens=16, device=device),
            PinnedState.allocate(LIMITS, vocab, device),
            SampleOutputs.allocate(ROWS, device),
            SampleScratch.allocate(vocab, ROWS, device),
            vocab=vocab,
            max_rows=ROWS,
        )
        for launch in launches:
            needs = (WIDE_LOADS,) if launch.name == "scan_kernel" and vocab > 97 else ()
            yield Case(name=f"{launch.name} {vocab}", launch=launch, needs=needs)
