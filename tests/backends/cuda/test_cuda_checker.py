"""The checker finds planted faults: accesses out of bounds, and races between programs and between lanes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from triton.runtime.errors import InterpreterError

from firelane.backends.cuda.device.launch import Launch

N = 16


@triton.jit
def copy_kernel(x, out, start, limit, N: tl.constexpr):
    """Each program its own N elements, from `start` on, below `limit`."""
    at = start + tl.program_id(0) * N + tl.arange(0, N)
    tl.store(out + at, tl.load(x + at, mask=at < limit), mask=at < limit)


def test_a_kernel_within_its_tensors_passes() -> None:
    x, out = torch.arange(30.0), torch.zeros(30)
    _run(copy_kernel, 2, x=x, out=out, start=0, limit=30, N=N)
    assert torch.equal(x, out)


@pytest.mark.parametrize(("start", "limit", "lanes"), [(0, 40, 2), (-1, 30, 1), (1 << 40, 1 << 41, 16)])
def test_a_load_out_of_bounds(start: int, limit: int, lanes: int) -> None:
    with pytest.raises(InterpreterError, match=f"load out of bounds in {lanes} of 16 lanes"):
        _run(copy_kernel, 2, x=torch.zeros(30), out=torch.zeros(40), start=start, limit=limit, N=N)


def test_a_store_out_of_bounds() -> None:
    with pytest.raises(InterpreterError, match="store out of bounds in 2 of 16 lanes"):
        _run(copy_kernel, 2, x=torch.zeros(40), out=torch.zeros(30), start=0, limit=40, N=N)


def test_a_view_is_no_leave_to_touch_what_lies_beside_it() -> None:
    whole = torch.zeros(100)
    with pytest.raises(InterpreterError, match="store out of bounds in 1 of 16 lanes"):
        _run(copy_kernel, 1, x=torch.zeros(16), out=whole[10:25], start=0, limit=16, N=N)
    _run(copy_kernel, 1, x=torch.ones(16), out=whole[10:26], start=0, limit=16, N=N)
    assert whole.sum() == 16


def test_views_that_overlap_are_one_memory() -> None:
    whole = torch.zeros(64)
    with pytest.raises(InterpreterError, match="load of what another program stores, in 8 of 16 lanes"):
        _run(copy_kernel, 2, x=whole[:32], out=whole[8:40], start=0, limit=32, N=N)


def test_a_launch_without_tensors_in_reach() -> None:
    with pytest.raises(InterpreterError, match="no tensors"):
        _run(copy_kernel, 1, x=torch.zeros(0), out=torch.zeros(0), start=0, limit=1, N=N)


@triton.jit
def race_kernel(x, out, KIND: tl.constexpr, N: tl.constexpr):
    program, at = tl.program_id(0), tl.arange(0, N)
    if KIND == "all store the same place":
        tl.store(out + at, program)
    elif KIND == "the second loads what the first stored":
        tl.store(out + program * N + at, tl.load(out + at))
    elif KIND == "the second stores what the first loaded":
        tl.store(x + program + at, tl.load(x + at), mask=program > 0)
    elif KIND == "two lanes":
        tl.store(out + at // 2, at)
    elif KIND == "a read of its own":
        tl.store(out + program * N + at, program)
        tl.store(out + program * N + at, tl.load(out + program * N + at) + 1)
    elif KIND == "a shared read":
        tl.store(out + program * N + at, tl.load(x + at))
    else:
        tl.atomic_add(out + at * 0, 1)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("all store the same place", "store of what another program stores"),
        ("the second loads what the first stored", "load of what another program stores"),
        ("the second stores what the first loaded", "store of what another program loads"),
        ("two lanes", "two lanes of one store"),
    ],
)
def test_a_race(kind: str, message: str) -> None:
    x, out = torch.zeros(64, dtype=torch.int32), torch.zeros(64, dtype=torch.int32)
    with pytest.raises(InterpreterError, match=f"race: {message}"):
        _run(race_kernel, 2, x=x, out=out, KIND=kind, N=N)


@pytest.mark.parametrize("kind", ["a read of its own", "a shared read", "atomics"])
def test_what_is_no_race(kind: str) -> None:
    x, out = torch.full((64,), 7, dtype=torch.int32), torch.zeros(64, dtype=torch.int32)
    _run(race_kernel, 2, x=x, out=out, KIND=kind, N=N)
    expected = {"a read of its own": [1] * 16 + [2] * 16, "a shared read": [7] * 32, "atomics": [32]}[kind]
    assert out.tolist() == expected + [0] * (64 - len(expected))


@triton.jit
def atomic_kernel(x, KIND: tl.constexpr):
    if KIND == "add":
        tl.atomic_add(x + 4, 1)
    else:
        tl.atomic_cas(x + 4, 0, 1)


@pytest.mark.parametrize("kind", ["add", "cas"])
def test_an_atomic_out_of_bounds(kind: str) -> None:
    with pytest.raises(InterpreterError, match="atomic out of bounds in 1 of 1 lanes"):
        _run(atomic_kernel, 1, x=torch.zeros(4, dtype=torch.int32), KIND=kind)
    _run(atomic_kernel, 1, x=torch.zeros(5, dtype=torch.int32), KIND=kind)


@triton.jit
def misaligned_kernel(x, out):
    words = (x + 1).to(tl.pointer_type(tl.int32))
    tl.store(out, tl.load(words))


def test_a_misaligned_load() -> None:
    with pytest.raises(InterpreterError, match="load of 4 bytes at an address that is no multiple"):
        _run(misaligned_kernel, 1, x=torch.zeros(8, dtype=torch.uint8), out=torch.zeros(1, dtype=torch.int32))


def test_offsets_beyond_32_bits_are_found_at_no_cost() -> None:
    """Untouched pages take no memory, so a pool of four gigabytes shows an overflow of its offsets."""
    pool, out = torch.empty(1 << 32, dtype=torch.uint8), torch.zeros(N, dtype=torch.uint8)
    with pytest.raises(InterpreterError, match="out of bounds"):
        _run(overflow_kernel, 1, pool=pool, out=out, block=1 << 16, size=1 << 15, N=N)


@triton.jit
def overflow_kernel(pool, out, block, size, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(out + at, tl.load(pool + block * size + at))


def _run(kernel: Any, programs: int, **arguments: Any) -> None:
    Launch(kernel=kernel, grid=(programs,), arguments=arguments).run()
