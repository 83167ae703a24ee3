"""Cost of a KV cache in shared memory: decode at a long context, by the kind of memory that holds the pages.

    python benchmarks/kv_shared_memory.py [--context 32000] [--rounds 15] [--threads N]

The same step on the same kernels and weights, in turns: pages in private memory with huge pages (as served),
in private memory without, and in a memfd, which gets huge pages where enough are reserved or the system gives
them to shared memory. The sequence's pages lie in random order. Time is that of the attention ops; "huge" is
the share of the pool that huge pages hold.
"""

from __future__ import annotations

import argparse
import ctypes
import mmap
import os
import platform
import re
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from random_model import mistral_config, write_checkpoint

from firelane import __version__, env
from firelane.backends.cpu.codegen.compile import KernelCompiler
from firelane.backends.cpu.codegen.layout import Layout
from firelane.backends.cpu.executor import CpuExecutor
from firelane.backends.cpu.native import ProgramLibrary
from firelane.bench.table import format_table
from firelane.contract import SAMPLE, StepInputs, StepLimits
from firelane.doctor.report import examine_shared_memory
from firelane.models.registry import load_program
from firelane.native.machine import choose_isa, cpu_identity
from firelane.program.ops import Attention
from firelane.weights.packing.loader import load_packed

BLOCK_SIZE = 16
RANGE = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) ")
HUGE_FIELDS = ("AnonHugePages:", "ShmemPmdMapped:", "Shared_Hugetlb:", "Private_Hugetlb:")


def layout_for(config: dict[str, object], context: int) -> Layout:
    limits = StepLimits(
        max_num_seqs=1,
        max_num_batched_tokens=16,
        max_output_rows=1,
        max_model_len=context,
        block_size=BLOCK_SIZE,
        num_blocks=-(-context // BLOCK_SIZE),
    )
    return Layout(program=load_program(config), limits=limits, isa=choose_isa("", cpu_identity()))


def fill(executor: CpuExecutor) -> None:
    """Finite keys and values in all pages, and the pages of slot 0 in random order."""
    words = np.random.default_rng(0).standard_normal(1 << 22).astype(np.float32).view(np.uint32) >> 16
    pattern = words.astype(np.uint16).view(np.uint8)
    flat = executor.pages.reshape(-1)
    for start in range(0, flat.size, pattern.size):
        flat[start : start + pattern.size] = pattern[: flat.size - start]
    state, blocks = executor.state, executor.limits.num_blocks
    state.block_tables[0, 0, :blocks] = np.random.default_rng(1).permutation(blocks)
    state.sampling["repetition_penalty"], state.sampling["top_p"] = 1.0, 1.0
    state.sampling["logprobs"] = -1


def decode_inputs(executor: CpuExecutor) -> StepInputs:
    inputs, last = StepInputs.allocate(executor.limits), executor.limits.max_model_len - 1
    inputs.num_chunks = inputs.num_tokens = inputs.num_rows = 1
    inputs.chunk_start[0], inputs.chunk_len[0] = last, 1
    inputs.row_position[0], inputs.row_kind[0] = last, SAMPLE
    return inputs


def attention_s(executor: CpuExecutor, inputs: StepInputs) -> float:
    """Seconds of the attention ops in one step."""
    executor.op_seconds[:] = 0
    executor.submit(inputs)
    executor.wait()
    ops = executor.layout.program.ops
    return sum(s for op, s in zip(ops, executor.op_seconds, strict=False) if isinstance(op, Attention))


def forbid_huge_pages(executor: CpuExecutor) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    address, size = ctypes.c_void_p(executor.pages.ctypes.data), ctypes.c_size_t(executor.pages.nbytes)
    assert libc.madvise(address, size, mmap.MADV_NOHUGEPAGE) == 0, os.strerror(ctypes.get_errno())


def huge_share(executor: CpuExecutor) -> float:
    """Return the share of huge pages in the mapping that holds the cache's pages."""
    at, inside, found = executor.pages.ctypes.data, False, 0
    for line in Path("/proc/self/smaps").read_text().splitlines():
        bounds = RANGE.match(line)
        if bounds:
            inside = int(bounds[1], 16) <= at < int(bounds[2], 16)
        elif inside and line.startswith(HUGE_FIELDS):
            found += int(line.split()[1]) << 10
    return min(1.0, found / executor.pages.nbytes)


def executors(scratch: Path, context: int, threads: int) -> dict[str, CpuExecutor]:
    config = mistral_config(layers=8, kv_heads=8, window=None, max_len=context)
    write_checkpoint(scratch / "model", config)
    layout = layout_for(config, context)
    library = KernelCompiler.find(env.read(), scratch).build(layout)
    weights = load_packed(
        layout.program, scratch / "model", scratch, forms={}, progress=lambda *_: None, threads=threads
    )

    def make(*, shared: bool) -> CpuExecutor:
        return CpuExecutor(
            library=ProgramLibrary(library),
            layout=layout,
            weights=weights,
            threads=threads,
            shared_pages=shared,
        )

    made = {"private, huge pages": make(shared=False), "private, small pages": make(shared=False)}
    forbid_huge_pages(made["private, small pages"])
    return made | {"shared (memfd)": make(shared=True)}


def measure(made: dict[str, CpuExecutor], rounds: int) -> dict[str, list[float]]:
    """Seconds by kind of memory, in turns."""
    steps: dict[str, Callable[[], float]] = {}
    for name, executor in made.items():
        fill(executor)
        inputs = decode_inputs(executor)
        steps[name] = lambda e=executor, i=inputs: attention_s(e, i)
        steps[name]()
    times: dict[str, list[float]] = {name: [] for name in made}
    for _ in range(rounds):
        for name, step in steps.items():
            times[name].append(step())
    return times


def report(made: dict[str, CpuExecutor], times: dict[str, list[float]]) -> str:
    base = next(iter(times.values()))
    header = ("memory", "huge", "best ms", "median ms", "GB/s", "best / private", "median of ratios")
    rows: list[list[str]] = []
    for name, seconds in times.items():
        ratios = [mine / theirs for mine, theirs in zip(seconds, base, strict=True)]
        rows.append(
            [
                name,
                f"{huge_share(made[name]):.0%}",
                f"{min(seconds) * 1e3:.2f}",
                f"{statistics.median(seconds) * 1e3:.2f}",
                f"{made[name].pages.nbytes / min(seconds) / 1e9:.1f}",
                f"{min(seconds) / min(base):.3f}",
                f"{statistics.median(ratios):.3f}",
            ]
        )
    return format_table(header, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--context", type=int, default=32_000)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        made = executors(Path(scratch), options.context, options.threads)
        times = measure(made, options.rounds)
        pool = next(iter(made.values())).pages.nbytes
        print(f"firelane {__version__}, {cpu_identity().model}, {platform.platform()}")
        print(f"{options.threads} threads, context {options.context}, pool {pool / 1e6:.0f} MB")
        print(f"shared memory: {examine_shared_memory()}; load {os.getloadavg()[0]:.1f}\n")
        print(report(made, times))
        for executor in made.values():
            executor.release()


if __name__ == "__main__":
    main()
