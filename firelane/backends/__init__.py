"""Backends: each compiles a Program for one kind of device and gives an Executor (see contract.py).

A backend is a package with one function, `load(program, model_dir, config, progress) -> Executor`,
imported on first use. "auto" is the GPU's where one can be used, else the CPU's.
"""

from __future__ import annotations

import logging
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from firelane.errors import UsageError

if TYPE_CHECKING:
    from firelane.contract import Executor, ProgressCallback
    from firelane.engine_config import ExecutorConfig
    from firelane.program.program import Program

BACKENDS = {
    "cpu": "firelane.backends.cpu",
    "cuda": "firelane.backends.cuda",
    "null": "firelane.backends.null",
}
AUTO = "auto"
log = logging.getLogger(__name__)


def create_executor(
    backend: str, program: Program, model_dir: Path, config: ExecutorConfig, progress: ProgressCallback
) -> Executor:
    """Load `program` with the weights of `model_dir` on the named backend.

    Raises UsageError for an unknown name, else what the backend raises.
    """
    module = BACKENDS.get(choose() if backend == AUTO else backend)
    if module is None:
        raise UsageError(f"unknown backend {backend!r}: choose one of {', '.join(sorted([AUTO, *BACKENDS]))}")
    return import_module(module).load(program, model_dir, config, progress)


def choose() -> str:
    """The backend for this machine. The log says why where there is a choice."""
    from firelane.backends.cuda import gpu_detection

    found = gpu_detection.detect()
    if not found.problem:
        assert found.gpu is not None
        log.info("backend cuda: %s, driver %s", found.gpu.name, found.driver)
        return "cuda"
    if found.there:
        log.warning("backend cpu: %s", found.problem)
    return "cpu"
