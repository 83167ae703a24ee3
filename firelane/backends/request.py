"""What an engine asks of a backend when it loads a model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from firelane.errors import UsageError

SCORE_ROWS = 32
WEIGHTS = ("auto", "bf16", "lossless")
ProgressCallback = Callable[[str, float, float, str], None]
"""progress(stage, done, total, unit), as in wire.Progress."""


@dataclass(frozen=True, kw_only=True)
class ExecutorRequest:
    """Sizes that the caller wants; the backend answers with StepLimits.

    threads: None = all cores of this process. max_model_len: None = the model's own. kv_cache_bytes: None =
    the backend's choice; the executor must hold at least one sequence of max_model_len tokens, else
    OutOfMemoryError (where max_model_len is None the backend may lower it to what fits).
    max_num_batched_tokens is at least max_num_seqs, so that every sequence can decode in every step.
    weights: the form of bf16 matrices in memory, one of WEIGHTS: "bf16" as they are; "lossless" the smallest
    form of each matrix; "auto" the fastest. Outputs are the same, bit for bit.
    """

    threads: int | None = None
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 512
    max_model_len: int | None = None
    kv_cache_bytes: int | None = None
    block_size: int = 16
    weights: str = "auto"
    cache_dir: Path

    def __post_init__(self) -> None:
        for name in ("threads", "max_num_seqs", "max_model_len", "kv_cache_bytes", "block_size"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError(f"{name} is {value}: it must be at least 1")
        if self.weights not in WEIGHTS:
            raise UsageError(f"weights is {str(self.weights)[:40]!r}: it must be one of {', '.join(WEIGHTS)}")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise UsageError(
                f"max_num_batched_tokens ({self.max_num_batched_tokens}) is below max_num_seqs "
                f"({self.max_num_seqs}): every running sequence needs one token a step; lower max_num_seqs"
            )

    @property
    def max_output_rows(self) -> int:
        """One row for every sequence, and a few more so that a prompt's log-probabilities advance well."""
        return min(self.max_num_seqs + SCORE_ROWS, self.max_num_batched_tokens)
