"""The tests on a GPU and all GPU benchmarks in one command, on a bare machine, within the minutes given.

gpu_check [--list] [--minutes N] [--only STEP ...] [--out DIR] [--resume DIR] [--model DIR]

Needs Python 3.11 or newer with torch, triton and NumPy; the whole server needs Firelane's base dependencies,
too, and the comparison transformers. Nothing is installed: base dependencies that are missing are taken from
the wheels in .wheels/ (scripts/gpu_wheels), unpacked into a temporary directory.

The most telling steps come first; one that does not fit into what is left is left for the next call, which
takes up what this one kept: results, tables, compiled kernels, tuning, the tests that passed. All of it lies
in $OUT, or .gpu/: gpu.md, gpu.json, gpu.log, gpu-kept.tar.gz, written after each step. The next call looks
for it in .gpu/ (or where --resume says). What went well with the same sources, device and versions is not
run again, but where --only names it.

Exit code: 0 where every step that ran did well, 1 where one failed, 2 where nothing could run.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import os
import re
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import gpu_kept
from gpu_plan import KEPT, Result, describe_plan, run_all
from gpu_run import ROOT, Places, run_step
from gpu_steps import KERNELS, STEPS, Step

WHEELS = ROOT / ".wheels"
KEEP = ROOT / ".gpu"
MINUTES = 8.0
# What machines with torch and transformers usually lack.
CARRIED = ("msgspec", "httptools", "llguidance", "python-multipart", "backports.zstd")


def requirements() -> list[str]:
    """Return the base dependencies that are carried, with their versions."""
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    return [r.split(";")[0].strip() for r in listed if re.split(r"[<>=;\s]", r)[0] in CARRIED]


def unpack(wheels: Path, target: Path) -> list[str]:
    """Unpack the wheels of what is not installed; returns their names."""
    found: list[str] = []
    for wheel in sorted(wheels.glob("*.whl")):
        name = wheel.name.split("-")[0].replace("_", "-")
        if not is_installed(name) and fits(wheel.name):
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(target)
            found.append(wheel.name)
    return found


def is_installed(distribution: str) -> bool:
    try:
        importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def fits(wheel: str) -> bool:
    """Whether its tags name this interpreter, its stable ABI, or any Python 3."""
    python, abi = wheel.removesuffix(".whl").split("-")[-3:-1]
    mine = f"cp{sys.version_info.major}{sys.version_info.minor}"
    return mine in python.split(".") or abi == "abi3" or "py3" in python.split(".")


def describe(result: Result, *, is_kept: bool = False) -> str:
    why = " ".join(filter(None, [KEPT if is_kept else "", result.why]))
    return f"{result.name:<13} {result.outcome:<8} {result.seconds:6.1f} s{f' ({why})' if why else ''}"


def problem() -> str:
    """Why nothing can run here, or ""."""
    lacking = [name for name in KERNELS if importlib.util.find_spec(name) is None]
    if lacking:
        return f"{', '.join(lacking)} not installed: nothing can run"
    return _detect().problem


def _detect() -> Any:
    """A GpuDetection; the package is imported only here."""
    sys.path.insert(0, str(ROOT))
    from firelane.backends.cuda.device import gpu_detection

    return gpu_detection.detect()


def arguments_of(given: Sequence[str] | None = None) -> argparse.Namespace:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--list", action="store_true", help="print what would run, and end")
    made.add_argument("--requirements", action="store_true", help="print what scripts/gpu_wheels downloads")
    made.add_argument("--only", nargs="+", choices=[s.name for s in STEPS], metavar="STEP")
    made.add_argument(
        "--minutes", type=float, default=MINUTES, help="for all together (default: %(default)s)"
    )
    made.add_argument("--model", type=Path, metavar="DIR", help="16 GB are written there, and kept")
    made.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", KEEP)))
    made.add_argument("--resume", type=Path, default=KEEP, metavar="DIR", help="--out of an earlier call")
    return made.parse_args(given)


def main() -> int:
    arguments = arguments_of()
    if arguments.requirements:
        print("\n".join(requirements()))
        return 0
    if arguments.list:
        print(
            describe_plan(chosen(arguments.only), arguments.minutes, gpu_kept.read_results(arguments.resume))
        )
        return 0
    why = problem()
    if why:
        print(f"gpu_check: {why}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="firelane-gpu-") as scratch:
        return check(chosen(arguments.only), arguments, Path(scratch))


def chosen(only: Sequence[str] | None) -> list[Step]:
    """In the plan's order; what all others depend on is always among them."""
    if only:
        return [s for s in STEPS if s.always or s.name in only]
    return [s for s in STEPS if not s.by_request]


def check(steps: Sequence[Step], arguments: argparse.Namespace, work: Path) -> int:
    out, kept = arguments.out.resolve(), work / "kept"
    out.mkdir(parents=True, exist_ok=True)
    earlier = gpu_kept.read_results(arguments.resume)
    gpu_kept.unpack(arguments.resume, kept)
    packages = work / "packages"
    packages.mkdir()
    notes = [f"Unpacked: {name}." for name in unpack(WHEELS, packages)]
    model = arguments.model or work / "model"
    there = _detect()
    places = Places(kept=kept, packages=packages, model=model, log=out / "gpu.log", gpus=there.count)
    places.log.write_text("")
    key = gpu_kept.key_of(there.gpu.name)
    again = {s.name for s in steps} if arguments.only else set[str]()
    known = {name: result for name, result in earlier.items() if name not in again}
    run = partial(run_step, places=places, key=key)
    results = dict(earlier)
    for result in run_all(steps, run, minutes=arguments.minutes, earlier=known, key=key):
        print(describe(result, is_kept=result is known.get(result.name)), flush=True)
        results[result.name] = result
        in_order = [results[s.name] for s in STEPS if s.name in results]
        gpu_kept.write(kept, out, in_order, notes)
        gpu_kept.pack(kept, out)
    return 1 if any(results[s.name].is_bad for s in steps) else 0


if __name__ == "__main__":
    sys.exit(main())
