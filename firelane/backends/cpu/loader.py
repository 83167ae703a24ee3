"""Load a program on this machine: the kernels compile while the weights are packed or mapped."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from firelane import env
from firelane.backends.contract import StepLimits
from firelane.backends.cpu import machine, toolchain
from firelane.backends.cpu.codegen import generate
from firelane.backends.cpu.executor import CpuExecutor
from firelane.backends.cpu.layout import LANES, Layout
from firelane.backends.cpu.memory import GIB, available_bytes, step_limits
from firelane.backends.cpu.native import Library
from firelane.backends.request import ExecutorRequest, ProgressCallback
from firelane.errors import OutOfMemoryError, UsageError
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
    threads = request.threads or cpu.usable_cores
    layout = Layout(program=program, limits=_limits(program, request), isa=isa)
    with ThreadPoolExecutor(1, thread_name_prefix="compile") as pool:
        library = pool.submit(build, layout, request.cache_dir, settings, progress)
        weights = load_packed(program, model_dir, request.cache_dir, progress=progress, threads=threads)
        return CpuExecutor(library=Library(_result(library)), layout=layout, weights=weights, threads=threads)


def _result(library: Future[Path]) -> Path:
    return library.result()


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
