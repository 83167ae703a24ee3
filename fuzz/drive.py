"""python -m fuzz.drive TARGET: one target, driven by atheris in this process. `scripts/fuzz` starts it.

A crash that is an exception is kept, and the run goes on. One that ends the process, or hangs, ends the run:
libFuzzer leaves its input in the folder of crashes.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import atheris

from fuzz.findings import Findings

if TYPE_CHECKING:
    from fuzz.target import Target

HANG_S = 60
"""A case that takes longer than this hangs. It is real time, on a machine that has other things to do."""
MOST_MEMORY_MIB = 3072
LIBRARIES = ("firelane", "jinja2", "python_multipart", "msgspec", "tomllib")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target")
    parser.add_argument("--cases", type=int, required=True)
    parser.add_argument("--seconds", type=int, default=0, help="at most (default: no limit)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--crashes", type=Path, required=True, help="folder for inputs that crash")
    parser.add_argument("corpora", nargs="+", type=Path, help="folders of inputs; new ones go to the first")
    arguments = parser.parse_args()
    os.nice(19)
    with atheris.instrument_imports(include=list(LIBRARIES)):
        from fuzz.target import find

        target = find(arguments.target)
        findings = Findings(arguments.crashes)

        def one(data: bytes) -> None:
            try:
                target.attempt(data)
            except Exception as error:
                findings.add(error, data)

        for data in _inputs(arguments):  # imports what is imported late, instrumented too
            one(data)
    mutate = {} if target.mutate is None else {"custom_mutator": _mutator(target.mutate)}
    atheris.Setup([sys.argv[0], *_options(arguments, target), *map(str, arguments.corpora)], one, **mutate)
    atheris.Fuzz()


def _options(arguments: argparse.Namespace, target: Target) -> list[str]:
    """Return the options for libFuzzer."""
    options: dict[str, object] = {
        "runs": arguments.cases,
        "max_total_time": arguments.seconds,
        "seed": arguments.seed or 1,
        "max_len": target.most_bytes,
        "timeout": HANG_S,
        "rss_limit_mb": MOST_MEMORY_MIB,
        "artifact_prefix": f"{arguments.crashes}/",
        "print_final_stats": 1,
        "reload": 0,
    }
    if target.words:
        words = arguments.crashes.with_name("words")
        words.write_text("".join(f'"{_escaped(word)}"\n' for word in target.words))
        options["dict"] = words
    return [f"-{name}={value}" for name, value in options.items()]


def _mutator(mutate: Callable[[bytes, random.Random], bytes | None]) -> Callable[[bytes, int, int], bytes]:
    """In turns the target's own way, and that of libFuzzer."""

    def mutated(data: bytes, most_bytes: int, seed: int) -> bytes:
        draw = random.Random(seed)
        found = mutate(data, draw) if draw.random() < 0.7 else None
        return atheris.Mutate(data, most_bytes) if found is None else found[:most_bytes]

    return mutated


def _inputs(arguments: argparse.Namespace) -> list[bytes]:
    """Return the inputs that raised an exception the last time, which leave their folder, and those of the
    corpora."""
    found: list[bytes] = []
    for text in sorted(arguments.crashes.glob("*.txt")):
        data = text.with_suffix("")
        found.append(data.read_bytes())
        data.unlink()
        text.unlink()
    return found + [file.read_bytes() for folder in arguments.corpora for file in sorted(folder.iterdir())]


def _escaped(word: bytes) -> str:
    return "".join(f"\\x{byte:02x}" for byte in word)


if __name__ == "__main__":
    main()
