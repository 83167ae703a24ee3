"""Running one step of gpu_check in processes of its own."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from gpu_plan import Result
from gpu_steps import Step

ROOT = Path(__file__).resolve().parent.parent
STOP_S = 3.0
SHOWN = ("FAILED ", "ERROR ")  # what the plug-in gpu_passed begins a line with


@dataclass(frozen=True, kw_only=True)
class Places:
    """Directories. kept: what the next call takes up: tables, compiled kernels, tuning, names of tests that
    passed; packages: that were unpacked; model: a checkpoint that steps write and share. log: a file. gpus:
    how many there are."""

    kept: Path
    packages: Path
    model: Path
    log: Path
    gpus: int = 1

    @property
    def cache(self) -> Path:
        return self.kept / "cache"

    def tables(self, step: Step) -> Path:
        return self.kept / "tables" / step.name

    def passed(self, step: Step, key: str) -> Path:
        """Names of tests."""
        return self.kept / "passed" / f"{step.name}-{key}.txt"

    def command(self, step: Step, *, limit_s: float, key: str) -> list[str]:
        names = {
            "tables": self.tables(step),
            "model": self.model,
            "cache": self.cache,
            "passed": self.passed(step, key),
            "minutes": f"{max(limit_s - 20, 0) / 60:.2f}",
        }
        return [sys.executable, *(_filled(part, names) for part in step.command)]

    def environ(self, step: Step) -> dict[str, str]:
        outer = filter(None, [os.environ.get("PYTHONPATH")])
        paths = [str(ROOT), str(ROOT / "scripts"), str(self.packages), *outer]
        own = {
            "PYTHONPATH": os.pathsep.join(paths),
            "PYTHONUNBUFFERED": "1",
            "TRITON_CACHE_DIR": str(self.cache / "triton"),
            "FIRELANE_CACHE_DIR": str(self.cache),
            "HF_HUB_OFFLINE": "1",
        }
        return {**os.environ, **own, **dict(step.environ)}


def _filled(part: str, names: dict[str, object]) -> str:
    for name, value in names.items():
        part = part.replace(f"{{{name}}}", str(value))
    return part


def missing(step: Step, packages: Path) -> list[str]:
    """Return the packages that the step needs and that are nowhere."""
    return [n for n in step.needs if importlib.util.find_spec(n) is None and not _unpacked(packages, n)]


def _unpacked(packages: Path, module: str) -> bool:
    return (packages / module).exists() or any(packages.glob(f"{module}.*"))


def run_step(step: Step, limit_s: float, *, places: Places, key: str) -> Result:
    """In a session of its own, stopped with all that it started where it takes too long. Its output goes to
    the log, failures of tests are printed as they happen."""
    lacking = missing(step, places.packages)
    if step.gpus > places.gpus:
        why = f"wants {step.gpus} GPUs, {places.gpus} there"
        return Result(name=step.name, outcome="skipped", why=why, key=key)
    if lacking:
        why = f"no {', '.join(lacking)}: scripts/gpu_wheels"
        return Result(name=step.name, outcome="skipped", why=why, key=key)
    places.passed(step, key).parent.mkdir(parents=True, exist_ok=True)
    command = places.command(step, limit_s=limit_s, key=key)
    began_s = time.monotonic()
    with places.log.open("a") as log:
        log.write(f"\n== {step.name}: {' '.join(command)}\n")
        code, last = _watched(command, places.environ(step), log, limit_s)
    outcome, why = "ok", ""
    if code is None:
        outcome, why = "stopped", f"at its limit of {limit_s:.0f} s: {last}"
    elif code != 0:
        outcome, why = "failed", f"exit code {code}: {last}"
    seconds = time.monotonic() - began_s
    return Result(name=step.name, outcome=outcome, seconds=round(seconds, 1), why=why, key=key)


def _watched(
    command: Sequence[str], environ: dict[str, str], log: IO[str], limit_s: float
) -> tuple[int | None, str]:
    """The exit code, None where it was stopped, and the last line that is not empty."""
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        text=True,
        errors="replace",
    )
    assert process.stdout is not None
    output = Output(process.stdout, log)
    reader = threading.Thread(target=output.read, daemon=True)
    reader.start()
    try:
        code = process.wait(limit_s)
    except subprocess.TimeoutExpired:
        code = None
    stop(process)  # what it may have left running holds the pipe
    reader.join(STOP_S)
    return code, output.last


@dataclass
class Output:
    """Copies what a step prints to the log, and failures to whoever watches."""

    stream: IO[str]
    log: IO[str]
    last: str = field(default="", init=False)

    def read(self) -> None:
        with self.stream:
            for line in self.stream:
                self.log.write(line)
                self.log.flush()
                if line.startswith(SHOWN):
                    print(line.rstrip()[:400], flush=True)
                self.last = line.strip()[:200] or self.last


def stop(process: subprocess.Popen[str]) -> None:
    """It and all that it started."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.wait(STOP_S)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            continue
