"""How much memory there is, how much of it the KV cache gets, and zeroed memory, paid for when touched."""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from firelane.backends.contract import StepLimits
from firelane.backends.request import SettledRequest
from firelane.errors import OutOfMemoryError
from firelane.program.program import Program

KV_SHARE = 0.5
GIB = 1 << 30


def available_bytes() -> int:
    """Memory that can be had without swapping: the system's estimate, within the control group's limit."""
    fields = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
    free = next(int(f[1]) * 1024 for f in fields if f[0] == "MemAvailable:")
    return min(free, _cgroup_bytes())


def _cgroup_bytes() -> int:
    group = Path("/sys/fs/cgroup")
    try:
        limit, used = (group / "memory.max").read_text().strip(), (group / "memory.current").read_text()
    except OSError:
        return 1 << 62
    return 1 << 62 if limit == "max" else max(0, int(limit) - int(used))


def zeroed(nbytes: int) -> NDArray[np.uint8]:
    """Anonymous zero pages, page-aligned, huge where the system grants it; given back when the array dies.

    Raises OutOfMemoryError where the system refuses so much.
    """
    try:
        memory = mmap.mmap(-1, max(nbytes, mmap.PAGESIZE), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise OutOfMemoryError(
            f"{nbytes / GIB:.1f} GiB of memory cannot be had ({error.strerror}): free some, or lower "
            "--kv-cache-gib, --max-model-len or --max-num-seqs"
        ) from error
    if nbytes >= 2 << 20:
        memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, np.uint8)


def step_limits(program: Program, request: SettledRequest, free_bytes: int) -> StepLimits:
    """Sizes of the executor, with the KV cache in what `free_bytes` (after the weights) leaves.

    Raises OutOfMemoryError when not even one sequence fits, or more is asked for than there is.
    """
    block_bytes = program.kv_bytes_per_token * request.block_size
    budget = request.kv_cache_bytes or int(free_bytes * KV_SHARE)
    longest = request.max_model_len or program.max_model_len
    blocks = budget // block_bytes
    if request.max_model_len is None:
        longest = min(longest, blocks * request.block_size)
    per_sequence = -(-longest // request.block_size)
    if longest < 1 or blocks < per_sequence:
        needed = max(per_sequence, 1) * block_bytes / GIB
        raise OutOfMemoryError(
            f"the KV cache has room for {blocks * request.block_size} tokens in {budget / GIB:.2f} GiB, and "
            f"one sequence of {longest} needs {needed:.2f} GiB: lower --max-model-len or raise --kv-cache-gib"
        )
    num_blocks = min(blocks, per_sequence * request.max_num_seqs)
    if num_blocks * block_bytes > free_bytes:
        raise OutOfMemoryError(
            f"--kv-cache-gib {budget / GIB:.2f}: {free_bytes / GIB:.2f} GiB of memory are free beside the "
            "weights; lower it, or leave it out"
        )
    return StepLimits(
        max_num_seqs=request.max_num_seqs,
        max_num_batched_tokens=request.max_num_batched_tokens,
        max_output_rows=request.max_output_rows,
        max_model_len=longest,
        block_size=request.block_size,
        num_blocks=num_blocks,
    )
