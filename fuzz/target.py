"""A target: the code under test, what it may answer, and the bounds of one case."""

from __future__ import annotations

import importlib
import pkgutil
import random
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import fuzz.targets

CORPUS = Path(__file__).parent / "corpus"
MOST_MESSAGE_CHARACTERS = 2100
MIB = 1 << 20


class BoundError(Exception):
    """A case took longer, or more memory, than it may; or it was refused in a way that helps nobody."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """run: gives one input to the code under test, and raises where that broke a promise. refusals: errors
    that are right answers to a wrong input, with a message of one line. most_bytes: of an input. limit_s: of
    processor time. limit_bytes: by which one case may raise the most memory that the process ever had.
    words: bytes that inputs are likely to have, for the mutator. mutate: changes an
    input so that it keeps its form; None where it has none.
    """

    run: Callable[[bytes], None]
    refusals: tuple[type[Exception], ...] = ()
    most_bytes: int = 4096
    limit_s: float = 2.0
    limit_bytes: int = 256 * MIB
    words: tuple[bytes, ...] = ()
    mutate: Callable[[bytes, random.Random], bytes | None] | None = None

    def attempt(self, data: bytes) -> None:
        """Run one case. Raises what is a crash: any error that is no refusal, and BoundError."""
        began_s, before_bytes = time.process_time(), _most_memory_bytes()
        try:
            self.run(data)
        except self.refusals as error:
            _check_message(error)
        took_s = time.process_time() - began_s
        if took_s > self.limit_s:
            raise BoundError(f"took {took_s:.1f} s of {self.limit_s:g} s")
        grown_bytes = _most_memory_bytes() - before_bytes
        if grown_bytes > self.limit_bytes:
            raise BoundError(f"took {grown_bytes / MIB:.0f} MiB of {self.limit_bytes / MIB:.0f} MiB")


def names() -> list[str]:
    """All targets: each is a module of fuzz.targets."""
    return [module.name for module in pkgutil.iter_modules(fuzz.targets.__path__)]


def find(name: str) -> Target:
    return importlib.import_module(f"fuzz.targets.{name}").TARGET


def _most_memory_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def _check_message(error: Exception) -> None:
    text = str(error)
    if not text or "\n" in text or len(text) > MOST_MESSAGE_CHARACTERS:
        raise BoundError(f"refused without one short line: {text[:200]!r}") from error
