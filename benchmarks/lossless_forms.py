"""Executors to compare: as the command line makes them, and with every matrix in one coded form."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from firelane import env
from firelane.backends.cpu.codegen.compile import KernelCompiler
from firelane.backends.cpu.codegen.layout import Layout
from firelane.backends.cpu.executor import CpuExecutor
from firelane.backends.cpu.native import ProgramLibrary
from firelane.engine.process.load import load_executor
from firelane.engine_config import WEIGHTS, EngineConfig
from firelane.errors import UsageError
from firelane.native.machine import cpu_identity
from firelane.program.program import Program
from firelane.weights.formats.formats import Format
from firelane.weights.packing.loader import load_packed
from firelane.weights.packing.plan import takes
from firelane.weights.progress import silent

CODED = {"coded4": Format.PANEL_CODED4, "coded3": Format.PANEL_CODED3}


def load_form(config: EngineConfig, program: Program, form: str, plain: CpuExecutor | None) -> CpuExecutor:
    """`form`: a value of --weights, or one of CODED, which takes its sizes from `plain`. UsageError for
    another."""
    began_s = time.perf_counter()
    if form in WEIGHTS:
        executor = load_executor(config, silent)
        assert isinstance(executor, CpuExecutor)
    elif form in CODED and plain is not None:
        executor = load_coded(config, program, CODED[form], plain.layout)
    else:
        raise UsageError(f"--forms {form}: choose from {', '.join((*WEIGHTS, *CODED))}")
    print(f"{form}: loaded in {time.perf_counter() - began_s:.1f} s", file=sys.stderr, flush=True)
    return executor


def load_coded(config: EngineConfig, program: Program, form: Format, plain: Layout) -> CpuExecutor:
    """Every matrix that can have it in `form`, whatever is fastest."""
    forms = {w.name: form for w in program.weights if takes(w, form)}
    layout = Layout(program=program, limits=plain.limits, isa=plain.isa, forms=forms)
    cache_dir: Path = config.cache_dir
    library = KernelCompiler.find(env.read(), cache_dir).build(layout)
    weights = load_packed(program, config.model_dir, cache_dir, forms=forms)
    threads = config.threads or cpu_identity().usable_cores
    return CpuExecutor(library=ProgramLibrary(library), layout=layout, weights=weights, threads=threads)
