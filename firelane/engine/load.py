"""From an EngineConfig to an Executor: config.json -> Program -> backend."""

from __future__ import annotations

from firelane.backends import create_executor
from firelane.contract import Executor, ProgressCallback
from firelane.engine_config import EngineConfig
from firelane.errors import UsageError
from firelane.models.config import read_config
from firelane.models.registry import load_program


def load_executor(config: EngineConfig, progress: ProgressCallback) -> Executor:
    """Raises a FirelaneError that says what is wrong with the model, the machine or the sizes."""
    program = load_program(read_config(config.model_dir))
    if config.max_model_len is not None and config.max_model_len > program.max_model_len:
        raise UsageError(
            f"--max-model-len {config.max_model_len}: the model takes {program.max_model_len} tokens; "
            "lower it, or leave it out"
        )
    return create_executor(config.backend, program, config.model_dir, config, progress)
