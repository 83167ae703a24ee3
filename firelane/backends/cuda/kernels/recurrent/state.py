"""Recurrent states as kernels see them: the state that a chunk starts from, those that the state before its
draft is written to, and the spare one of the state behind it."""

# pyright: reportMissingParameterType=false, reportUnknownParameterType=false
# A kernel's parameters take no annotations.

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from firelane.backends.cuda.step import tables as t
from firelane.backends.cuda.step.tables import StepTables
from firelane.contract import NO_SNAPSHOT, ZERO_STATE

SLOT, LENGTH, FIRST_TOKEN = tl.constexpr(t.SLOT), tl.constexpr(t.LENGTH), tl.constexpr(t.FIRST_TOKEN)
STATE_FROM, STATE_SAVE = tl.constexpr(t.STATE_FROM), tl.constexpr(t.STATE_SAVE)
DRAFTED, STATE_SPARE = tl.constexpr(t.DRAFTED), tl.constexpr(t.STATE_SPARE)
CHUNK_COLUMNS = tl.constexpr(t.CHUNK_COLUMNS)
CHUNKS = tl.constexpr(t.CHUNKS)
COLUMNS = 16  # of a program: of 128 rows of a state, half of what a warp's registers hold
IN_FLIGHT = tl.constexpr(4)  # tokens that are on their way at once
_ZEROS = tl.constexpr(ZERO_STATE)
_NOT_SAVED = tl.constexpr(NO_SNAPSHOT)


@triton.jit
def read_state(states, states_stride, about, places, mask):
    """float32, shaped as `places`: numbers of the state that the chunk starts from, 0 where mask is false.
    about: the chunk's record."""
    source = tl.load(about + STATE_FROM)
    states += tl.maximum(source, 0).to(tl.int64) * states_stride
    return tl.load(states + places, mask=mask & (source != _ZEROS), other=0.0)


@triton.jit
def write_state(states, states_stride, about, places, state, mask):
    """To the slot's live state, and to a snapshot if one is asked for."""
    live = states + tl.load(about + SLOT).to(tl.int64) * states_stride
    tl.store(live + places, state, mask=mask)
    saved = tl.load(about + STATE_SAVE)
    if saved != _NOT_SAVED:
        tl.store(states + saved.to(tl.int64) * states_stride + places, state, mask=mask)


@triton.jit
def write_spare(states, states_stride, about, places, state, mask):
    """To the spare state; of a chunk with a draft."""
    states += tl.load(about + STATE_SPARE).to(tl.int64) * states_stride
    tl.store(states + places, state, mask=mask)


def state_arguments(states: Tensor, tables: StepTables) -> dict[str, Any]:
    """states: float32 [num_states, numbers of the layer], a view."""
    return {
        "states": states,
        "states_stride": states.stride(0),
        "counts": tables.counts,
        "chunks": tables.chunks,
    }
