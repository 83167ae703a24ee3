"""The CPU of this machine: model, features, usable cores, and the instruction-set targets that it can run."""

from __future__ import annotations

import os
import platform
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from firelane.errors import UsageError
from firelane.native import cgroup

# Best first. `portable` has no intrinsics: what the compiler makes of plain C++ for this CPU.
ISAS = ("avx512bf16", "avx512", "avx2", "neonbf16", "neon", "portable")

_X86, _ARM = ("x86_64", "AMD64"), ("aarch64", "arm64")
ARCHITECTURES = {isa: _X86 for isa in ISAS if isa.startswith("avx")} | {"neonbf16": _ARM, "neon": _ARM}
"""Architectures of targets that are for one only. A system that emulates another CPU may show the features of
its own."""
_AVX2 = ("avx2", "fma", "f16c")
_AVX512 = (*_AVX2, "avx512f", "avx512bw", "avx512vl", "avx512dq")
# Feature names as /proc/cpuinfo spells them.
ISA_FEATURES: dict[str, tuple[str, ...]] = {
    "avx512bf16": (*_AVX512, "avx512_bf16"),
    "avx512": _AVX512,
    "avx2": _AVX2,
    "neonbf16": ("asimd", "atomics", "bf16"),
    "neon": ("asimd",),
    "portable": (),
}
# What a compiler may use besides, where the CPU lists it.
_X86_V3 = ("pni", "ssse3", "sse4_1", "sse4_2", "popcnt", "avx", *_AVX2, "bmi1", "bmi2", "abm")
_MORE_AVX2 = (*_X86_V3, "avx_vnni")
_MORE_AVX512 = (
    *_MORE_AVX2,
    *("avx512cd", "avx512vbmi", "avx512_vbmi2", "avx512_vnni", "avx512_bitalg", "avx512_vpopcntdq", "gfni"),
)
_MORE_NEON = ("asimddp", "i8mm")
MORE_FEATURES: dict[str, tuple[str, ...]] = {
    "avx512bf16": _MORE_AVX512,
    "avx512": _MORE_AVX512,
    "avx2": _MORE_AVX2,
    "neonbf16": _MORE_NEON,
    "neon": _MORE_NEON,
    "portable": _X86_V3,
}
# Where a compiler's name of a feature is not the kernel's without underscores.
_X86_NAMES = {"pni": "sse3", "sse4_1": "sse4.1", "sse4_2": "sse4.2", "bmi1": "bmi", "abm": "lzcnt"}
_ARM_NAMES = {"bf16": "bf16", "asimddp": "dotprod", "i8mm": "i8mm"}


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
    lists = [set(text.split()) for b in cpus for text in [b.get("flags") or b.get("Features")] if text]
    features = set[str].intersection(*lists) if lists else set[str]()  # cores may differ
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
    return tuple(isa for isa in isas_of(cpu.architecture) if cpu.features.issuperset(ISA_FEATURES[isa]))


def isas_of(architecture: str) -> tuple[str, ...]:
    """The targets that there are for an architecture, best first."""
    return tuple(isa for isa in ISAS if architecture in ARCHITECTURES.get(isa, (architecture,)))


def best_isa(cpu: CpuIdentity) -> str:
    return supported_isas(cpu)[0]


def choose_isa(forced: str, cpu: CpuIdentity) -> str:
    """The target to compile for: `forced` (FIRELANE_ISA), the next best one where this CPU cannot run it, the
    best one for "". UsageError where there is no such target."""
    supported = supported_isas(cpu)
    if not forced:
        return supported[0]
    if forced not in ISAS:
        raise UsageError(
            f"FIRELANE_ISA={forced}: this CPU runs {', '.join(supported)}; choose one or unset it"
        )
    of_this = isas_of(cpu.architecture)
    worse = of_this[of_this.index(forced) :] if forced in of_this else of_this
    return next(isa for isa in worse if isa in supported)


def compile_flags(isa: str, cpu: CpuIdentity, *, least: bool = False) -> tuple[str, ...]:
    """Compiler flags of a target, -DFIRELANE_ISA_<NAME> included.

    They name what the target needs and, but for `least`, what else of it the CPU lists. Never -march=native:
    what the compiler finds may be more than the system lets programs use.
    """
    return (*machine_flags(compiled_features(isa, cpu, least=least), cpu.architecture), _define(isa))


def compiled_features(isa: str, cpu: CpuIdentity, *, least: bool = False) -> tuple[str, ...]:
    """The CPU's features that kernels for `isa` are compiled with."""
    more = () if least else MORE_FEATURES[isa]
    return tuple(dict.fromkeys((*ISA_FEATURES[isa], *(name for name in more if name in cpu.features))))


def machine_flags(features: Collection[str], architecture: str) -> tuple[str, ...]:
    """Compiler flags that allow the use of `features`."""
    if architecture in _X86:
        names = (_X86_NAMES.get(name, name.replace("_", "")) for name in features)
        return (*(f"-m{name}" for name in names), "-mtune=native")  # the order of instructions alone
    if architecture in _ARM:
        base = "armv8.2-a" if "bf16" in features else "armv8-a"
        march = "+".join([f"-march={base}", *(_ARM_NAMES[n] for n in features if n in _ARM_NAMES)])
        # GCC moves loads up before it gives out registers, and then has too few for a tile; clang does not.
        return (march, "-fno-schedule-insns", "-Wno-ignored-optimization-argument")
    return ()


def _define(isa: str) -> str:
    return f"-DFIRELANE_ISA_{isa.upper()}"


def _fields(block: str) -> dict[str, str]:
    pairs = (line.partition(":") for line in block.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""
