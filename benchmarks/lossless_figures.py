"""The records that benchmarks/lossless.py measures: one for each part, kept as JSON, so that a part can be
run alone."""

from __future__ import annotations

import os
import platform
import shlex
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from firelane import __version__, env
from firelane.errors import CompilerError
from firelane.native.machine import cpu_identity
from firelane.native.toolchain import find_compiler
from firelane.weights.lossless.zstd import zstd

BF16, LOSSLESS, AUTO = "bf16", "lossless", "auto"
T = TypeVar("T")
PLACES = ("--out", "--scratch", "--page")
ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """Under which a part was measured."""

    machine: str
    versions: str
    commit: str
    date: str
    priority: str
    command: str

    @classmethod
    def now(cls) -> Conditions:
        cpu = cpu_identity()
        parts = [
            f"Firelane {__version__}",
            f"Python {platform.python_version()}",
            f"zstd {zstd.zstd_version}",
            compiler(),
        ]
        return cls(
            machine=f"{cpu.model} ({cpu.architecture}), {cpu.usable_cores} cores, {platform.system()}",
            versions=", ".join(parts),
            commit=commit(),
            date=datetime.now(UTC).date().isoformat(),
            priority=priority(),
            command=shown_command(sys.argv[1:]),
        )


@dataclass(frozen=True, kw_only=True)
class Coder:
    """One row of the at-rest table. Speeds in GB of bf16 a second of one core; nan: not measured."""

    name: str
    bits: float
    pack_gbps: float
    unpack_gbps: float


@dataclass(frozen=True, kw_only=True)
class AtRest:
    """weights: numbers in bf16 tensors; original_bytes, packed_bytes: of the safetensors files; limit_bits:
    entropy of the exponents and the 8 other bits, a weight; command and file speeds: GB of bf16 for each
    second of CPU time (`firelane pack`) and of one thread (all tensors through Checkpoint).
    """

    conditions: Conditions
    weights: int
    original_bytes: int
    packed_bytes: int
    limit_bits: float
    command_pack_gbps: float
    file_decode_gbps: float
    coders: list[Coder]


@dataclass(frozen=True, kw_only=True)
class Step:
    """One kind of step in every form. seconds: by form, a figure for each round; moved_bytes: by form, what a
    step reads and writes at least; read_gbps: the streaming limit in each round."""

    name: str
    rows: int
    prefill: bool
    seconds: dict[str, list[float]]
    moved_bytes: dict[str, float]
    read_gbps: list[float]


@dataclass(frozen=True, kw_only=True)
class Steps:
    """resident_bytes: weights in memory, by form; forms: of how many matrices each form is, in words;
    notes: what the backend logged when it chose forms."""

    conditions: Conditions
    threads: int
    weights: int
    checkpoint_bytes: int
    resident_bytes: dict[str, int]
    forms: dict[str, str]
    notes: list[str]
    steps: list[Step]


@dataclass(frozen=True, kw_only=True)
class Peer:
    """Decode of one request; seconds: by engine, a figure for each round."""

    conditions: Conditions
    peer: str
    output_tokens: int
    seconds: dict[str, list[float]]


@dataclass(frozen=True, kw_only=True)
class Starts:
    """seconds: by case, then variant, a figure for each round; read_bytes: by case and variant, of weights
    that have to come from the drive; drive_gbps: of direct reads, a figure for each round; dropped: how the
    page cache was."""

    conditions: Conditions
    dropped: str
    drive_gbps: list[float]
    read_bytes: dict[str, dict[str, int]]
    seconds: dict[str, dict[str, list[float]]]


@dataclass(frozen=True, kw_only=True)
class Figures:
    model: str
    at_rest: AtRest | None = None
    steps: Steps | None = None
    peer: Peer | None = None
    starts: Starts | None = None

    def with_part(self, **parts: Any) -> Figures:
        return replace(self, **parts)


def load_figures(path: Path, model: str) -> Figures:
    """Load the figures that earlier runs left there, if they are of the same model."""
    if path.exists():
        figures = msgspec.json.decode(path.read_bytes(), type=Figures)
        if figures.model == model:
            return figures
    return Figures(model=model)


def save_figures(path: Path, figures: Figures) -> None:
    path.write_bytes(msgspec.json.format(msgspec.json.encode(figures), indent=1) + b"\n")


def rotated(items: Sequence[T], turn: int) -> list[T]:
    """Each turn begins with another one."""
    at = turn % len(items)
    return [*items[at:], *items[:at]]


def median_ratio(base: Sequence[float], other: Sequence[float]) -> float:
    """The median over the rounds of base / other: how many times as fast the other is, of times."""
    return statistics.median(b / o for b, o in zip(base, other, strict=True))


def best_ratio(base: Sequence[float], other: Sequence[float]) -> float:
    """The ratio of the best times."""
    return min(base) / min(other)


def compiler() -> str:
    try:
        return find_compiler(env.read()).version
    except CompilerError:
        return "no compiler"


def commit() -> str:
    """With a plus where files under firelane/ differ from it."""

    def git(*words: str) -> str:
        done = subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=False)
        return done.stdout.strip()

    changed = git("diff", "HEAD", "--stat", "--", "firelane")
    return (git("rev-parse", "--short", "HEAD") or "unknown") + ("+" if changed else "")


def priority() -> str:
    """Say how the scheduler treats this process and those that it starts."""
    policies = {os.SCHED_FIFO: "real-time (FIFO)", os.SCHED_RR: "real-time (RR)"}
    name = policies.get(os.sched_getscheduler(0))
    if name is not None:
        return f"{name}, priority {os.sched_getparam(0).sched_priority}"
    return f"normal, nice {os.getpriority(os.PRIO_PROCESS, 0)}"


def shown_command(words: Sequence[str]) -> str:
    """Return the command as anyone would give it: paths by their last part, no options for places."""
    shown, words = ["python", "benchmarks/lossless.py"], list(words)
    while words:
        word = words.pop(0)
        if word in PLACES:
            words.pop(0)
        else:
            shown.append(Path(word).name if "/" in word else word)
    return shlex.join(shown)
