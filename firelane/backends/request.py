"""What an engine asks of a backend when it loads a model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from firelane.errors import UsageError

SCORE_ROWS = 32
WEIGHTS = ("auto", "bf16", "lossless")
GEMMS = ("invariant", "library")
ProgressCallback = Callable[[str, float, float, str], None]
"""progress(stage, done, total, unit), as in wire.Progress."""


@dataclass(frozen=True, kw_only=True)
class ExecutorRequest:
    """Sizes that the caller wants; the backend answers with StepLimits.

    threads: None = all cores of this process. max_model_len: None = the model's own. kv_cache_bytes: None =
    the backend's choice; the executor must hold at least one sequence of max_model_len tokens, else
    OutOfMemoryError (where max_model_len is None the backend may lower it to what fits).
    max_num_batched_tokens is at least max_num_seqs, so that every sequence can decode in every step; it and
    block_size are the backend's own where they are None: see settled().
    weights: the form of bf16 matrices in memory, one of WEIGHTS: "bf16" as they are; "lossless" the smallest
    form of each matrix; "auto" the fastest. Outputs are the same, bit for bit.
    gemm: products of many rows on a GPU, one of GEMMS: "invariant" gives a row the same bits whatever runs
    beside it; "library" takes the vendor's, which does not.
    """

    threads: int | None = None
    max_num_seqs: int = 256
    max_num_batched_tokens: int | None = None
    max_model_len: int | None = None
    kv_cache_bytes: int | None = None
    block_size: int | None = None
    weights: str = "auto"
    gemm: str = "invariant"
    cache_dir: Path

    def __post_init__(self) -> None:
        for name in ("threads", "max_num_seqs", "max_model_len", "kv_cache_bytes", "block_size"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError(f"{name} is {value}: it must be at least 1")
        for name, known in (("weights", WEIGHTS), ("gemm", GEMMS)):
            if getattr(self, name) not in known:
                given = str(getattr(self, name))[:40]
                raise UsageError(f"{name} is {given!r}: it must be one of {', '.join(known)}")
        if self.max_num_batched_tokens is not None and self.max_num_batched_tokens < self.max_num_seqs:
            raise UsageError(
                f"max_num_batched_tokens ({self.max_num_batched_tokens}) is below max_num_seqs "
                f"({self.max_num_seqs}): every running sequence needs one token a step; lower max_num_seqs"
            )

    def settled(self, *, block_size: int, max_num_batched_tokens: int) -> SettledRequest:
        """The same request, with the backend's own sizes where the caller left them open."""
        return SettledRequest(
            threads=self.threads,
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens
            or max(max_num_batched_tokens, self.max_num_seqs),
            max_model_len=self.max_model_len,
            kv_cache_bytes=self.kv_cache_bytes,
            block_size=self.block_size or block_size,
            weights=self.weights,
            gemm=self.gemm,
            cache_dir=self.cache_dir,
        )


@dataclass(frozen=True, kw_only=True)
class SettledRequest:
    """An ExecutorRequest whose block_size and max_num_batched_tokens are numbers."""

    threads: int | None
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int | None
    kv_cache_bytes: int | None
    block_size: int
    weights: str
    gemm: str
    cache_dir: Path

    @property
    def max_output_rows(self) -> int:
        """One row for every sequence, and a few more so that a prompt's log-probabilities advance well."""
        return min(self.max_num_seqs + SCORE_ROWS, self.max_num_batched_tokens)
