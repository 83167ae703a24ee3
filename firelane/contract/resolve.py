"""Sizes of a step, resolved from the wishes of a configuration, the model and the memory that is there."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from firelane.contract.limits import StepLimits, longest_sequence
from firelane.contract.span import Span
from firelane.errors import OutOfMemoryError

if TYPE_CHECKING:
    from firelane.engine_config import (
        ExecutorConfig,  # its library is not there where only kernels are tested
    )

GIB = 1 << 30
SCORE_ROWS = 32
"""Output rows beside one for every sequence, so that the log-probabilities of a prompt advance well."""


class ModelSizes(Protocol):
    """The sizes of a model that limits depend on (program.Program)."""

    @property
    def max_model_len(self) -> int: ...

    @property
    def spans(self) -> tuple[Span, ...]:
        """One for each cache group."""
        ...

    @property
    def kv_bytes_per_token(self) -> int:
        """Of one cache group, all of them alike."""
        ...


@dataclass(frozen=True, kw_only=True)
class BackendDefaults:
    """A backend's own sizes, for what a configuration leaves open."""

    block_size: int
    max_num_batched_tokens: int


def smallest_limits(model: ModelSizes, config: ExecutorConfig, defaults: BackendDefaults) -> StepLimits:
    """Limits with the pages of one sequence, of the longest length that may be wanted."""
    longest = config.max_model_len or model.max_model_len
    block_size = config.block_size or defaults.block_size
    tokens = config.max_num_batched_tokens or max(defaults.max_num_batched_tokens, config.max_num_seqs)
    limits = StepLimits(
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=tokens,
        max_output_rows=min(config.max_num_seqs + SCORE_ROWS, tokens),
        max_model_len=longest,
        block_size=block_size,
        num_blocks=0,
        spans=model.spans,
    )
    return replace(limits, num_blocks=limits.pages_needed(longest))


def resolve_limits(
    model: ModelSizes,
    config: ExecutorConfig,
    defaults: BackendDefaults,
    *,
    free_bytes: int,
    default_kv_bytes: int | None = None,
) -> StepLimits:
    """Limits with a KV cache of the bytes that the configuration asks for, else of `default_kv_bytes`, else
    of all of `free_bytes`: memory beside the weights and the buffers of a step.

    Raises OutOfMemoryError where not even one sequence fits, or more is asked for than there is. Without a
    length in the configuration, max_model_len is lowered to what fits.
    """
    limits = smallest_limits(model, config, defaults)
    budget = config.kv_cache_bytes or (max(0, free_bytes) if default_kv_bytes is None else default_kv_bytes)
    page_bytes = model.kv_bytes_per_token * limits.block_size
    pages, longest = budget // page_bytes, limits.max_model_len
    chunk, block_size = limits.max_num_batched_tokens, limits.block_size
    fitting = longest_sequence(model.spans, pages, chunk, block_size, at_most=longest)
    if config.max_model_len is None:
        longest = fitting
    if not 0 < longest <= fitting:
        needed = limits.pages_needed(max(longest, 1)) * page_bytes
        raise OutOfMemoryError(
            f"the KV cache has room for {fitting} tokens in {budget / GIB:.2f} GiB, and one sequence of "
            f"{longest} needs {needed / GIB:.2f} GiB: free memory, lower --max-model-len, or raise "
            "--kv-cache-gib"
        )
    limits = replace(limits, max_model_len=longest)
    most = len(model.spans) * limits.blocks_per_seq * limits.max_num_seqs
    limits = replace(limits, num_blocks=min(pages, most))
    if limits.num_blocks * page_bytes > free_bytes:
        raise OutOfMemoryError(
            f"--kv-cache-gib {budget / GIB:.2f}: {free_bytes / GIB:.2f} GiB of memory are free beside the "
            "weights and the buffers of a step; lower it, or leave it out"
        )
    return limits
