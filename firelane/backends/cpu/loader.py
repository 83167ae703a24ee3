"""Load a program on this machine: once the formats of its weights are chosen, the kernels compile while the
weights are packed or mapped."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from pathlib import Path

from firelane import env
from firelane.backends.background import in_background
from firelane.backends.cpu.alike import alike
from firelane.backends.cpu.cached_estimate import cached_estimate
from firelane.backends.cpu.codegen.adapter_layout import AdapterLayout
from firelane.backends.cpu.codegen.compile import KernelCompiler
from firelane.backends.cpu.codegen.forms import choose, wanted_forms
from firelane.backends.cpu.codegen.layout import INT8_ISAS, LANES, Layout
from firelane.backends.cpu.executor import CpuExecutor
from firelane.backends.cpu.interconnect import CpuInterconnect
from firelane.backends.cpu.memory import GIB
from firelane.backends.cpu.native import ProgramLibrary
from firelane.backends.ranks.member import GroupSizes, Member, limits_of
from firelane.contract import AdapterLimits, BackendDefaults, ProgressCallback, StepLimits, resolve_limits
from firelane.engine_config import ExecutorConfig
from firelane.errors import OutOfMemoryError, UsageError
from firelane.native import machine
from firelane.native.host_memory import available_bytes
from firelane.native.pages import private_huge_pages
from firelane.native.target import Target
from firelane.parallel.hosts import HostLayout
from firelane.program.adapters import with_adapters
from firelane.program.program import Program
from firelane.weights.checkpoints.checkpoint import Checkpoint
from firelane.weights.checkpoints.fitting import fitted
from firelane.weights.formats.formats import Format
from firelane.weights.packing.check import BackgroundCheck
from firelane.weights.packing.loader import load_packed
from firelane.weights.packing.pieces import coded_format
from firelane.weights.packing.plan import plan
from firelane.weights.quantizing.schemes import WHILE_PACKING
from firelane.weights.storage.huge_pages import HugePages

DEFAULTS = BackendDefaults(block_size=16, max_num_batched_tokens=512)
ALONE, NO_INTERCONNECT = Member(), CpuInterconnect()
KV_SHARE = 0.5
"""The share of the memory that the weights leave."""
log = logging.getLogger(__name__)


ISA_NAMES = {
    "avx512bf16": "AVX-512 BF16",
    "avx512": "AVX-512",
    "avx2": "AVX2",
    "neonbf16": "NEON BF16",
    "neon": "NEON",
    "portable": "portable code",
}


def describe(config: ExecutorConfig) -> str:
    """Raises UsageError for a target that this CPU cannot run."""
    cpu = machine.cpu_identity()
    isa = machine.choose_isa(env.read().isa, cpu)
    threads = config.threads or cpu.usable_cores
    return f"CPU, {ISA_NAMES.get(isa, isa)}, {threads} thread{'s' * (threads != 1)}"


def load(
    program: Program, model_dir: Path, config: ExecutorConfig, progress: ProgressCallback
) -> CpuExecutor:
    """The executor of `program` with the weights of `model_dir`, as the environment asks for it.

    Raises CompilerError, CheckpointError, CacheError, OutOfMemoryError, UnsupportedModelError, UsageError.
    """
    return load_for(env.read(), program, model_dir, config, progress)


def load_for(
    settings: env.Environment,
    program: Program,
    model_dir: Path,
    config: ExecutorConfig,
    progress: ProgressCallback,
    member: Member = ALONE,
    interconnect: CpuInterconnect = NO_INTERCONNECT,
) -> CpuExecutor:
    """The executor of one member of a group of ranks, which `interconnect` joins to the others."""
    compiler = in_background(lambda: KernelCompiler.find(settings, config.cache_dir), name="compiler")
    target = in_background(lambda: compiler.result().target(settings), name="target")
    threads = _threads(config.threads, machine.cpu_identity().usable_cores)
    _check_block_size(config.block_size or DEFAULTS.block_size)
    checkpoint = Checkpoint.open(model_dir)
    scheme = WHILE_PACKING.get(config.weights)
    program = fitted(program, checkpoint, rounds=config.rounds, quantize=scheme)
    programs = member.programs(program)
    given = interconnect.attach(program, programs) or member.limits
    program, adapters = alike(programs[member.rank]), AdapterLimits.of(config)
    program = with_adapters(program, adapters) if adapters else program
    _tell(target.result())
    estimate = partial(cached_estimate, config.cache_dir, checkpoint, program)
    wanted = wanted_forms(config.weights, target.result().isa, program)
    stored = None if config.weights == "bf16" else partial(coded_format, checkpoint)
    choice = choose(program, wanted, estimate, stored)
    saved = choice.saved_bytes - AdapterLayout.of(program).nbytes
    limits = given or _limits(programs, member.hosts, config, interconnect, saved)
    layout = _layout(program, limits, target.result().isa, choice.forms, config)
    link = interconnect.connect(layout, limits, programs)
    state = member.join(limits, program.vocab_size)
    library = in_background(lambda: build(layout, compiler.result(), progress), name="compile")
    weights = load_packed(
        program,
        checkpoint,
        config.cache_dir,
        forms=choice.forms,
        progress=_watchful(progress, library),
        threads=threads,
        seals_later=True,
    )
    asked = config.weights_pages == "huge"
    pages = HugePages(weights.file, spare=partial(_spare, config, layout), asked=asked)
    check = BackgroundCheck(weights, plan(program, choice.forms), checkpoint, pages=pages)
    compiled = ProgramLibrary(library.result())
    member.meet_loaded()
    with interconnect.pinned():
        return CpuExecutor(
            library=compiled,
            layout=layout,
            weights=weights,
            threads=threads,
            shared_pages=config.kv_cache_memory == "shared",
            check=check,
            link=link,
            state=state,
            max_in_flight=member.max_in_flight,
        )


def _watchful(progress: ProgressCallback, library: Future[Path]) -> ProgressCallback:
    """The same; a failed compiler ends the packing."""

    def watch(stage: str, done: float, total: float, unit: str, /) -> None:
        if library.done():
            library.result()
        progress(stage, done, total, unit)

    return watch


def _spare(config: ExecutorConfig, layout: Layout) -> int:
    """Memory that copies of the weights in huge pages may take. The KV cache and recurrent states may still
    need of it all that they can ever hold: their pages are paid for when they are written."""
    if not private_huge_pages():
        return 0
    limits = layout.limits
    held = limits.num_blocks * layout.page_bytes + limits.num_states * limits.state_bytes
    held += config.tiers.host_bytes if config.tiers else 0
    free = available_bytes() - held
    if config.weights_pages == "huge":
        return free
    return free // 2 if config.weights_pages == "auto" and config.replicas == 1 else 0


def build(layout: Layout, compiler: KernelCompiler, progress: ProgressCallback) -> Path:
    """Compile `layout`'s program, or find it compiled; returns the shared library."""
    progress("compile", 0, 1, "unit")
    path = compiler.build(layout)
    progress("compile", 1, 1, "unit")
    return path


