"""Programmatic dependent launch (CUDA programming guide; PTX griddepcontrol; sm_90): a kernel of a step
starts while the one before it still runs, as far as the device has room, and waits until that one has ended.

Each kernel of a step lets the next one start as soon as all its own programs have started, and only then
waits. Why no kernel meets what an earlier or a later one is about to write:

- griddepcontrol.wait returns when the kernel right before has ended as a whole and what it wrote can be seen.
- It is the first statement of every program, of those with nothing to do, too. So a kernel ends only after
  its own wait has returned, that is, after the kernel before it has ended, and so on to the step's first:
  what stands behind the wait runs when all earlier kernels have ended, as it does without overlap. That goes
  for what they wrote and is read here, and for what they read and is written over here.
- What starts early takes no room from what it waits for: all programs of that kernel hold theirs already. So
  nothing waits for ever, however many kernels stand in line.
- A launch without the attribute begins when all before it have ended, whether they let others start or not.
  One with it, behind a kernel that never does (a library's), starts when that one has ended. So kernels that
  take part and kernels that do not may follow each other in any order.
- Two steps never overlap: they are two graphs, and the graphs of a stream run one after the other. A graph's
  first kernel is launched without the attribute: nothing stands before it.

Before the wait only weights are touched, and these only fetched into the L2 cache, where all
multiprocessors meet and nothing can be out of date.
"""

# pyright: reportMissingParameterType=false, reportUnknownParameterType=false
# A kernel's parameters take no annotations.

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from firelane.backends.cuda.shapes import K_TILE

LINE_BYTES = 64  # that one instruction fetches at least: the grain in which L2 reads memory by default
PROGRAM_BYTES = 64 << 10  # that one program fetches ahead at most
DEVICE_BYTES = 12 << 20  # that all programs do at once: a quarter of the cache, 3 us of the memory's time
PROGRAMS = 264  # that run at once: two on each of 132 multiprocessors

_LINE_BYTES = tl.constexpr(LINE_BYTES)


@triton.jit
def start_next(OVERLAP: tl.constexpr):
    """The kernel behind may start when all programs of this one have got here."""
    if OVERLAP:
        gdc_launch_dependents()


@triton.jit
def wait_for_previous(OVERLAP: tl.constexpr):
    """Behind it all earlier kernels of the step have ended. Every program has to get here."""
    if OVERLAP:
        gdc_wait()


@triton.jit
def begin_overlapped(OVERLAP: tl.constexpr):
    """First statement of every kernel that takes part (Launch.overlap). Nothing if OVERLAP is False."""
    start_next(OVERLAP)
    wait_for_previous(OVERLAP)


@triton.jit
def fetch_ahead(data, row_stride, ROWS: tl.constexpr, RUN: tl.constexpr):
    """Start to bring RUN elements of each of ROWS rows into the L2 cache. data: the first of them. Both are
    powers of two; a row's run has LINE_BYTES at least."""
    LINE: tl.constexpr = _LINE_BYTES * 8 // data.dtype.element_ty.primitive_bitwidth
    LINES: tl.constexpr = RUN // LINE  # of a row
    line = tl.arange(0, ROWS * LINES)
    places = data + line // LINES * row_stride + line % LINES * LINE
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; // dummy $0", "=r,l", [places], dtype=tl.int32, is_pure=False, pack=1
    )


def inputs_ahead(*, input_bytes: int, inputs: int, programs: int) -> int:
    """How many of its `inputs` inputs each of `programs` programs fetches ahead: a power of two from K_TILE
    on, or 0. input_bytes: of one input of all the program's features."""
    room = min(PROGRAM_BYTES, DEVICE_BYTES // min(programs, PROGRAMS))
    most = min(inputs, room // input_bytes)
    return 1 << most.bit_length() - 1 if most >= K_TILE else 0
