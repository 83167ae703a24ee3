"""The instruction-set target that kernels are compiled for here: the best one that the CPU, the compiler and
FIRELANE_ISA allow, and what keeps it from being a better one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from firelane.env import Environment
from firelane.errors import CompilerError
from firelane.native.machine import (
    CpuIdentity,
    best_isa,
    choose_isa,
    compile_flags,
    isas_of,
    supported_isas,
)
from firelane.native.toolchain import Toolchain

NAMES = {
    "avx512bf16": "AVX-512 BF16",
    "avx512": "AVX-512",
    "avx2": "AVX2 with FMA",
    "neonbf16": "BF16 dot products",
    "neon": "NEON",
    "portable": "portable code",
}
NEWER_HINT = "install a newer one, and name it with FIRELANE_CXX if it is not the first on PATH"


@dataclass(frozen=True, kw_only=True)
class Target:
    """`flags` are the compiler's. `why` it is no better target of this architecture, in a line, or ""."""

    isa: str
    flags: tuple[str, ...]
    why: str = ""

    def __str__(self) -> str:
        return f"{self.isa}: {self.why}" if self.why else self.isa


def target_of(isa: str, cpu: CpuIdentity, toolchain: Toolchain, cache_dir: Path) -> Target:
    """With all that the CPU lists for `isa`, or the least that it needs where the compiler knows no more.
    CompilerError where it does not know that."""
    for least in (False, True):
        flags = compile_flags(isa, cpu, least=least)
        if toolchain.takes(flags, cache_dir):
            return Target(isa=isa, flags=flags)
    raise CompilerError(f"{toolchain.version} does not know {NAMES[isa]}: {NEWER_HINT}")


def find_target(settings: Environment, cpu: CpuIdentity, toolchain: Toolchain) -> Target:
    """Raises UsageError for a FIRELANE_ISA that is none, CompilerError for a compiler that knows none."""
    supported = supported_isas(cpu)
    refused: CompilerError | None = None
    for isa in supported[supported.index(choose_isa(settings.isa, cpu)) :]:
        try:
            found = target_of(isa, cpu, toolchain, settings.cache_dir)
            return replace(found, why=str(refused or _why(settings.isa, cpu)))
        except CompilerError as error:
            refused = refused or error
    assert refused is not None
    raise refused


def _why(forced: str, cpu: CpuIdentity) -> str:
    isa, best = choose_isa(forced, cpu), best_isa(cpu)
    if forced and forced != isa:
        return f"FIRELANE_ISA={forced}, and this CPU has no {NAMES[forced]}"
    return f"FIRELANE_ISA={forced}, and this CPU runs {best}" if isa != best else lacking(cpu)


def lacking(cpu: CpuIdentity) -> str:
    """The features that this CPU lacks for the next better target of its architecture, or ""."""
    of_this, best = isas_of(cpu.architecture), supported_isas(cpu)[0]
    if of_this == ("portable",):
        return f"there are no kernels for {cpu.architecture} in particular"
    at = of_this.index(best)
    if at == 0:
        return ""
    slow = ", which fast kernels need" if best == "portable" else ""
    return f"this CPU has no {NAMES[of_this[at - 1]]}{slow}"
