"""The tests on a GPU and all GPU benchmarks in one command, within 8 minutes, on a bare machine.

gpu_check [--list] [--only STEP ...] [--minutes N] [--model DIR] [--cache DIR] [--out DIR]

Needs Python 3.11 or newer with torch, triton and NumPy; the whole server needs Firelane's base dependencies,
too, and the comparison transformers. Nothing is installed: base dependencies that are missing are taken from
the wheels in .wheels/ (scripts/gpu_wheels), unpacked into a temporary directory. Each step has a limit of
its own; one that does not fit into what is left is skipped, and both are said. Tables, figures and the log
go into $OUT, or benchmarks/results: gpu.md, gpu.json, gpu.log.

Exit code: 0 where every step that ran did well, 1 where one failed, 2 where nothing could run.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gpu_steps import KERNELS, STEPS, Step

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
WHEELS = ROOT / ".wheels"
MINUTES = 8.0
SPARE_S = 10.0  # to end a step that overran, and to write the tables
LEAST_S = 15.0  # a step is not begun with less
# What machines with torch and transformers usually lack.
CARRIED = ("msgspec", "httptools", "llguidance", "python-multipart", "backports.zstd")


@dataclass(frozen=True, kw_only=True)
class Result:
    """outcome: ok, failed, stopped at its limit, skipped; why: what to know about it."""

    name: str
    outcome: str
    seconds: float = 0.0
    why: str = ""

    @property
    def is_bad(self) -> bool:
        return self.outcome in ("failed", "stopped")


@dataclass(frozen=True, kw_only=True)
class Places:
    """Directories: out of the tables, work of each step's own files, packages that were unpacked."""

    out: Path
    work: Path
    packages: Path
    model: Path
    cache: Path

    def fill(self, command: Sequence[str]) -> list[str]:
        names = {"out": self.work / "tables", "model": self.model, "cache": self.cache}
        return [sys.executable, *(part.format(**names) for part in command)]

    def environ(self, step: Step) -> dict[str, str]:
        paths = [str(ROOT), str(self.packages), *filter(None, [os.environ.get("PYTHONPATH")])]
        own = {
            "PYTHONPATH": os.pathsep.join(paths),
            "PYTHONUNBUFFERED": "1",
            "TRITON_CACHE_DIR": str(self.cache / "triton"),
            "FIRELANE_CACHE_DIR": str(self.cache),
            "HF_HUB_OFFLINE": "1",
        }
        return {**os.environ, **own, **dict(step.environ)}


def requirements() -> list[str]:
    """Of the base dependencies those that are carried, with their versions."""
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


def missing(step: Step, packages: Path) -> list[str]:
    """What the step needs and nobody has."""
    return [n for n in step.needs if importlib.util.find_spec(n) is None and not _unpacked(packages, n)]


def _unpacked(packages: Path, module: str) -> bool:
    return (packages / module).exists() or any(packages.glob(f"{module}.*"))


def run_step(step: Step, places: Places, *, left_s: float, log: Any) -> Result:
    """One step, in a session of its own, stopped with all that it started where it takes too long."""
    lacking = missing(step, places.packages)
    if lacking:
        return Result(name=step.name, outcome="skipped", why=f"no {', '.join(lacking)}: scripts/gpu_wheels")
    limit_s = min(step.limit_s, left_s - SPARE_S)
    if left_s < LEAST_S + SPARE_S:
        return Result(name=step.name, outcome="skipped", why="no time left")
    began_s = time.monotonic()
    command, environ = places.fill(step.command), places.environ(step)
    log.write(f"\n== {step.name}: {' '.join(command)}\n")
    log.flush()
    process = subprocess.Popen(
        command, cwd=ROOT, env=environ, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
    )
    try:
        code = process.wait(limit_s)
    except subprocess.TimeoutExpired:
        stop(process)
        return Result(
            name=step.name, outcome="stopped", seconds=limit_s, why=f"at its limit of {limit_s:.0f} s"
        )
    seconds = time.monotonic() - began_s
    if code == 0:
        return Result(name=step.name, outcome="ok", seconds=seconds)
    return Result(
        name=step.name, outcome="failed", seconds=seconds, why=f"exit code {code}: {last_line(log)}"
    )


