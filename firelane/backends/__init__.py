"""Backends: each compiles a Program for one kind of device and gives an Executor (see contract.py).

A backend is a package with two functions, `load(program, model_dir, config, progress) -> Executor` and
`describe(config) -> str`, imported on first use. "auto" is the GPU's where one can be used, else the CPU's.
"""

from __future__ import annotations

import logging
from contextlib import nullcontext
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
MAX_ENGINES_PER_GPU = 8
log = logging.getLogger(__name__)


def create_executor(
    backend: str, program: Program, model_dir: Path, config: ExecutorConfig, progress: ProgressCallback
) -> Executor:
    """Load `program` with the weights of `model_dir` on the named backend.

    Raises UsageError for an unknown name, else what the backend raises.
    """
    name = resolve(backend)
    check(name, config)
    return import_module(BACKENDS[name]).load(program, model_dir, config, progress)


def create_beside(
    served: Executor,
    backend: str,
    program: Program,
    model_dir: Path,
    config: ExecutorConfig,
    progress: ProgressCallback,
) -> Executor:
    """Load a second program in this process alone, beside `served`: where that is several ranks, on the cores
    or the GPU of the one that draws. config: of one rank. Raises what create_executor() does."""
    from firelane.backends.ranks.group import RankGroup

    with served.pinned() if isinstance(served, RankGroup) else nullcontext():
        return create_executor(backend, program, model_dir, config, progress)


def check(name: str, config: ExecutorConfig) -> None:
    """Raises UsageError for what the backend of this name does not take, whatever the model."""
    if name == "null" and config.ranks > 1:
        raise UsageError(
            f"{config.ranks_option}: the null backend has one rank; leave it out, or choose --backend cpu"
        )
    if name != "cpu":
        _check_for_one_host(name, config)
    if name == "cuda":
        _check_for_gpu(config)


def resolve(backend: str) -> str:
    """A name of BACKENDS: for "auto" that for this machine. Raises UsageError for an unknown one."""
    name = choose() if backend == AUTO else backend
    if name not in BACKENDS:
        raise UsageError(f"unknown backend {backend!r}: choose one of {', '.join(sorted([AUTO, *BACKENDS]))}")
    return name


def describe(name: str, config: ExecutorConfig) -> str:
    """The device that the backend of this name will use, in words for people. Raises UsageError."""
    return import_module(BACKENDS[name]).describe(config)


def _check_for_one_host(name: str, config: ExecutorConfig) -> None:
    if config.hosts is not None:
        raise UsageError(
            f"--nnodes {config.hosts.count}: ranks of the {name} backend are on one host; leave it out, or "
            "choose --backend cpu"
        )


def _check_for_gpu(config: ExecutorConfig) -> None:
    if config.kv_cache_memory == "shared":
        raise UsageError("kv_cache_memory = shared: a GPU's KV cache is private, leave it out")
    if config.kv_cache_code:
        raise UsageError(
            f"--kv-cache-dtype {config.kv_cache_code}: a GPU's KV cache keeps the numbers that the model "
            "computes with; leave it out"
        )
    if config.tiers is not None and config.ranks > 1:
        raise UsageError(
            f"{config.tiers.option}: pages of several GPUs ({config.ranks_option}) have no tiers; leave it "
            "out"
        )
    if config.activation_dtype == "int8":
        raise UsageError("--activation-dtype int8: a GPU multiplies bf16 numbers; leave it out")
    if config.replicas > MAX_ENGINES_PER_GPU:
        raise UsageError(
            f"{config.replicas} engines on one GPU: it takes {MAX_ENGINES_PER_GPU} at most, as each keeps "
            "weights of its own; lower --replicas, or serve fewer models"
        )
    if config.replicas > 1 and config.kv_cache_bytes is None:
        raise UsageError(
            f"{config.replicas} engines on one GPU: each would take all memory that is left; say with "
            "--kv-cache-gib what the replicas of a model share, or serve one model with --replicas 1"
        )


def takes_gpu(backend: str) -> bool:
    """Whether the backend of this name, or that for this machine, is the GPU's. Tells nobody."""
    if backend != AUTO:
        return backend == "cuda"
    from firelane.backends.cuda.device import gpu_detection

    return not gpu_detection.detect().problem


def choose() -> str:
    """The backend for this machine. The log says why where there is a choice."""
    from firelane.backends.cuda.device import gpu_detection

    found = gpu_detection.detect()
    if not found.problem:
        assert found.gpu is not None
        log.debug("backend cuda: %s, driver %s", found.gpu.name, found.driver)
        return "cuda"
    if found.there:
        log.warning("backend cpu: %s", found.problem)
    return "cpu"
