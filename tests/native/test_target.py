"""The target that kernels are compiled for, and what is said about it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

import pytest

from firelane.env import Environment
from firelane.errors import CompilerError, UsageError
from firelane.native.machine import CpuIdentity
from firelane.native.target import Target, find_target, lacking
from firelane.native.toolchain import Toolchain

V2 = "sse2 pni ssse3 sse4_1 sse4_2 popcnt"
AVX2 = V2 + " avx avx2 fma f16c bmi1 bmi2"
AVX512 = AVX2 + " avx512f avx512bw avx512vl avx512dq"
NEON = "fp asimd atomics"


class Compiler(Toolchain):
    """One that does not know some flags."""

    def takes(self, flags: Sequence[str], cache_dir: Path) -> bool:
        del cache_dir
        return not any(unknown in flag for flag in flags for unknown in self.command)


def cpu(features: str, architecture: str = "x86_64") -> CpuIdentity:
    return CpuIdentity(
        model="a CPU", architecture=architecture, features=frozenset(features.split()), usable_cores=2
    )


def found(machine: CpuIdentity, *, forced: str = "", unknown: Collection[str] = ()) -> Target:
    compiler = Compiler(command=tuple(unknown), version="g++ 8")
    return find_target(Environment(cache_dir=Path("/nowhere"), isa=forced), machine, compiler)


@pytest.mark.parametrize(
    ("machine", "said"),
    [
        (cpu(AVX512 + " avx512_bf16"), "avx512bf16"),
        (cpu(AVX512), "avx512: this CPU has no AVX-512 BF16"),
        (cpu(AVX2), "avx2: this CPU has no AVX-512"),
        (cpu(V2), "portable: this CPU has no AVX2 with FMA, which fast kernels need"),
        (cpu(NEON + " bf16", "aarch64"), "neonbf16"),
        (cpu(NEON, "arm64"), "neon: this CPU has no BF16 dot products"),
        (cpu("", "riscv64"), "portable: there are no kernels for riscv64 in particular"),
    ],
)
def test_the_best_of_each_cpu_and_why_it_is_no_better(machine: CpuIdentity, said: str) -> None:
    target = found(machine)
    assert str(target) == said
    assert target.why == lacking(machine)


def test_a_forced_target() -> None:
    assert str(found(cpu(AVX512), forced="avx2")) == "avx2: FIRELANE_ISA=avx2, and this CPU runs avx512"
    assert found(cpu(AVX2), forced="avx2").why == lacking(cpu(AVX2))


@pytest.mark.parametrize(
    ("machine", "forced", "said"),
    [
        (cpu(AVX2), "avx512bf16", "avx2: FIRELANE_ISA=avx512bf16, and this CPU has no AVX-512 BF16"),
        (cpu(AVX2), "neon", "avx2: FIRELANE_ISA=neon, and this CPU has no NEON"),
        (cpu(NEON, "aarch64"), "avx2", "neon: FIRELANE_ISA=avx2, and this CPU has no AVX2 with FMA"),
    ],
)
def test_a_forced_target_that_the_cpu_lacks(machine: CpuIdentity, forced: str, said: str) -> None:
    assert str(found(machine, forced=forced)) == said


def test_a_forced_target_that_is_none() -> None:
    with pytest.raises(UsageError, match="FIRELANE_ISA=avx1024: this CPU runs avx2, portable"):
        found(cpu(AVX2), forced="avx1024")


def test_a_compiler_that_lacks_the_best_target() -> None:
    target = found(cpu(AVX512 + " avx512_bf16"), unknown=["-mavx512bf16"])
    assert target.isa == "avx512"
    assert target.why.startswith("g++ 8 does not know AVX-512 BF16: install a newer one")
    target = found(cpu(NEON + " bf16", "aarch64"), unknown=["+bf16"])
    assert (target.isa, target.flags[0]) == ("neon", "-march=armv8-a")


def test_a_compiler_that_lacks_a_feature_that_is_no_must() -> None:
    target = found(cpu(AVX512 + " avx512_vbmi2 avx_vnni"), unknown=["-mavxvnni"])
    assert target.isa == "avx512"
    assert "-mavx512vbmi2" not in target.flags


def test_a_compiler_that_knows_nothing() -> None:
    with pytest.raises(CompilerError, match="g\\+\\+ 8 does not know AVX2 with FMA: install a newer one"):
        found(cpu(AVX2), unknown=["-"])
