from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import fields
from itertools import pairwise

import numpy as np
import pytest

from firelane.contract import CAUSAL, DRAFT_MASKS, SlotState, StepLimits, Window, shared_memory

LIMITS = StepLimits(
    max_num_seqs=3,
    max_num_batched_tokens=8,
    max_output_rows=3,
    max_model_len=33,
    block_size=16,
    num_blocks=9,
    spans=(CAUSAL, Window(7)),
)
VOCAB = 77
NAMES = [field.name for field in fields(SlotState)]

RANK = f"""
import sys
from firelane.contract import Causal, SlotState, StepLimits, Window
limits = {LIMITS!r}
state = SlotState.attach(int(sys.argv[1]), limits, {VOCAB})
state.tokens[2, 0] = 42
state.masks[2, 2] = 7
sys.stdout.write(f"{{state.tokens[1, 33]}} {{state.block_tables[1, 2, 2]}} {{state.sampling['seed'][2]}}\\n")
sys.stdout.flush()
sys.stdin.readline()
sys.stdout.write(f"{{state.tokens[0, 5]}}\\n")
"""


def nothing_overlaps(state: SlotState) -> bool:
    spans = sorted(
        (a.ctypes.data, a.ctypes.data + a.nbytes) for a in (getattr(state, name) for name in NAMES)
    )
    return all(end <= start for (_, end), (start, _) in pairwise(spans))


@pytest.mark.parametrize("shared", [False, True])
def test_arrays_are_zero_aligned_and_apart(shared: bool) -> None:
    fd = shared_memory() if shared else None
    state = SlotState.allocate(LIMITS, VOCAB, fd=fd)
    assert state.tokens.shape == (3, 34)
    assert state.block_tables.shape == (2, 3, 3)
    assert state.masks.shape == (3 + DRAFT_MASKS, 3)
    for name in NAMES:
        array = getattr(state, name)
        assert array.ctypes.data % 64 == 0
        assert array.flags.c_contiguous
        assert array.flags.writeable
        assert not array.view(np.uint8).any()
    assert nothing_overlaps(state)
    if fd is not None:
        os.close(fd)


def test_a_second_process_sees_writes_and_its_own_are_seen() -> None:
    fd = shared_memory()
    state = SlotState.allocate(LIMITS, VOCAB, fd=fd)
    state.tokens[1, 33], state.block_tables[1, 2, 2], state.sampling["seed"][2] = 5, 6, 1 << 63
    with subprocess.Popen(
        [sys.executable, "-c", RANK, str(fd)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        pass_fds=(fd,),
    ) as rank:
        os.close(fd)  # the mappings stay
        assert rank.stdin is not None
        assert rank.stdout is not None
        assert rank.stdout.readline().split() == ["5", "6", str(1 << 63)]
        assert (state.tokens[2, 0], state.masks[2, 2]) == (42, 7)
        state.tokens[0, 5] = 99
        assert rank.communicate("go on\n")[0].split() == ["99"]
    assert rank.returncode == 0


def test_processes_without_the_memfd_share_nothing() -> None:
    first, second = (SlotState.allocate(LIMITS, VOCAB) for _ in range(2))
    first.tokens[:] = 1
    assert not second.tokens.any()
