"""The doctor's report: what it reads, and what it says when something is missing."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from firelane.backends.cuda.device import gpu_detection
from firelane.doctor import report as doctor
from firelane.doctor.limits import Limits
from firelane.env import Environment

LIMITS = Limits(
    threads=2,
    read_gbps=44.0,
    read_gbps_1=30.0,
    dot_gflops=1350.0,
    dot_gflops_1=675.0,
    fma_gflops=600.0,
    fma_gflops_1=300.0,
)


def healthy_report() -> doctor.MachineReport:
    """Make the report of a machine with 8 GiB free."""
    return doctor.MachineReport(
        versions={},
        cpu="AMD EPYC",
        cores=2,
        isas=("avx512bf16", "portable"),
        target="avx512bf16",
        caches={},
        memory_bytes=16 << 30,
        available_bytes=8 << 30,
        weight_pages="",
        shared_memory="",
        sandbox="",
        compiler="g++",
        cache=doctor.CacheReport(directory="", used_bytes=0, free_bytes=0, problem=""),
        gpu=gpu_detection.detect(),
        limits=LIMITS,
        problems=(),
    )


def test_report_of_a_healthy_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "measure_limits", lambda _: LIMITS)
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels" / "a.so").write_bytes(b"x" * 100)
    report = doctor.examine(Environment(cache_dir=tmp_path))
    assert report.problems == ()
    assert report.cores >= 1
    assert report.isas[-1] == "portable"
    assert report.cache.used_bytes == 100
    text = doctor.format_report(report)
    assert "1350 with 2 threads" in text
    assert "44.0 with 2 threads" in text
    assert "problem" not in text
    assert f"products  of {doctor.activations_of(report.target)} activations" in text


@pytest.mark.parametrize(
    ("target", "inputs"),
    [("avx512bf16", "int8"), ("avx2: no better one", "int8"), ("neonbf16", "bf16"), ("", "bf16")],
)
def test_activations_of_a_target(target: str, inputs: str) -> None:
    assert doctor.activations_of(target) == inputs


@pytest.mark.parametrize(
    ("setting", "free", "text"),
    [
        (
            "always within_size [advise] never deny force",
            0,
            "huge pages (shmem_enabled is advise, 0 reserved)",
        ),
        ("always within_size advise [never] deny force", 0, "no huge pages (shmem_enabled is never"),
        ("always within_size advise [never] deny force", 70, "huge pages while they last: 70 reserved"),
        ("", 0, "no huge pages (shmem_enabled is unknown"),
    ],
)
def test_huge_pages_of_shared_memory(tmp_path: Path, setting: str, free: int, text: str) -> None:
    (tmp_path / "meminfo").write_text(f"MemTotal:  100 kB\nHugePages_Free:      {free}\n")
    if setting:
        (tmp_path / "shmem_enabled").write_text(setting + "\n")
    assert doctor.examine_shared_memory(tmp_path, tmp_path / "meminfo").startswith(text)


def test_report_without_a_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(gpu_detection, "PCI_DEVICES", tmp_path)
    monkeypatch.setattr(gpu_detection, "DRIVER_FILE", tmp_path / "version")
    absent = gpu_detection.detect(libcuda="libno-such-driver.so")
    assert doctor._gpu_rows(absent) == [("gpu", "none")]
    ((name, text),) = doctor._gpu_rows(dataclasses.replace(absent, there=True))
    assert name == "gpu"
    assert text.startswith("not used: ")


def test_report_of_a_gpu() -> None:
    gpu = gpu_detection.Gpu(name="Fake", capability=(9, 0), memory_bytes=128 << 30, used_bytes=3 << 30)
    found = gpu_detection.GpuDetection(
        gpu=gpu,
        driver="580.1",
        driver_cuda=(13, 0),
        packages=gpu_detection.Packages(torch="2.11.0", torch_cuda="13.0", triton=""),
        there=True,
        problem="Fake is there, but triton is not installed",
    )
    rows = dict(doctor._gpu_rows(found))
    assert rows["gpu"] == "Fake, 128.0 GiB, compute capability 9.0, 3.0 GiB in use"
    assert rows["driver"] == "580.1, runs CUDA 13.0"
    assert rows["cuda"] == "torch 2.11.0 (CUDA 13.0), triton missing"
    assert rows["gpu use"] == "no: Fake is there, but triton is not installed"
    usable = dataclasses.replace(found, problem="", gpu=dataclasses.replace(gpu, used_bytes=None))
    rows = dict(doctor._gpu_rows(usable))
    assert rows["gpu use"] == "--backend auto takes it"
    assert "in use" not in rows["gpu"]


def test_missing_compiler_is_a_problem(tmp_path: Path) -> None:
    report = doctor.examine(Environment(cache_dir=tmp_path, cxx="false"))
    assert report.limits is None
    assert len(report.problems) == 1
    assert "false" in doctor.format_report(report)


def test_cache_under_a_file_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    cache = doctor.examine_cache(tmp_path / "file" / "cache")
    assert "FIRELANE_CACHE_DIR" in cache.problem
    assert not (tmp_path / "made").exists()
    assert doctor.examine_cache(tmp_path / "made").problem == ""
    assert not (tmp_path / "made").exists()


def test_meminfo() -> None:
    text = "MemTotal:       24684092 kB\nMemAvailable:   22145687 kB\nHugePages_Total:       0\n"
    assert doctor.read_meminfo(text) == {"MemTotal": 24684092 << 10, "MemAvailable": 22145687 << 10}


def test_cache_sizes(tmp_path: Path) -> None:
    for index, (level, kind, size) in enumerate([("1", "Data", "48K"), ("2", "Unified", "1024K")]):
        (tmp_path / f"index{index}").mkdir()
        for name, text in (("level", level), ("type", kind), ("size", size)):
            (tmp_path / f"index{index}" / name).write_text(text + "\n")
    assert doctor.cache_sizes(tmp_path) == {"L1d": "48K", "L2": "1024K"}
