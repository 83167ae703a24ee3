from __future__ import annotations

import pytest

from firelane.errors import UsageError
from firelane.native.machine import (
    ISA_FLAGS,
    ISAS,
    CpuIdentity,
    best_isa,
    choose_isa,
    compile_flags,
    cpu_identity,
    parse_cpuinfo,
    supported_isas,
)

AVX2 = "sse2 avx avx2 fma f16c"
AVX512 = AVX2 + " avx512f avx512bw avx512vl avx512dq"


def cpuinfo(flags: str = AVX2, *, processors: int = 4, threads_per_core: int = 2) -> str:
    blocks = [
        f"processor\t: {i}\nmodel name\t: Some CPU @ 2:1\nphysical id\t: 0\n"
        f"core id\t\t: {i // threads_per_core}\nflags\t\t: {flags}\n"
        for i in range(processors)
    ]
    return "\n".join(blocks)


def cpu_with(flags: str, machine: str = "x86_64") -> CpuIdentity:
    return parse_cpuinfo(cpuinfo(flags), machine=machine, affinity=range(4))


def test_parse_cpuinfo() -> None:
    cpu = parse_cpuinfo(cpuinfo(), machine="x86_64", affinity={0, 1, 2, 3})
    assert cpu == CpuIdentity(
        model="Some CPU @ 2:1", architecture="x86_64", features=frozenset(AVX2.split()), usable_cores=2
    )


@pytest.mark.parametrize(("affinity", "cores"), [({0}, 1), ({0, 1}, 1), ({1, 2}, 2), ({0, 1, 2, 3}, 2)])
def test_hyperthreads_of_one_core_count_once(affinity: set[int], cores: int) -> None:
    assert parse_cpuinfo(cpuinfo(), machine="x86_64", affinity=affinity).usable_cores == cores


def test_parse_cpuinfo_of_an_arm_machine() -> None:
    first = "processor\t: 0\nFeatures\t: fp asimd bf16\nCPU implementer\t: 0x41\nCPU part\t: 0xd4f\n"
    text = first + "\nprocessor\t: 1\n"
    cpu = parse_cpuinfo(text, machine="aarch64", affinity={0, 1})
    assert (cpu.model, cpu.usable_cores) == ("0x41 0xd4f", 2)
    assert supported_isas(cpu) == ("neon", "portable")
    assert compile_flags("neon", cpu) == ("-march=native", "-DFIRELANE_ISA_NEON")


def test_without_cpuinfo() -> None:
    cpu = parse_cpuinfo("", machine="riscv64", affinity=range(3))
    assert (cpu.model, cpu.usable_cores, best_isa(cpu)) == ("riscv64", 3, "portable")


@pytest.mark.parametrize(
    ("flags", "isa"),
    [
        (AVX512 + " avx512_bf16", "avx512bf16"),
        (AVX512, "avx512"),
        (AVX2 + " avx512f", "avx2"),  # a part of AVX-512 is not enough
        (AVX2, "avx2"),
        ("avx2", "portable"),
    ],
)
def test_best_isa(flags: str, isa: str) -> None:
    assert best_isa(cpu_with(flags)) == choose_isa("", cpu_with(flags)) == isa


def test_forced_isa() -> None:
    assert choose_isa("portable", cpu_with(AVX512)) == "portable"
    with pytest.raises(UsageError, match="FIRELANE_ISA=avx512bf16: this CPU runs avx512, avx2, portable"):
        choose_isa("avx512bf16", cpu_with(AVX512))
    with pytest.raises(UsageError, match="FIRELANE_ISA=sse"):
        choose_isa("sse", cpu_with(AVX512))


def test_flags_are_native_for_the_best_target_and_explicit_for_the_others() -> None:
    cpu = cpu_with(AVX512)
    assert compile_flags("avx512", cpu) == ("-march=native", "-DFIRELANE_ISA_AVX512")
    assert compile_flags("avx2", cpu) == ("-mavx2", "-mfma", "-mf16c", "-DFIRELANE_ISA_AVX2")
    assert compile_flags("portable", cpu) == ("-DFIRELANE_ISA_PORTABLE",)
    assert set(ISA_FLAGS) == set(ISAS)
    assert ISA_FLAGS["avx512bf16"][-1] == "-mavx512bf16"


def test_this_machine() -> None:
    cpu = cpu_identity()
    assert cpu.usable_cores >= 1
    assert cpu.model in cpu.key
    assert supported_isas(cpu)[-1] == "portable"
