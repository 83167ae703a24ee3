"""The machine's physical limits, measured: streaming reads from memory, multiply-adds in registers."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, replace
from pathlib import Path

from firelane.env import Environment
from firelane.errors import OutOfMemoryError
from firelane.native.machine import cpu_identity
from firelane.native.target import find_target
from firelane.native.toolchain import find_compiler

SOURCE = Path(__file__).with_name("probe.cpp")
# Large against any last-level cache that a thread has to itself, small against the memory of a small machine.
READ_BYTES = 256 << 20
ROUNDS = 2_000_000
REPEATS = 5


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Best of several short runs; rates in 10^9 a second. `*_1` is one thread, the others `threads` together.

    read: bytes streamed from memory. dot: operations of the bf16 dot-product instruction (0: there is none).
    fma: float32 operations of fused multiply-adds; either counts two for a multiplication and an addition.
    """

    threads: int
    read_gbps: float
    read_gbps_1: float
    dot_gflops: float
    dot_gflops_1: float
    fma_gflops: float
    fma_gflops_1: float

    @property
    def peak_gflops(self) -> float:
        """The rate for a bf16 model: the dot-product instruction's rate, or else the multiply-adds'."""
        return self.dot_gflops or self.fma_gflops


class Probe:
    """The compiled probe; each measurement is the best of `repeats` short runs."""

    def __init__(self, library: Path, *, repeats: int = REPEATS) -> None:
        self._library = ctypes.CDLL(str(library))
        self._repeats = repeats

    def read_gbps(self, threads: int, size_bytes: int = READ_BYTES) -> float:
        """Raises OutOfMemoryError when `threads` buffers of `size_bytes` do not fit."""
        rate = self._call("firelane_probe_read", threads, size_bytes)
        if rate < 0:
            need = threads * size_bytes >> 20
            raise OutOfMemoryError(f"measuring the memory's bandwidth needs {need} MiB: end other programs")
        return rate

    def dot_gflops(self, threads: int, rounds: int = ROUNDS) -> float:
        return self._call("firelane_probe_dot", threads, rounds)

    def fma_gflops(self, threads: int, rounds: int = ROUNDS) -> float:
        return self._call("firelane_probe_fma", threads, rounds)

    def _call(self, name: str, threads: int, size: int) -> float:
        function = getattr(self._library, name)
        function.restype = ctypes.c_double
        function.argtypes = [ctypes.c_int, ctypes.c_size_t, ctypes.c_int]
        return function(threads, size, self._repeats) / 1e9


def build_probe(settings: Environment, isa: str = "") -> Probe:
    """Compile the probe for the target `isa` (default: the machine's best), or take it from the cache. Raises
    CompilerError, CacheError."""
    cpu = cpu_identity()
    compiler = find_compiler(settings)
    target = find_target(replace(settings, isa=isa), cpu, compiler)
    library = compiler.build(
        SOURCE.read_text(),
        include_dirs=(),
        flags=(*target.flags, "-ffp-contract=fast", "-pthread"),
        cache_dir=settings.cache_dir,
        cpu_key=cpu.key,
        name="the doctor's probe",
    )
    return Probe(library)


def measure_limits(settings: Environment, *, threads: int | None = None) -> Limits:
    """Some two seconds of full load. `threads`: how many run together (default: all usable cores)."""
    probe = build_probe(settings)
    together = threads or cpu_identity().usable_cores
    return Limits(
        threads=together,
        read_gbps=probe.read_gbps(together),
        read_gbps_1=probe.read_gbps(1),
        dot_gflops=probe.dot_gflops(together),
        dot_gflops_1=probe.dot_gflops(1),
        fma_gflops=probe.fma_gflops(together),
        fma_gflops_1=probe.fma_gflops(1),
    )