def stop(process: subprocess.Popen[bytes]) -> None:
    """It and all that it started."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.wait(SPARE_S / 4)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            continue


def last_line(log: Any) -> str:
    lines = Path(log.name).read_text(errors="replace").strip().splitlines()
    return lines[-1][:200] if lines else ""


def run_all(steps: Sequence[Step], places: Places, *, minutes: float) -> Iterator[Result]:
    ends_s = time.monotonic() + 60 * minutes
    with (places.out / "gpu.log").open("w") as log:
        for step in steps:
            result = run_step(step, places, left_s=ends_s - time.monotonic(), log=log)
            print(describe(result), flush=True)
            yield result


def describe(result: Result) -> str:
    why = f" ({result.why})" if result.why else ""
    return f"{result.name:<13} {result.outcome:<8} {result.seconds:6.1f} s{why}"


def summary(results: Sequence[Result], unpacked: Sequence[str]) -> str:
    rows = [f"| {r.name} | {r.outcome} | {r.seconds:.1f} | {r.why.replace('|', '/')} |" for r in results]
    lines = ["# GPU check", "", "| step | outcome | s | |", "|---|---|--:|---|", *rows, ""]
    if unpacked:
        lines += [f"Unpacked: {', '.join(unpacked)}.", ""]
    return "\n".join(lines)


def write(places: Places, results: Sequence[Result], unpacked: Sequence[str]) -> None:
    """gpu.md and gpu.json: the summary, then every step's own."""
    tables = places.work / "tables"
    names = [f"cuda_{r.name}" for r in results]
    pages = [p.read_text() for n in names if (p := tables / f"{n}.md").exists()]
    figures = {n: json.loads(p.read_text()) for n in names if (p := tables / f"{n}.json").exists()}
    (places.out / "gpu.md").write_text("\n".join([summary(results, unpacked), *pages]))
    record = {"steps": [asdict(r) for r in results], **figures}
    (places.out / "gpu.json").write_text(json.dumps(record, indent=1) + "\n")


def plan(steps: Sequence[Step], minutes: float) -> str:
    rows = [f"{s.name:<13} {s.limit_s:4.0f} s  python {' '.join(s.command)}" for s in steps]
    return "\n".join([*rows, f"{'all':<13} {60 * minutes:4.0f} s  what does not fit is skipped"])


def problem() -> str:
    """Why nothing can run here, or ""."""
    lacking = [name for name in KERNELS if importlib.util.find_spec(name) is None]
    if lacking:
        return f"{', '.join(lacking)} not installed: nothing can run"
    sys.path.insert(0, str(ROOT))
    from firelane.backends.cuda import gpu_detection

    return gpu_detection.detect().problem


def arguments_of(given: Sequence[str] | None = None) -> argparse.Namespace:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--list", action="store_true", help="print what would run, and end")
    made.add_argument("--requirements", action="store_true", help="print what scripts/gpu_wheels downloads")
    made.add_argument("--only", nargs="+", choices=[s.name for s in STEPS], metavar="STEP")
    made.add_argument(
        "--minutes", type=float, default=MINUTES, help="for all together (default: %(default)s)"
    )
    made.add_argument("--model", type=Path, metavar="DIR", help="16 GB are written there, and kept")
    made.add_argument(
        "--cache", type=Path, metavar="DIR", help="of compiled kernels and tuned products, kept"
    )
    made.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", RESULTS)))
    return made.parse_args(given)


def main() -> int:
    arguments = arguments_of()
    steps = [s for s in STEPS if (s.name in arguments.only if arguments.only else not s.by_request)]
    if arguments.requirements:
        print("\n".join(requirements()))
        return 0
    if arguments.list:
        print(plan(steps, arguments.minutes))
        return 0
    why = problem()
    if why:
        print(f"gpu_check: {why}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="firelane-gpu-") as scratch:
        return check(steps, arguments, Path(scratch))


def check(steps: Sequence[Step], arguments: argparse.Namespace, work: Path) -> int:
    arguments.out.mkdir(parents=True, exist_ok=True)
    packages = work / "packages"
    packages.mkdir()
    places = Places(
        out=arguments.out.resolve(),
        work=work,
        packages=packages,
        model=arguments.model or work / "model",
        cache=(arguments.cache or work / "cache").resolve(),
    )
    unpacked = unpack(WHEELS, packages)
    results: list[Result] = []
    for result in run_all(steps, places, minutes=arguments.minutes):
        results.append(result)
        write(places, results, unpacked)
    return 1 if any(r.is_bad for r in results) else 0


if __name__ == "__main__":
    sys.exit(main())
