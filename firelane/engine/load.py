"""From an EngineConfig to an Executor: config.json -> Program -> backend."""

from __future__ import annotations

from firelane.backends import create_executor
from firelane.backends.contract import Executor
from firelane.backends.request import ExecutorRequest, ProgressCallback
from firelane.errors import UsageError
from firelane.models.config import read_config
from firelane.models.registry import load_program
from firelane.wire.engine_config import EngineConfig


def load_executor(config: EngineConfig, progress: ProgressCallback) -> Executor:
    """Raises a FirelaneError that says what is wrong with the model, the machine or the sizes."""
    request = ExecutorRequest(
        threads=config.threads,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_model_len=config.max_model_len,
        kv_cache_bytes=config.kv_cache_bytes,
        block_size=config.block_size,
        weights=config.weights,
        gemm=config.gemm,
        cache_dir=config.cache_dir,
    )
    program = load_program(read_config(config.model_dir))
    if request.max_model_len is not None and request.max_model_len > program.max_model_len:
        raise UsageError(
            f"--max-model-len {request.max_model_len}: the model takes {program.max_model_len} tokens; "
            "lower it, or leave it out"
        )
    return create_executor(config.backend, program, config.model_dir, request, progress)
