"""Targets in C++: code under firelane/ that reads what others have made, under a compiler's sanitizers."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from firelane.backends.cpu.codegen.contract_source import contract_source
from firelane.native.machine import best_isa, compile_flags, cpu_identity

HERE = Path(__file__).parent / "native"
PACKAGE = Path(__file__).parent.parent / "firelane"
INCLUDES = (HERE, PACKAGE / "weights/csrc", PACKAGE / "kv/csrc", PACKAGE / "backends/cpu/csrc")
FLAGS = ("-std=c++20", "-O1", "-g", "-Wno-psabi", "-ffp-contract=off", "-fno-sanitize-recover=all")
CLANGS = ("clang++", *(f"clang++-{version}" for version in range(24, 13, -1)))
PREFIX = "native_"
MOST_BYTES, HANG_S, MOST_MEMORY_MIB = 4096, 60, 2048


class BuildError(Exception):
    """A native target is not built; the message says why."""


@dataclass(frozen=True)
class Kind:
    """Programs of all targets: compilers that can make them, with which flags, of what beside the target."""

    compilers: tuple[str, ...]
    flags: tuple[str, ...]
    sources: tuple[Path, ...]
    hint: str


FUZZING = Kind(
    CLANGS,
    ("-fsanitize=fuzzer,address,undefined",),
    (),
    "clang++ with its sanitizers is needed (Debian: clang and libclang-rt-dev)",
)
"""With libFuzzer: makes up its inputs."""
REPLAYING = Kind(
    ("g++", *CLANGS),
    ("-fsanitize=address,undefined",),
    (HERE / "replay" / "main.cpp",),
    "g++ or clang++ with its sanitizers is needed",
)
"""Runs the files that it is given."""


def native_names() -> list[str]:
    """All targets: each is a file of fuzz/native."""
    return [f"{PREFIX}{file.stem}" for file in sorted(HERE.glob("*.cpp"))]


def compiler_of(kind: Kind) -> str:
    """Raises BuildError where there is none."""
    found = next(filter(None, map(shutil.which, kind.compilers)), None)
    if found is None:
        raise BuildError(kind.hint)
    return found


def build(name: str, kind: Kind, folder: Path) -> Path:
    """The program of a target in `folder`, made anew where its sources have changed. Raises BuildError."""
    cpu, contract = cpu_identity(), contract_source()
    sources = [HERE / f"{name.removeprefix(PREFIX)}.cpp", *kind.sources]
    command = [compiler_of(kind), *compile_flags(best_isa(cpu), cpu), *FLAGS, *kind.flags]
    program = folder / f"{name}-{_key(sources, contract, command)}"
    if program.exists():
        return program
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob(f"{name}-*"):
        old.unlink()
    header = program.with_suffix(".h")
    header.write_text(contract)
    includes = ["-include", str(header), *(f"-I{directory}" for directory in INCLUDES)]
    made = program.with_suffix(".part")
    words = [*command, *includes, *map(str, sources), "-o", str(made)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BuildError(f"{kind.hint}; the compiler said\n{done.stderr[-3000:]}")
    return made.rename(program)


def native_options(options: Mapping[str, object]) -> list[str]:
    """Options of a program that makes up inputs. options: cases, seconds, seed, crashes, as of fuzz.drive."""
    named = {
        "runs": options["cases"],
        "seed": options["seed"],
        "max_total_time": options.get("seconds", 0),
        "artifact_prefix": f"{options['crashes']}/",
        "max_len": MOST_BYTES,
        "timeout": HANG_S,
        "rss_limit_mb": MOST_MEMORY_MIB,
        "reload": 0,
    }
    return [f"-{name}={value}" for name, value in named.items()]


def _key(sources: list[Path], contract: str, command: list[str]) -> str:
    """A hash of all that a program is made from."""
    files = [file for directory in INCLUDES for file in sorted(directory.rglob("*")) if file.is_file()]
    parts = [contract, *command, *(file.read_text() for file in (*sources, *files))]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]
