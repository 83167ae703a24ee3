"""The CUDA backend: Triton kernels and library products, captured in one graph for each bucket of rows.

Nothing here imports torch or triton before load() has seen that they, and a GPU, can be used.
"""

from __future__ import annotations

import logging
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from firelane.backends.cuda import gpu_detection
from firelane.backends.cuda.faults import translated
from firelane.errors import OutOfMemoryError

if TYPE_CHECKING:
    from firelane.contract import Executor, ProgressCallback
    from firelane.engine_config import ExecutorConfig
    from firelane.program.program import Program

log = logging.getLogger(__name__)


def describe(config: ExecutorConfig) -> str:
    """Raises MachineError where no GPU can be used."""
    del config
    return str(gpu_detection.require(gpu_detection.detect()))


def load(program: Program, model_dir: Path, config: ExecutorConfig, progress: ProgressCallback) -> Executor:
    """The executor of `program` with the weights of `model_dir` on the first GPU.

    Raises MachineError where no GPU can be used and UsageError where the `cuda` extra is missing, each with
    what to do; else what firelane.backends.cuda.loader.load raises.
    """
    found = gpu_detection.detect()
    gpu = gpu_detection.require(found)
    log.debug(
        "gpu %s, driver %s, CUDA %s", gpu, found.driver or "unknown", gpu_detection.dotted(found.driver_cuda)
    )
    with translated("importing torch and triton"):
        loader = import_module("firelane.backends.cuda.loader")
    try:
        return loader.load(program, model_dir, config, progress)
    except OutOfMemoryError as error:
        if gpu.is_shared:
            raise OutOfMemoryError(f"{error} (before this start, other processes held {gpu.held})") from error
        raise
