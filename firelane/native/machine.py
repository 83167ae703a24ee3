"""What the CPU is: model, features, usable cores, and the instruction-set targets that it can run."""

from __future__ import annotations

import os
import platform
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from firelane.errors import UsageError
from firelane.native import cgroup

# Best first. `portable` is the compiler's baseline for the architecture.
ISAS = ("avx512bf16", "avx512", "avx2", "neon", "portable")

_AVX2 = ("avx2", "fma", "f16c")
_AVX512 = (*_AVX2, "avx512f", "avx512bw", "avx512vl", "avx512dq")
# Feature names as /proc/cpuinfo spells them.
ISA_FEATURES: dict[str, tuple[str, ...]] = {
    "avx512bf16": (*_AVX512, "avx512_bf16"),
    "avx512": _AVX512,
    "avx2": _AVX2,
    "neon": ("asimd",),
    "portable": (),
}
# The least that each target needs; where it is the machine's best, `compile_flags` gives -march=native.
ISA_FLAGS: dict[str, tuple[str, ...]] = {
    isa: tuple(f"-m{name.replace('_', '')}" for name in features if name != "asimd")
    for isa, features in ISA_FEATURES.items()
}


@dataclass(frozen=True, kw_only=True)
class CpuIdentity:
    """`features` as the kernel names them; `usable_cores` counts physical cores that this process may use."""

    model: str
    architecture: str
    features: frozenset[str]
    usable_cores: int

    @property
    def key(self) -> str:
        """Properties that a compiled kernel depends on. Cores are left out: a kernel serves any number."""
        return "\n".join((self.architecture, self.model, *sorted(self.features)))


def cpu_identity(affinity: Collection[int] | None = None) -> CpuIdentity:
    """The machine this process runs on. affinity: of its processors these alone; None: all it may use."""
    if affinity is None:
        affinity = _affinity()
    identity = parse_cpuinfo(_read("/proc/cpuinfo"), machine=platform.machine(), affinity=affinity)
    quota = cgroup.cpu_quota()
    cores = identity.usable_cores if quota is None else min(identity.usable_cores, quota)
    return CpuIdentity(
        model=identity.model,
        architecture=identity.architecture,
        features=identity.features,
        usable_cores=cores,
    )


def _affinity() -> Collection[int]:
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)


def parse_cpuinfo(text: str, *, machine: str, affinity: Collection[int]) -> CpuIdentity:
    """Read the text of /proc/cpuinfo; "" (another system) gives no more than the architecture."""
    blocks = [_fields(block) for block in text.split("\n\n")]
    cpus = [b for b in blocks if "processor" in b]
    first = cpus[0] if cpus else {}
    mine = [b for b in cpus if b["processor"].isdigit() and int(b["processor"]) in affinity]
    cores = {(b.get("physical id", ""), b.get("core id", b["processor"])) for b in mine}
    features = set((first.get("flags") or first.get("Features") or "").split())
    if machine in ("arm64", "aarch64"):
        features.add("asimd")  # part of the architecture, whether the system lists it or not
    part = f"{first.get('CPU implementer', '')} {first.get('CPU part', '')}".strip()
    return CpuIdentity(
        model=first.get("model name") or part or machine,
        architecture=machine,
        features=frozenset(features),
        usable_cores=len(cores) or len(affinity),
    )


def supported_isas(cpu: CpuIdentity) -> tuple[str, ...]:
    """The targets that this CPU can run, best first."""
    return tuple(isa for isa in ISAS if cpu.features.issuperset(ISA_FEATURES[isa]))


def best_isa(cpu: CpuIdentity) -> str:
    return supported_isas(cpu)[0]


def choose_isa(forced: str, cpu: CpuIdentity) -> str:
    """The target to compile for: `forced` (FIRELANE_ISA), or the best if "". UsageError if it cannot run."""
    supported = supported_isas(cpu)
    if not forced:
        return supported[0]
    if forced not in supported:
        raise UsageError(
            f"FIRELANE_ISA={forced}: this CPU runs {', '.join(supported)}; choose one or unset it"
        )
    return forced


def compile_flags(isa: str, cpu: CpuIdentity) -> tuple[str, ...]:
    """Compiler flags of a target, -DFIRELANE_ISA_<NAME> included."""
    machine = ("-march=native",) if isa == best_isa(cpu) else ISA_FLAGS[isa]
    return (*machine, f"-DFIRELANE_ISA_{isa.upper()}")


def _fields(block: str) -> dict[str, str]:
    pairs = (line.partition(":") for line in block.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""
