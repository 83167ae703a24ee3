from __future__ import annotations

import pytest

from firelane.errors import UsageError
from firelane.native.machine import (
    ISA_FEATURES,
    ISAS,
    MORE_FEATURES,
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
    assert supported_isas(cpu) == ("neon", "portable")  # BF16 came with Armv8.2: it is not there alone


@pytest.mark.parametrize(
    ("features", "isa", "march"),
    [
        ("fp asimd", "neon", "armv8-a"),
        ("fp asimd atomics asimddp", "neon", "armv8-a+dotprod"),
        ("fp asimd atomics asimddp bf16 i8mm", "neonbf16", "armv8.2-a+bf16+dotprod+i8mm"),
        ("fp asimd atomics bf16", "neonbf16", "armv8.2-a+bf16"),
    ],
)
def test_targets_of_arm_machines(features: str, isa: str, march: str) -> None:
    cpu = cpu_with(features, "aarch64")
    assert best_isa(cpu) == isa
    flags = compile_flags(isa, cpu)
    assert (flags[0], flags[-1]) == (f"-march={march}", f"-DFIRELANE_ISA_{isa.upper()}")
    assert compile_flags("portable", cpu)[0] == "-march=armv8-a"


@pytest.mark.parametrize(("flags", "machine"), [(AVX512, "aarch64"), ("asimd atomics bf16", "x86_64")])
def test_an_emulated_machine_that_shows_the_features_of_its_host(flags: str, machine: str) -> None:
    own = {"aarch64": ("neon", "portable"), "x86_64": ("portable",)}
    assert supported_isas(cpu_with(flags, machine)) == own[machine]


def test_a_feature_that_one_core_lacks_is_not_there() -> None:
    text = f"{cpuinfo(AVX512, processors=1)}\n{cpuinfo(AVX2, processors=1).replace(': 0', ': 1', 1)}"
    cpu = parse_cpuinfo(text, machine="x86_64", affinity={0, 1})
    assert best_isa(cpu) == "avx2"


def test_without_cpuinfo() -> None:
    cpu = parse_cpuinfo("", machine="riscv64", affinity=range(3))
    assert (cpu.model, cpu.usable_cores, best_isa(cpu)) == ("riscv64", 3, "portable")
    assert compile_flags("portable", cpu) == ("-DFIRELANE_ISA_PORTABLE",)


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


@pytest.mark.parametrize(
    ("forced", "flags", "isa"),
    [
        ("portable", AVX512, "portable"),
        ("avx512bf16", AVX512, "avx512"),  # the next best
        ("avx512bf16", AVX2, "avx2"),
        ("avx2", "sse2", "portable"),
        ("neon", AVX2, "avx2"),  # of another architecture: the best
    ],
)
def test_forced_isa(forced: str, flags: str, isa: str) -> None:
    assert choose_isa(forced, cpu_with(flags)) == isa


def test_an_isa_that_is_none() -> None:
    with pytest.raises(
        UsageError, match=r"FIRELANE_ISA=sse: this CPU runs avx512, avx2, portable; choose one"
    ):
        choose_isa("sse", cpu_with(AVX512))


def test_flags_name_features_that_the_cpu_lists_and_the_target_uses() -> None:
    cpu = cpu_with(AVX512 + " avx512_vbmi2 bmi1 sse4_2 amx_tile")
    least, more = "-mavx2 -mfma -mf16c", "-msse4.2 -mavx -mbmi"
    avx512 = f"{least} -mavx512f -mavx512bw -mavx512vl -mavx512dq {more} -mavx512vbmi2"
    for isa, flags in {"avx512": avx512, "avx2": f"{least} {more}"}.items():
        define = f"-DFIRELANE_ISA_{isa.upper()}"
        assert compile_flags(isa, cpu) == (*flags.split(), "-mtune=native", define)
    assert compile_flags("avx2", cpu, least=True)[:3] == tuple(least.split())
    assert set(ISA_FEATURES) == set(MORE_FEATURES) == set(ISAS)


def test_portable_code_is_compiled_for_what_an_old_cpu_has() -> None:
    old = cpu_with("sse2 pni ssse3 sse4_1 sse4_2 popcnt")
    assert best_isa(old) == "portable"
    flags = compile_flags("portable", old)
    assert flags[:5] == ("-msse3", "-mssse3", "-msse4.1", "-msse4.2", "-mpopcnt")
    assert not [flag for flag in compile_flags("portable", cpu_with(AVX512)) if "avx512" in flag]


def test_nothing_is_left_to_what_the_compiler_finds() -> None:
    cpus = [cpu_identity(), cpu_with(AVX512), cpu_with("asimd atomics bf16", "aarch64"), cpu_with("sse2")]
    flags = [f for cpu in cpus for isa in supported_isas(cpu) for f in compile_flags(isa, cpu)]
    assert not [f for f in flags if "native" in f and not f.startswith("-mtune=")]


def test_this_machine() -> None:
    cpu = cpu_identity()
    assert cpu.usable_cores >= 1
    assert cpu.model in cpu.key
    assert supported_isas(cpu)[-1] == "portable"
