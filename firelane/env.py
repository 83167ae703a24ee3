"""The only reader of the environment. Every variable that Firelane knows is a field of `Environment`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from firelane.errors import UsageError

PREFIX = "FIRELANE_"


@dataclass(frozen=True, kw_only=True)
class Environment:
    """Settings taken from the environment.

    cache_dir: FIRELANE_CACHE_DIR, where compiled kernels and packed weights lie (default ~/.cache/firelane).
    isa: FIRELANE_ISA, force a CPU target: avx512bf16, avx512, avx2, neon, portable ("" = the best here).
    cxx: FIRELANE_CXX, the C++ compiler command ("" = search for g++, clang++, c++, then the ziglang package).
    log_level: FIRELANE_LOG_LEVEL, debug, info, warning or error.
    """

    cache_dir: Path
    isa: str = ""
    cxx: str = ""
    log_level: str = "info"


KNOWN = {"CACHE_DIR", "ISA", "CXX", "LOG_LEVEL"}


def read(environ: Mapping[str, str] = os.environ) -> Environment:
    """Parse the environment. Raises UsageError on an unknown FIRELANE_* variable."""
    mine = {k.removeprefix(PREFIX): v for k, v in environ.items() if k.startswith(PREFIX)}
    unknown = sorted(set(mine) - KNOWN)
    if unknown:
        names = ", ".join(PREFIX + n for n in sorted(KNOWN))
        raise UsageError(f"unknown environment variable {PREFIX}{unknown[0]}: unset it; known are {names}")
    base = environ.get("XDG_CACHE_HOME") or str(Path(environ.get("HOME", "/")) / ".cache")
    return Environment(
        cache_dir=Path(mine.get("CACHE_DIR") or Path(base) / "firelane"),
        isa=mine.get("ISA", ""),
        cxx=mine.get("CXX", ""),
        log_level=mine.get("LOG_LEVEL", "info"),
    )


def otlp_configured(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether OpenTelemetry's own variables name a collector of traces."""
    names = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
    off = environ.get("OTEL_SDK_DISABLED", "").lower() == "true"
    return not off and any(environ.get(name) for name in names)


def set_for_server() -> None:
    """Settings that libraries take from the environment alone, where the user has not made them."""
    # A request's text is one piece of work: handing it to a pool of threads only takes time.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


def for_sandbox(**changes: str) -> dict[str, str]:
    """The environment of a child process that runs what is not trusted: nothing that could be secret."""
    names = ("PATH", "LD_LIBRARY_PATH", "TZ", "LANG", "LC_ALL", "SYSTEMROOT")
    return {**{name: os.environ[name] for name in names if name in os.environ}, **changes}


def for_child(**changes: str) -> dict[str, str]:
    """The environment of a child process: this process's own, with `changes`."""
    return {**os.environ, **changes}
