"""Load a program on this machine: the kernels compile while the weights are packed or mapped."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

from firelane import env
from firelane.backends.contract import StepLimits
from firelane.backends.cpu.codegen import generate
from firelane.backends.cpu.executor import CpuExecutor
from firelane.backends.cpu.layout import LANES, Layout
from firelane.backends.cpu.memory import GIB, available_bytes, step_limits
from firelane.backends.cpu.native import Library
from firelane.backends.request import ExecutorRequest, ProgressCallback
from firelane.errors import OutOfMemoryError, UsageError
from firelane.native import machine, toolchain
from firelane.program.program import Program
from firelane.weights.loader import load_packed

SOURCES = Path(__file__).parent / "csrc"


def load(
    program: Program, model_dir: Path, request: ExecutorRequest, progress: ProgressCallback
) -> CpuExecutor:
    """The executor of `program` with the weights of `model_dir`.

    Raises CompilerError, CheckpointError, CacheError, OutOfMemoryError, UnsupportedModelError, UsageError.
    """
    settings = env.read()
    cpu = machine.cpu_identity()
    isa = machine.choose_isa(settings.isa, cpu)
    threads = _threads(request, cpu.usable_cores)
    layout = Layout(program=program, limits=_limits(program, request), isa=isa)
    library = _in_background(lambda: build(layout, request.cache_dir, settings, progress))

    def watchful(stage: str, done: float, total: float, unit: str, /) -> None:
        """A failed compiler ends the packing."""
        if library.done():
            library.result()
        progress(stage, done, total, unit)

    weights = load_packed(program, model_dir, request.cache_dir, progress=watchful, threads=threads)
    return CpuExecutor(library=Library(library.result()), layout=layout, weights=weights, threads=threads)


def _in_background(work: Callable[[], Path]) -> Future[Path]:
    """Run `work` in a thread that nobody has to wait for: damaged weights are reported at once, not when the
    compiler is done."""
    future: Future[Path] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name="compile", daemon=True).start()
    return future


def build(layout: Layout, cache_dir: Path, settings: env.Environment, progress: ProgressCallback) -> Path:
    """Compile `layout`'s program, or find it compiled; returns the shared library."""
    cpu = machine.cpu_identity()
    progress("compile", 0, 1, "unit")
    path = toolchain.find_compiler(settings).build(
        generate(layout),
        include_dirs=[SOURCES],
        flags=machine.compile_flags(layout.isa, cpu),
        cache_dir=cache_dir,
        cpu_key=cpu.key,
        name=f"the kernels of {layout.program.name}",
    )
    progress("compile", 1, 1, "unit")
    return path


def _threads(request: ExecutorRequest, cores: int) -> int:
    most = max(cores, os.cpu_count() or 1)
    if request.threads is not None and request.threads > most:
        raise UsageError(
            f"--threads {request.threads}: this machine has {most}, and more only wait for each other"
        )
    return request.threads or cores


def _limits(program: Program, request: ExecutorRequest) -> StepLimits:
    if request.block_size % LANES or (64 % request.block_size and request.block_size % 64):
        raise UsageError(
            f"--block-size {request.block_size}: the CPU backend takes 16, 32, or a multiple of 64"
        )
    free = available_bytes() - program.weights_bytes
    if free <= 0:
        raise OutOfMemoryError(
            f"the weights need {program.weights_bytes / GIB:.1f} GiB and {available_bytes() / GIB:.1f} GiB "
            "of memory are free: free some, or serve a smaller model"
        )
    return step_limits(program, request, free)
