"""The CPU backend: a program as generated C++, compiled for this machine, by one process or several."""

from __future__ import annotations

from pathlib import Path

from firelane.backends.cpu import loader, rank_group
from firelane.backends.cpu.loader import describe
from firelane.contract import Executor, ProgressCallback
from firelane.engine_config import ExecutorConfig
from firelane.program.program import Program

__all__ = ["describe", "load"]


def load(program: Program, model_dir: Path, config: ExecutorConfig, progress: ProgressCallback) -> Executor:
    """See backends.create_executor."""
    load_here = rank_group.load_group if config.ranks_option or config.hosts else loader.load
    return load_here(program, model_dir, config, progress)
