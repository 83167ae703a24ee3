"""The CUDA backend: Triton kernels and library products, captured in one graph for each bucket of rows.

Nothing here imports torch or triton before load() has seen that they, and a GPU, can be used.
"""

from __future__ import annotations

import logging
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from firelane.backends.cuda.device import gpu_detection
from firelane.backends.cuda.device.faults import translated
from firelane.errors import OutOfMemoryError, UsageError

if TYPE_CHECKING:
    from firelane.contract import Executor, ProgressCallback
    from firelane.engine_config import ExecutorConfig
    from firelane.program.program import Program

log = logging.getLogger(__name__)


def describe(config: ExecutorConfig) -> str:
    """Raises MachineError where no GPU can be used."""
    gpu, ranks = gpu_detection.require(gpu_detection.detect()), config.ranks
    return f"{ranks} x {gpu}" if ranks > 1 else str(gpu)


def load(program: Program, model_dir: Path, config: ExecutorConfig, progress: ProgressCallback) -> Executor:
    """The executor of `program` with the weights of `model_dir` on the first GPU, or on the first GPUs where
    ranks are asked for.

    Raises MachineError where no GPU can be used and UsageError where the `cuda` extra is missing, or there
    are more ranks than GPUs, each with what to do; else what loader.load and ranks.group.load_group of
    firelane.backends.cuda raise.
    """
    found = gpu_detection.detect()
    gpu = gpu_detection.require(found)
    log.debug(
        "gpu %s, driver %s, CUDA %s", gpu, found.driver or "unknown", gpu_detection.dotted(found.driver_cuda)
    )
    ranks = config.ranks
    if ranks > found.count:
        raise UsageError(
            f"{config.ranks_option}: this process sees {found.count} GPU{'s' * (found.count != 1)}, "
            f"and each of {ranks} ranks needs one; lower it, or look at CUDA_VISIBLE_DEVICES"
        )
    with translated("importing torch and triton"):
        loader = import_module("firelane.backends.cuda.loader")
    try:
        if ranks > 1:
            group = import_module("firelane.backends.cuda.ranks.group")
            return group.load_group(program, model_dir, config, progress)
        return loader.load(program, model_dir, config, progress)
    except OutOfMemoryError as error:
        if gpu.is_shared:
            raise OutOfMemoryError(f"{error} (before this start, other processes held {gpu.held})") from error
        raise