def _tell(target: Target) -> None:
    """In the log, what the kernels are compiled for, and what keeps them from being faster."""
    log.log(logging.WARNING if target.why else logging.DEBUG, "backend cpu: kernels for %s", target)


def _threads(wanted: int | None, cores: int) -> int:
    most = max(cores, os.cpu_count() or 1)
    if wanted is not None and wanted > most:
        raise UsageError(f"--threads {wanted}: this machine has {most}, and more only wait for each other")
    return wanted or cores


def _check_block_size(block_size: int) -> None:
    if block_size % LANES or (64 % block_size and block_size % 64):
        raise UsageError(f"--block-size {block_size}: the CPU backend takes 16, 32, or a multiple of 64")


def _layout(
    program: Program, limits: StepLimits, isa: str, forms: Mapping[str, Format], config: ExecutorConfig
) -> Layout:
    """Raises UsageError, UnsupportedModelError."""
    wanted = config.activation_dtype
    layout = Layout(
        program=program,
        limits=limits_of(program, limits),
        isa=isa,
        forms=forms,
        integers=wanted == "int8" or (wanted == "auto" and isa in INT8_ISAS),
        adapter_limits=AdapterLimits.of(config),
    )
    return choose_activations(layout, wanted)


def choose_activations(layout: Layout, wanted: str) -> Layout:
    """The same layout, with bf16 activations where no matrix is in integer codes. Raises UsageError where the
    user asked for int8."""
    if not layout.integers or layout.has_integer_products:
        return layout
    if wanted == "int8":
        raise UsageError(
            "--activation-dtype int8: no matrix of this model is in integer codes; leave it out, or serve a "
            "quantised model (--weights int8 or int4 quantises this one)"
        )
    return replace(layout, integers=False)


def _beside(tiers_bytes: int) -> str:
    return f" beside the {tiers_bytes / GIB:.1f} GiB of --kv-offloading-size" if tiers_bytes else ""


def _limits(
    programs: Mapping[int, Program],
    hosts: HostLayout,
    config: ExecutorConfig,
    interconnect: CpuInterconnect,
    saved_bytes: int,
) -> StepLimits:
    """The sizes of the ranks that run `programs` on these hosts. saved_bytes: by the formats of a rank's
    weights, less what adapters may take; ranks share the memory that is left."""
    sizes, ranks = GroupSizes.of(programs.values(), hosts.count), hosts.each
    tiers_bytes = config.replicas * config.tiers.host_bytes if config.tiers else 0
    available = interconnect.available_bytes - tiers_bytes
    weights_bytes = sizes.weights_bytes - saved_bytes * ranks
    weights_bytes += config.beside.weights_bytes if config.beside else 0
    free = available - weights_bytes
    if free <= 0:
        raise OutOfMemoryError(
            f"the weights need {weights_bytes / GIB:.1f} GiB and {max(0, available) / GIB:.1f} GiB "
            f"of memory are free{_beside(tiers_bytes)}: free some, or serve a smaller model"
        )
    return resolve_limits(
        sizes,
        config,
        DEFAULTS,
        free_bytes=free // ranks,
        default_kv_bytes=int(free * KV_SHARE / config.replicas / ranks),
    )
