"""Backends: each compiles a Program for one kind of device and gives an Executor (see contract.py).

A backend is a package with one function, `load(program, model_dir, request, progress) -> Executor`,
imported on first use.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from firelane.errors import UsageError

if TYPE_CHECKING:
    from firelane.backends.contract import Executor
    from firelane.backends.request import ExecutorRequest, ProgressCallback
    from firelane.program.program import Program

BACKENDS = {"cpu": "firelane.backends.cpu", "null": "firelane.backends.null"}


def create_executor(
    backend: str, program: Program, model_dir: Path, request: ExecutorRequest, progress: ProgressCallback
) -> Executor:
    """Load `program` with the weights of `model_dir` on the named backend.

    Raises UsageError for an unknown name, else what the backend raises.
    """
    module = BACKENDS.get(backend)
    if module is None:
        raise UsageError(f"unknown backend {backend!r}: choose one of {', '.join(sorted(BACKENDS))}")
    return import_module(module).load(program, model_dir, request, progress)
