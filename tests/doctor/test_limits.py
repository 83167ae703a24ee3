"""The probe compiles here and measures something sensible, quickly."""

from __future__ import annotations

from pathlib import Path

import pytest

from firelane.doctor.limits import Limits, Probe, build_probe, measure_limits
from firelane.env import Environment
from firelane.errors import CompilerError, OutOfMemoryError, UsageError


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return Environment(cache_dir=tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="module")
def probe(settings: Environment) -> Probe:
    return build_probe(settings)


@pytest.mark.parametrize("threads", [1, 2])
def test_rates_are_those_of_a_machine(probe: Probe, threads: int) -> None:
    # Wide bounds: a compiler that drops the work gives rates beyond the upper ones.
    assert 0.05 < probe.read_gbps(threads, 4 << 20) < 20_000
    assert 0.1 < probe.fma_gflops(threads, 50_000) < 2_000
    assert probe.dot_gflops(threads, 50_000) < 8_000


def test_too_little_memory_is_said(probe: Probe) -> None:
    with pytest.raises(OutOfMemoryError, match="MiB"):
        probe.read_gbps(1, 1 << 60)


def test_measured_with_every_thread(monkeypatch: pytest.MonkeyPatch, settings: Environment) -> None:
    asked: list[int] = []

    class Counting:
        def read_gbps(self, threads: int) -> float:
            asked.append(threads)
            return 1.0

        dot_gflops = fma_gflops = read_gbps

    monkeypatch.setattr("firelane.doctor.limits.build_probe", lambda _: Counting())
    limits = measure_limits(settings, threads=3)
    assert limits.threads == 3
    assert sorted(asked) == [1, 1, 1, 3, 3, 3]


@pytest.mark.parametrize(("dot", "peak"), [(0.0, 5.0), (20.0, 20.0)])
def test_peak_is_the_dot_rate_where_there_is_one(dot: float, peak: float) -> None:
    limits = Limits(
        threads=1,
        read_gbps=1,
        read_gbps_1=1,
        dot_gflops=dot,
        dot_gflops_1=dot,
        fma_gflops=5.0,
        fma_gflops_1=5.0,
    )
    assert limits.peak_gflops == peak


def test_a_compiler_that_fails_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CompilerError, match="false"):
        build_probe(Environment(cache_dir=tmp_path, cxx="false"))
    with pytest.raises(UsageError, match="no-such-compiler"):
        build_probe(Environment(cache_dir=tmp_path, cxx="no-such-compiler"))
