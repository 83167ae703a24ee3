"""This machine as a device that plans can be made for."""

from __future__ import annotations

from pathlib import Path

from firelane.doctor.limits import Limits
from firelane.doctor.report import MachineReport
from firelane.errors import CacheError, MachineError
from firelane.plan.devices import SAVED, DeviceSpec, find_kernels, saved_path, to_toml
from firelane.storage import cache_directory, write_whole

MIB = 1 << 20
LINK_US = 3.0
"""Microseconds of an exchange between processes that share memory."""


def describe_machine(limits: Limits, *, isa: str, title: str, memory_bytes: int) -> DeviceSpec:
    """Links are memory: each number that ranks exchange is written and read once."""
    return DeviceSpec(
        name=SAVED,
        title=title,
        kernels=find_kernels(isa),
        memory_mib=memory_bytes // MIB,
        read_gbps=round(limits.read_gbps, 2),
        tflops=round(limits.peak_gflops / 1e3, 4),
        cores=limits.threads,
        link_gbps=round(limits.read_gbps / 2, 2),
        link_us=LINK_US,
        host_gbps=round(limits.read_gbps, 2),
        source="firelane doctor --save",
    )


def save_machine(report: MachineReport, cache_dir: Path) -> Path:
    """Write the description, with the memory that is free now, where plans look for it. Raises MachineError
    where the machine could not be measured, CacheError where the directory cannot be written."""
    if report.limits is None:
        raise MachineError(f"the machine could not be measured: {'; '.join(report.problems)}")
    title = f"{report.cpu}, {report.cores} core{'s' * (report.cores != 1)}"
    device = describe_machine(
        report.limits, isa=report.target.partition(":")[0], title=title, memory_bytes=report.available_bytes
    )
    path = saved_path(cache_dir)
    try:
        cache_directory(path.parent.parent)
        cache_directory(path.parent)
        write_whole(path, to_toml(device).encode())
    except OSError as error:
        raise CacheError(f"{path}: cannot be written: {error.strerror}") from error
    return path
