"""What an engine process is told when it starts, as JSON on its command line."""

from __future__ import annotations

from pathlib import Path

import msgspec


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """model_dir is a resolved directory in Hugging Face layout; backend a name of firelane.backends.BACKENDS,
    or "auto": the GPU where one can be used, else the CPU.

    threads: None = all cores. max_model_len: None = the model's own. kv_cache_bytes, block_size,
    max_num_batched_tokens: None = the backend's choice. weights: "auto", "bf16" or "lossless", the form of
    bf16 matrices in memory. gemm: "invariant" or "library", products on a GPU. log_format: "text" or "json".
    """

    model_dir: Path
    cache_dir: Path
    backend: str = "auto"
    threads: int | None = None
    max_num_seqs: int = 256
    max_num_batched_tokens: int | None = None
    max_model_len: int | None = None
    kv_cache_bytes: int | None = None
    block_size: int | None = None
    prefix_cache: bool = True
    weights: str = "auto"
    gemm: str = "invariant"
    log_format: str = "text"

    def to_json(self) -> str:
        return msgspec.json.encode(self, enc_hook=str).decode()

    @classmethod
    def from_json(cls, text: str) -> EngineConfig:
        """Raises msgspec.DecodeError."""
        return msgspec.json.decode(text, type=cls, dec_hook=lambda kind, value: kind(value))
