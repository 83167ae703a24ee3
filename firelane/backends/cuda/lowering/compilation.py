"""Compiling ahead, in threads: kernels, their launchers, and their modules on the device."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import Tensor

from firelane.backends.cuda.device.faults import translated
from firelane.backends.cuda.device.launch import Work


def compile_all(
    work: Iterable[Work],
    *,
    threads: int,
    on_device: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> int:
    """Compile every kernel that `work` launches, or find it compiled, and load it on the device that is the
    current one in on_device(). Returns how many there are. Raises CompilerError, MachineError,
    OutOfMemoryError."""
    different = {specialisation(w): w for w in work}

    def compile_one(work: Work) -> tuple[Any, str]:
        with on_device(), translated(f"compiling {work.name}", kernel=work.name):
            return work.compile(), work.name

    def load_one(compiled: tuple[Any, str]) -> None:
        with on_device():
            _load(compiled)

    with ThreadPoolExecutor(threads, thread_name_prefix="compile") as pool:
        compiled = pool.map(compile_one, different.values())
        by_kernel = {
            id(kernel): (kernel, name) for kernel, name in compiled
        }  # several launches may share one
        list(pool.map(load_one, by_kernel.values()))
    return len(different)


def _load(compiled: tuple[Any, str]) -> None:
    """Triton does this at a kernel's first launch: its launcher, a C function of the signature, goes through
    the C compiler, and its module to the device. A version that has no such method does it then."""
    kernel, name = compiled
    load = getattr(kernel, "_init_handles", None)
    if load is not None:
        with translated(f"loading {name}", kernel=name):
            load()


def specialisation(work: Work) -> tuple[Any, ...]:
    """The key of a compiled kernel: launches that agree in it share one."""
    arguments: Mapping[str, Any] = getattr(work, "arguments", {})
    fixed = tuple((name, _kind(value)) for name, value in arguments.items())
    options = tuple(getattr(work, name, 0) for name in ("warps", "stages"))
    return work.name, fixed, *options


def _kind(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.dtype, value.data_ptr() % 16 == 0
    if isinstance(value, tuple):  # an operand: it may hold others
        return tuple(_kind(field) for field in value)
    return getattr(value, "value", value)  # a constexpr's
