"""Everything that decides how Firelane runs on this machine: as one record, as text, and as a device that
plans can be made for.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from firelane import __version__
from firelane.backends.cpu.codegen.layout import INT8_ISAS
from firelane.backends.cuda.device import gpu_detection
from firelane.backends.cuda.device.gpu_detection import GpuDetection
from firelane.doctor.limits import Limits, measure_limits
from firelane.env import Environment
from firelane.errors import CacheError, FirelaneError, MachineError
from firelane.native import cgroup
from firelane.native.machine import cpu_identity, supported_isas
from firelane.native.pages import (
    HUGE_PAGE_BYTES,
    TRANSPARENT_HUGE_PAGES,
    MappedFile,
    PageCacheFile,
    chosen,
    private_huge_pages,
)
from firelane.native.target import find_target
from firelane.native.toolchain import find_compiler
from firelane.plan.devices import SAVED, DeviceSpec, find_kernels, saved_path, to_toml
from firelane.sandbox.confine import lacks
from firelane.storage import cache_directory, write_whole

PACKAGES = ("numpy", "tokenizers", "msgspec", "jinja2", "httptools", "uvloop", "huggingface_hub")
MIB = 1 << 20
LINK_US = 3.0
"""Microseconds of an exchange between processes that share memory."""


@dataclass(frozen=True, kw_only=True)
class CacheReport:
    """`problem` says why the directory cannot be used, or is ""."""

    directory: str
    used_bytes: int
    free_bytes: int
    problem: str


@dataclass(frozen=True, kw_only=True)
class MachineReport:
    """`isas` best first; `target` is the one that kernels are compiled for, and why it is no better one.
    `limits` is None, and `compiler` and `target` "", where `problems` says why. A GPU that cannot be used is
    none of them: the CPU serves. Memory in bytes."""

    versions: dict[str, str]
    cpu: str
    cores: int
    isas: tuple[str, ...]
    target: str
    caches: dict[str, str]
    memory_bytes: int
    available_bytes: int
    weight_pages: str
    shared_memory: str
    sandbox: str
    compiler: str
    cache: CacheReport
    gpu: GpuDetection
    limits: Limits | None
    problems: tuple[str, ...]


def examine(settings: Environment) -> MachineReport:
    """Look at the machine and measure it. What is missing becomes a problem of the report, no exception."""
    cpu = cpu_identity()
    memory = read_meminfo(_read(Path("/proc/meminfo")))
    left = cgroup.memory_left()
    cache = examine_cache(settings.cache_dir)
    problems = [cache.problem] if cache.problem else []
    compiler, target, limits = "", "", None
    try:
        found = find_compiler(settings)
        compiler = f"{found.version} ({' '.join(found.command)})"
        target = str(find_target(settings, cpu, found))
        limits = measure_limits(settings)
    except FirelaneError as error:
        problems.append(str(error))
    return MachineReport(
        versions=versions(),
        cpu=cpu.model,
        cores=cpu.usable_cores,
        isas=supported_isas(cpu),
        target=target,
        caches=cache_sizes(),
        memory_bytes=memory.get("MemTotal", 0),
        available_bytes=min(memory.get("MemAvailable", 0), left if left is not None else 1 << 62),
        weight_pages=examine_weight_pages(settings.cache_dir),
        shared_memory=examine_shared_memory(),
        sandbox=lacks(settings) or "files, network, other processes and programs are closed to engines",
        compiler=compiler,
        cache=cache,
        gpu=gpu_detection.detect(),
        limits=limits,
        problems=tuple(dict.fromkeys(problems)),
    )


def versions() -> dict[str, str]:
    found = {"firelane": __version__, "python": platform.python_version(), "system": platform.platform()}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "missing"
    return found


def read_meminfo(text: str) -> dict[str, int]:
    """The text of /proc/meminfo, in bytes."""
    lines = (line.split() for line in text.splitlines())
    return {words[0].rstrip(":"): int(words[1]) << 10 for words in lines if len(words) == 3}


def cache_sizes(root: Path = Path("/sys/devices/system/cpu/cpu0/cache")) -> dict[str, str]:
    """Size of each cache that the first core has or shares: {"L1d": "48K", "L2": "1024K", ...}."""
    found: dict[str, str] = {}
    for index in sorted(root.glob("index*")):
        kind = _read(index / "type").strip()
        suffix = {"Data": "d", "Instruction": "i"}.get(kind, "")
        found[f"L{_read(index / 'level').strip()}{suffix}"] = _read(index / "size").strip()
    return found


def examine_shared_memory(thp: Path = TRANSPARENT_HUGE_PAGES, meminfo: Path = Path("/proc/meminfo")) -> str:
    """Whether memory that processes share can have huge pages, as private memory has."""
    words = (line.split() for line in _read(meminfo).splitlines())
    reserved = next((int(w[1]) for w in words if w[0] == "HugePages_Free:"), 0)
    setting = chosen(thp / "shmem_enabled") or "unknown"
    if setting in ("always", "within_size", "advise", "force"):
        return f"huge pages (shmem_enabled is {setting}, {reserved} reserved)"
    if reserved:
        return f"huge pages while they last: {reserved} reserved (shmem_enabled is {setting})"
    return f"no huge pages (shmem_enabled is {setting}, none reserved): a shared KV cache is read more slowly"


def examine_cache(directory: Path) -> CacheReport:
    """The contents of the cache directory, and whether it can be written; it is not made."""
    existing = existing_parent(directory)
    problem = ""
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        problem = f"cannot write to {existing}: make it writable, or set FIRELANE_CACHE_DIR elsewhere"
    files = (p for p in directory.rglob("*") if p.is_file()) if not problem and directory.is_dir() else ()
    return CacheReport(
        directory=str(directory),
        used_bytes=sum(p.stat().st_size for p in files),
        free_bytes=shutil.disk_usage(existing).free,
        problem=problem,
    )


def activations_of(target: str) -> str:
    """The inputs that --activation-dtype auto chooses for a target, as `MachineReport.target` names it."""
    return "int8" if target.partition(":")[0].strip() in INT8_ISAS else "bf16"


def format_report(report: MachineReport) -> str:
    """The report as text, one fact a line."""
    gib = 1 << 30
    rows = [
        ("versions", ", ".join(f"{k} {v}" for k, v in report.versions.items())),
        ("cpu", f"{report.cpu}, {report.cores} usable cores"),
        ("targets", f"{', '.join(report.isas)} (best first)"),
        ("kernels", f"for {report.target or 'none'}"),
        ("products", f"of {activations_of(report.target)} activations with matrices of integer codes"),
        ("caches", ", ".join(f"{k} {v}" for k, v in report.caches.items()) or "unknown"),
        ("memory", f"{report.memory_bytes / gib:.1f} GiB, {report.available_bytes / gib:.1f} GiB available"),
        ("weights", report.weight_pages),
        ("shared", report.shared_memory),
        ("sandbox", report.sandbox),
        ("compiler", report.compiler or "none"),
        (
            "cache",
            f"{report.cache.directory}: {report.cache.used_bytes / gib:.2f} GiB used, "
            f"{report.cache.free_bytes / gib:.1f} GiB free",
        ),
    ]
    rows += _gpu_rows(report.gpu)
    if report.limits is not None:
        rows += _limit_rows(report.limits)
    rows += [("problem", problem) for problem in report.problems]
    return "\n".join(f"{name:<10}{text}" for name, text in rows)


def _gpu_rows(found: GpuDetection) -> list[tuple[str, str]]:
    if not found.there:
        return [("gpu", "none")]
    if found.gpu is None:
        return [("gpu", f"not used: {found.problem}")]
    packages = found.packages
    built = f" (CUDA {packages.torch_cuda})" if packages.torch_cuda else ""
    held = (
        "" if found.gpu.used_bytes is None else f", {found.gpu.used_bytes / gpu_detection.GIB:.1f} GiB in use"
    )
    return [
        ("gpu", f"{found.gpu}{held}"),
        ("driver", f"{found.driver or 'unknown'}, runs CUDA {gpu_detection.dotted(found.driver_cuda)}"),
        ("cuda", f"torch {packages.torch or 'missing'}{built}, triton {packages.triton or 'missing'}"),
        ("gpu use", f"no: {found.problem}" if found.problem else "--backend auto takes it"),
    ]


def _limit_rows(limits: Limits) -> list[tuple[str, str]]:
    team = f"{limits.threads} threads"
    dot = f"{limits.dot_gflops_1:.0f} GFLOP/s with 1 thread, {limits.dot_gflops:.0f} with {team}"
    return [
        ("read", f"{limits.read_gbps_1:.1f} GB/s with 1 thread, {limits.read_gbps:.1f} with {team}"),
        ("bf16 dot", dot if limits.dot_gflops else "no such instruction"),
        ("f32 fma", f"{limits.fma_gflops_1:.0f} GFLOP/s with 1 thread, {limits.fma_gflops:.0f} with {team}"),
    ]


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def examine_weight_pages(cache_dir: Path) -> str:
    """Whether they are huge, and by what means."""
    if sys.platform != "linux":
        return "pages as the system gives them"
    if mapped_files_are_huge(existing_parent(cache_dir)):
        return "huge pages, shared by replicas"
    if private_huge_pages():
        return "huge pages by private copies (weights_pages): files in the cache directory have small ones"
    return (
        "small pages, and decoding waits for them: write madvise to "
        "/sys/kernel/mm/transparent_hugepage/enabled"
    )


def mapped_files_are_huge(directory: Path) -> bool:
    """Whether files written there as packed weights are get huge pages in the page cache."""
    size = 2 * HUGE_PAGE_BYTES
    try:
        with tempfile.TemporaryFile(dir=directory) as file:
            file.truncate(size)
            PageCacheFile(file.fileno()).prepare(0, size)
            file.write(bytes(size))
            file.flush()
            mapped = MappedFile(file.fileno(), size)
            mapped.populate(0, size)
    except OSError:
        return False
    share = mapped.huge_share(0, size)
    mapped.close()
    return share > 0


def existing_parent(directory: Path) -> Path:
    """The directory, or the first one above it that is there."""
    return next(path for path in (directory, *directory.parents) if path.exists())


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
