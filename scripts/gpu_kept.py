"""Keeps what a call of gpu_check leaves for the next one, perhaps on another machine: gpu.json with every
step's result, and one archive of tables, tuning, compiled kernels and names of tests that passed."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import tarfile
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

from gpu_plan import Result
from gpu_run import ROOT

ARCHIVE = "gpu-kept.tar.gz"
SOURCES = ("firelane/**/*.py", "benchmarks/cuda_*.py", "tests/backends/cuda/**/*.py", "tests/gpu/*.py")
# Of a compiled kernel: what it was compiled from is not needed to run it, and ten times as large.
KERNEL_SUFFIXES = (".cubin", ".json", ".so")
PARTS = ("tables", "passed", "cache/cuda-tuning", "cache/triton")


def key_of(device: str) -> str:
    """Return a digest of what a result holds for: these sources, on such a device, with these compilers."""
    versions = [importlib.metadata.version(name) for name in ("torch", "triton")]
    made = hashlib.sha256("\n".join([device, *versions]).encode())
    for file in sorted(file for pattern in SOURCES for file in ROOT.glob(pattern)):
        made.update(file.read_bytes())
    return made.hexdigest()[:12]


def read_results(directory: Path) -> dict[str, Result]:
    """Read the results of an earlier call, by step; none where there was none, or its file is damaged."""
    try:
        steps = json.loads((directory / "gpu.json").read_text())["steps"]
        return {step["name"]: Result(**step) for step in steps}
    except (OSError, ValueError, TypeError, KeyError):
        return {}


def unpack(directory: Path, kept: Path) -> bool:
    """An earlier call's archive into `kept`; false where there is none, or it is damaged."""
    kept.mkdir(parents=True, exist_ok=True)
    try:
        with tarfile.open(directory / ARCHIVE) as archive:
            archive.extractall(kept, filter="data")
    except (OSError, tarfile.TarError, EOFError):
        return False
    _point_groups_here(kept / "cache" / "triton")
    return True


def pack(kept: Path, directory: Path) -> Path:
    """The archive, whole or as it was before."""
    target = directory / ARCHIVE
    part = target.with_suffix(".part")
    with tarfile.open(part, "w:gz", compresslevel=6) as archive:
        for file in _files(kept):
            archive.add(file, arcname=str(file.relative_to(kept)))
    return part.replace(target)


def _files(kept: Path) -> Iterable[Path]:
    for part in PARTS:
        for file in sorted((kept / part).rglob("*")):
            if file.is_file() and (part != "cache/triton" or file.suffix in KERNEL_SUFFIXES):
                yield file


def _point_groups_here(triton: Path) -> None:
    """Triton's cache names the files of a kernel by the directory that it was compiled in."""
    for group in triton.glob("*/__grp__*.json"):
        paths = json.loads(group.read_text())["child_paths"]
        here = {name: str(group.parent / Path(path).name) for name, path in paths.items()}
        group.write_text(json.dumps({"child_paths": here}))


def write(kept: Path, directory: Path, results: Iterable[Result], notes: Iterable[str]) -> None:
    """gpu.md and gpu.json: the summary, then every step's own tables and figures."""
    results = list(results)
    files = [f for r in results for f in sorted((kept / "tables" / r.name).glob("cuda_*"))]
    pages = [f.read_text() for f in files if f.suffix == ".md"]
    figures = {f"{f.parent.name}/{f.stem}": json.loads(f.read_text()) for f in files if f.suffix == ".json"}
    (directory / "gpu.md").write_text("\n".join([summary(results, notes), *pages]))
    record = {"steps": [asdict(r) for r in results], "figures": figures}
    (directory / "gpu.json").write_text(json.dumps(record, indent=1) + "\n")


def summary(results: Iterable[Result], notes: Iterable[str]) -> str:
    rows = [f"| {r.name} | {r.outcome} | {r.seconds:.1f} | {r.why.replace('|', '/')} |" for r in results]
    lines = ["# GPU check", "", "| step | outcome | s | |", "|---|---|--:|---|", *rows, ""]
    return "\n".join([*lines, *(f"{note}\n" for note in notes)])
