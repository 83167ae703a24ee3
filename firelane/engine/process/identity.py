"""The identity of a served model: engines of equal identity draw the same tokens for the same request."""

from __future__ import annotations

import hashlib
from pathlib import Path

import firelane
from firelane.contract import Executor
from firelane.engine_config import QUANTIZING, EngineConfig
from firelane.errors import ModelError
from firelane.storage import read_regular
from firelane.weights.checkpoints.checkpoint import Checkpoint


def checkpoint_identity(model_dir: Path, *, times: bool = False) -> str:
    """The identity of a checkpoint: of config.json and of the content of the weight files (the null backend
    needs none), the same for a copy on another machine; with `times` also of when these files changed, for
    what is kept here. To be read before they are loaded: what replaces them later is another model."""
    try:
        checkpoint = Checkpoint.open(model_dir)
        weights = checkpoint.fingerprint if times else checkpoint.content
    except ModelError:
        weights = ""
    config = read_regular(model_dir / "config.json")
    return hashlib.blake2b(config, digest_size=16).hexdigest() + weights


def model_identity(checkpoint: str, executor: Executor, config: EngineConfig) -> str:
    """A hash over the checkpoint, the code that makes a program of it, the backend, its arithmetic (of a CPU
    its target, of a GPU its compute capability) and the codes of the KV cache and of activations. The number
    of threads and of ranks, the sizes and the format of the weights in memory, unless it quantises them, make
    no difference to the tokens. Adapters come and go: requests name what they are computed with."""
    backend = type(executor).__module__.rpartition(".")[0]
    gemm = "ranks" if backend.endswith(".cuda") and config.ranks > 1 else config.gemm
    form = config.weights if config.weights in QUANTIZING else config.dtype
    parts = (firelane.__version__, checkpoint, backend, gemm, form, str(executor.vocab_size))
    parts = (*parts, config.kv_cache_code) if config.kv_cache_code else parts
    if executor.activation_dtype != "bf16":
        parts = (*parts, f"activations {executor.activation_dtype}")
    if executor.arithmetic:
        parts = (*parts, f"arithmetic {executor.arithmetic}")
    return hashlib.blake2b("\0".join(parts).encode(), digest_size=16).hexdigest()
