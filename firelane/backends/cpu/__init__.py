"""The CPU backend: a program as generated C++, compiled for this machine, by one process or several."""

from __future__ import annotations

from pathlib import Path

from firelane.backends.cpu import loader
from firelane.backends.cpu.loader import describe
from firelane.contract import Executor, ProgressCallback
from firelane.engine_config import ExecutorConfig
from firelane.program.program import Program

__all__ = ["describe", "load"]


def load(program: Program, model_dir: Path, config: ExecutorConfig, progress: ProgressCallback) -> Executor:
    """Load a program on this machine's processor, as backends.create_executor says."""
    if config.ranks_option or config.hosts:
        from firelane.backends.cpu.ranks.group import load_group

        return load_group(program, model_dir, config, progress)
    return loader.load(program, model_dir, config, progress)
