"""Compiling kernels for an H200 where no GPU is: a driver that only says what device there is.

Arguments are CPU tensors; the compiler asks their dtype and alignment alone. untouched() takes address space
and no memory, so cases may have the sizes of real models.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget

from firelane.backends.cuda.device.launch import Launch

WGMMA, ASYNC_COPY, WIDE_LOADS, ONLY_WGMMA = "wgmma", "cp.async", "16 B loads", "wgmma alone"
"""A case may need these of its PTX: products by warp group, asynchronous copies to shared memory, some loads
of 16 bytes for each thread, and no products but those by warp group, as sums of others may have other bits.
"""

_PATTERNS = {
    WGMMA: re.compile(r"wgmma\.mma_async"),
    ONLY_WGMMA: re.compile(r"\A(?![\s\S]*\bmma\.sync)"),
    ASYNC_COPY: re.compile(r"cp\.async\.(cg|ca|bulk)\."),
    WIDE_LOADS: re.compile(
        r"ld\.global[\w.:]*\.v(4\.[bf]32|2\.[bf]64)|cp\.async\.cg\.\S+ .*, 0x10|cp\.async\.bulk"
    ),
}
_LAYOUTS = re.compile(r"nvidia_mma<\{[^}]*warpsPerCTA = (\[[^\]]*\])")
# Of an sm_90 multiprocessor.
MAX_SHARED_BYTES = 232448  # of a program
_SHARED_BYTES, _RESERVED_BYTES = 233472, 1024  # of all programs; of each, for the system
_REGISTERS, _THREADS, _PROGRAMS = 65536, 2048, 32


@dataclass(frozen=True, kw_only=True)
class Case:
    """A launch to compile. name: kernel, shape and config, in a few words; unique in its file. may_spill: a
    rare form that only has to work."""

    name: str
    launch: Launch
    needs: tuple[str, ...] = ()
    may_spill: bool = False


@dataclass(frozen=True, kw_only=True)
class Resources:
    """The resources that a compiled kernel takes. registers: of a thread. stack, local: bytes of a thread,
    not 0 where it spills. shared: bytes of a program. layouts: how its products are spread over its warps;
    with several of them sums pass through shared memory on their way from one product to the next."""

    registers: int
    stack: int
    local: int
    shared: int
    warps: int
    layouts: tuple[str, ...]
    found: tuple[str, ...]

    @property
    def programs(self) -> int:
        """The number of programs that one multiprocessor holds at once."""
        threads = 32 * self.warps
        registers = -(-self.registers // 8) * 8 * threads
        shared = self.shared + _RESERVED_BYTES
        return min(_PROGRAMS, _THREADS // threads, _REGISTERS // registers, _SHARED_BYTES // shared)

    def problems(self, case: Case) -> list[str]:
        found = [f"no {need}" for need in case.needs if need not in self.found]
        if (self.stack or self.local) and not case.may_spill:
            found.append("spills")
        if len(self.layouts) > 1:
            found.append(f"products in layouts {', '.join(self.layouts)}")
        if self.shared > MAX_SHARED_BYTES:
            found.append(f"shared memory over {MAX_SHARED_BYTES}")
        return found


class OnlyATarget:
    """Stands in for Triton's driver while a kernel compiles: an sm_90 device that nothing runs on."""

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        del device
        return 0


def use_no_device() -> None:
    """Let this process compile for sm_90. Triton must have been imported without TRITON_INTERPRET=1."""
    triton.runtime.driver.set_active(OnlyATarget())


def untouched(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.empty(shape, dtype=dtype)


def compile_launch(launch: Launch) -> Resources:
    """Raises what the compiler raises."""
    return _read(launch.compile(), launch.warps)


def _read(kernel: Any, warps: int) -> Resources:
    usage = _dump_usage(kernel.asm["cubin"])
    ptx: str = kernel.asm["ptx"]
    return Resources(
        registers=usage["REG"],
        stack=usage["STACK"],
        local=usage["LOCAL"],
        shared=int(kernel.metadata.shared),
        warps=warps,
        layouts=tuple(sorted(set(_LAYOUTS.findall(kernel.asm["ttgir"])))),
        found=tuple(name for name, pattern in _PATTERNS.items() if pattern.search(ptx)),
    )


def _dump_usage(cubin: bytes) -> dict[str, int]:
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [str(tool), "--dump-resource-usage", file.name]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return {name: int(number) for name, number in re.findall(r"\b(REG|STACK|LOCAL):(\d+)", text)}
