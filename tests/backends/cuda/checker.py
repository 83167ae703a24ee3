"""Bounds and races of interpreted kernels: every load, store and atomic of a launch is looked at.

A program may touch the tensors that the launch was given, and of a view only what lies between its first and
its last element. Programs run in any order on a device, so what one stores no other may load or store within
the same launch. Atomics are held to the bounds alone. An access that breaks this raises IndexError, which
Triton shows as an InterpreterError.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from triton.runtime import interpreter
from triton.runtime.interpreter import InterpreterBuilder

Addresses = NDArray[np.int64]
_NOBODY, _SEVERAL = 0, -1


class LaunchMemory:
    """The memory that one launch may touch, and which program (from 1 on) stored or loaded each byte."""

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        starts, ends = _merge(sorted(extent(t) for t in tensors if t.numel()))
        self._starts = np.array(starts, np.int64)
        self._ends = np.array(ends, np.int64)
        sizes = self._ends - self._starts
        self._first = np.cumsum(sizes) - sizes  # of a range's bytes in the arrays below
        self._writer = np.zeros(int(sizes.sum()), np.int32)
        self._reader = np.zeros(int(sizes.sum()), np.int32)

    def load(self, addresses: Addresses, size: int, program: int) -> None:
        at = self._locate(addresses, size, "load")
        self._refuse_others(self._writer[at], program, "load of what another program stores")
        readers = self._reader[at]
        self._reader[at] = np.where((readers == _NOBODY) | (readers == program), program, _SEVERAL)

    def store(self, addresses: Addresses, size: int, program: int) -> None:
        if np.unique(addresses).size != addresses.size:
            raise IndexError("race: two lanes of one store have the same address")
        at = self._locate(addresses, size, "store")
        self._refuse_others(self._writer[at], program, "store of what another program stores")
        self._refuse_others(self._reader[at], program, "store of what another program loads")
        self._writer[at] = program

    def atomic(self, addresses: Addresses, size: int) -> None:
        self._locate(addresses, size, "atomic")

    def _locate(self, addresses: Addresses, size: int, kind: str) -> NDArray[np.int64]:
        """Return the indices in _writer and _reader of the bytes at these addresses. Raises IndexError."""
        if not self._starts.size:
            raise IndexError(f"{kind} out of bounds: the launch has no tensors")
        owner = np.maximum(np.searchsorted(self._starts, addresses, side="right") - 1, 0)
        outside = (addresses < self._starts[owner]) | (addresses + size > self._ends[owner])
        if outside.any():
            raise IndexError(f"{kind} out of bounds in {outside.sum()} of {addresses.size} lanes")
        if (addresses % size).any():
            raise IndexError(f"{kind} of {size} bytes at an address that is no multiple of them")
        return addresses - self._starts[owner] + self._first[owner]

    @staticmethod
    def _refuse_others(programs: NDArray[np.int32], program: int, what: str) -> None:
        others = (programs != _NOBODY) & (programs != program)
        if others.any():
            raise IndexError(f"race: {what}, in {others.sum()} of {programs.size} lanes")


class Checker:
    """Looks at the accesses of the launch in progress."""

    def __init__(self) -> None:
        self._memory = LaunchMemory([])

    def begin(self, tensors: Iterable[Tensor]) -> None:
        self._memory = LaunchMemory(tensors)

    def access(self, builder: Any, kind: str, pointer: Any, mask: Any) -> None:
        data, chosen = np.broadcast_arrays(pointer.data, np.True_ if mask is None else mask.data.astype(bool))
        addresses = data[chosen].astype(np.int64)
        if not addresses.size:
            return
        size = max(1, pointer.get_element_ty().primitive_bitwidth // 8)
        if kind == "atomic":
            self._memory.atomic(addresses, size)
        else:
            getattr(self._memory, kind)(addresses, size, _program(builder))


@cache
def install() -> Checker:
    """Check every launch of this process from now on."""
    checker = Checker()
    _watch_launches(checker)
    _watch(checker, "create_masked_load", "load", pointer=0, mask=1)
    _watch(checker, "create_masked_store", "store", pointer=0, mask=2)
    _watch(checker, "create_atomic_rmw", "atomic", pointer=1, mask=3)
    _watch(checker, "create_atomic_cas", "atomic", pointer=0, mask=None)
    return checker


def extent(tensor: Tensor) -> tuple[int, int]:
    """The addresses of its first byte and behind its last one; it must not be empty."""
    last = sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True))
    start = tensor.data_ptr()
    return start, start + (last + 1) * tensor.element_size()


def _merge(extents: list[tuple[int, int]]) -> tuple[list[int], list[int]]:
    """Starts and ends of what the extents, sorted, cover together; those that only touch stay apart."""
    starts: list[int] = []
    ends: list[int] = []
    for start, end in extents:
        if ends and start < ends[-1]:
            ends[-1] = max(ends[-1], end)
        else:
            starts.append(start)
            ends.append(end)
    return starts, ends


def _program(builder: Any) -> int:
    (x, y, z), (size_x, size_y, _) = builder.grid_idx, builder.grid_dim
    return 1 + x + size_x * (y + size_y * z)


def _watch_launches(checker: Checker) -> None:
    original = interpreter.GridExecutor._init_args_hst

    def init_arguments(self: Any, arguments: Any, named: Any) -> Any:
        result = original(self, arguments, named)
        checker.begin(_tensors([*result[0], *result[1].values()]))
        return result

    interpreter.GridExecutor._init_args_hst = init_arguments


def _watch(checker: Checker, method: str, kind: str, *, pointer: int, mask: int | None) -> None:
    original = getattr(InterpreterBuilder, method)

    def watched(self: Any, *arguments: Any, **named: Any) -> Any:
        checker.access(self, kind, arguments[pointer], None if mask is None else arguments[mask])
        return original(self, *arguments, **named)

    setattr(InterpreterBuilder, method, watched)


def _tensors(values: Iterable[Any]) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, tuple):
            yield from _tensors(value)
        elif isinstance(value, Tensor):
            yield value
        elif isinstance(getattr(value, "base", None), Tensor):  # a tensor descriptor
            yield value.base
