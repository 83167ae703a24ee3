"""Load a program on this machine: once the weights' forms are chosen, the kernels compile while the weights
are packed or mapped."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

from firelane import env
from firelane.backends.background import in_background
from firelane.backends.contract import StepLimits
from firelane.backends.cpu.compile import KernelCompiler
from firelane.backends.cpu.executor import CpuExecutor
from firelane.backends.cpu.forms import choose
from firelane.backends.cpu.kept_census import kept_census
from firelane.backends.cpu.layout import LANES, Layout
from firelane.backends.cpu.memory import GIB, available_bytes, step_limits
from firelane.backends.cpu.native import Library
from firelane.backends.cpu.tuning.runner import Site
from firelane.backends.cpu.tuning.table import Tuning
from firelane.backends.cpu.tuning.tuner import Tuner
from firelane.backends.request import ExecutorRequest, ProgressCallback, SettledRequest
from firelane.errors import OutOfMemoryError, UsageError
from firelane.native import machine
from firelane.program.program import Program
from firelane.weights.checkpoint import Checkpoint
from firelane.weights.loader import load_packed

BLOCK_TOKENS = 16
STEP_TOKENS = 512


def load(
    program: Program, model_dir: Path, request: ExecutorRequest, progress: ProgressCallback
) -> CpuExecutor:
    """The executor of `program` with the weights of `model_dir`.

    Raises CompilerError, CheckpointError, CacheError, OutOfMemoryError, UnsupportedModelError, UsageError.
    """
    settings = env.read()
    cpu = machine.cpu_identity()
    isa = machine.choose_isa(settings.isa, cpu)
    threads = _threads(request.threads, cpu.usable_cores)
    settled = settle(request)
    _check_block_size(settled.block_size)
    checkpoint = Checkpoint.open(model_dir)
    checkpoint.check_against(program)
    tuner = partial(tune, program, settled, settings, progress)
    choice = choose(
        program, request.weights, tuner, partial(kept_census, request.cache_dir, checkpoint, program)
    )
    limits = _limits(program, settled, program.weights_bytes - choice.saved_bytes)
    layout = Layout(program=program, limits=limits, isa=isa, forms=choice.forms)
    library = in_background(lambda: build(layout, request.cache_dir, settings, progress), name="compile")

    def watchful(stage: str, done: float, total: float, unit: str, /) -> None:
        """A failed compiler ends the packing."""
        if library.done():
            library.result()
        progress(stage, done, total, unit)

    weights = load_packed(
        program, model_dir, request.cache_dir, forms=choice.forms, progress=watchful, threads=threads
    )
    return CpuExecutor(
        library=Library(library.result()),
        layout=layout,
        weights=weights,
        threads=threads,
        decode_once_from=choice.decode_once_from,
    )


def settle(request: ExecutorRequest) -> SettledRequest:
    """`request` with this backend's sizes."""
    return request.settled(block_size=BLOCK_TOKENS, max_num_batched_tokens=STEP_TOKENS)


def tune(
    program: Program,
    request: SettledRequest,
    settings: env.Environment,
    progress: ProgressCallback,
    *,
    force: bool = False,
) -> Tuning:
    """What the tuner says of `program` here; see Tuner.tune. Raises CompilerError, UsageError."""
    compiler = KernelCompiler.find(settings, request.cache_dir)
    site = Site(
        compiler=compiler,
        isa=machine.choose_isa(settings.isa, compiler.cpu),
        threads=_threads(request.threads, compiler.cpu.usable_cores),
        block_size=request.block_size,
    )
    return Tuner(site).tune(program, progress, force=force)


def build(layout: Layout, cache_dir: Path, settings: env.Environment, progress: ProgressCallback) -> Path:
    """Compile `layout`'s program, or find it compiled; returns the shared library."""
    progress("compile", 0, 1, "unit")
    path = KernelCompiler.find(settings, cache_dir).build(layout)
    progress("compile", 1, 1, "unit")
    return path


def _threads(wanted: int | None, cores: int) -> int:
    most = max(cores, os.cpu_count() or 1)
    if wanted is not None and wanted > most:
        raise UsageError(f"--threads {wanted}: this machine has {most}, and more only wait for each other")
    return wanted or cores


def _check_block_size(block_size: int) -> None:
    if block_size % LANES or (64 % block_size and block_size % 64):
        raise UsageError(f"--block-size {block_size}: the CPU backend takes 16, 32, or a multiple of 64")


def _limits(program: Program, request: SettledRequest, weights_bytes: int) -> StepLimits:
    free = available_bytes() - weights_bytes
    if free <= 0:
        raise OutOfMemoryError(
            f"the weights need {weights_bytes / GIB:.1f} GiB and {available_bytes() / GIB:.1f} GiB "
            "of memory are free: free some, or serve a smaller model"
        )
    return step_limits(program, request, free)
