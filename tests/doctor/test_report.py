"""The doctor's report: what it reads, and what it says when something is missing."""

from __future__ import annotations

from pathlib import Path

import pytest

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
