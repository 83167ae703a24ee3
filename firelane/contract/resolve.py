"""Sizes of a step, resolved from the wishes of a configuration, the model and the memory that is there."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from firelane.contract.limits import StepLimits, longest_sequence
from firelane.contract.span import Bidirectional, Span
from firelane.errors import OutOfMemoryError, UsageError

if TYPE_CHECKING:
    from firelane.engine_config import (
        ExecutorConfig,  # its library is not there where only kernels are tested
    )

GIB = 1 << 30
MIB = 1 << 20
SCORE_ROWS = 32
"""Output rows beside one for every sequence, so that the log-probabilities of a prompt advance well."""
LIVE_STATES_SHARE = 1 / 2
"""Most of the KV cache's memory that recurrent states of running sequences may take."""
SNAPSHOTS_SHARE = 1 / 4
"""Most of it that snapshots take where their number is not configured."""
SPARES_SHARE = 1 / 8
"""Most of it that spare states take, those of drafts."""
SNAPSHOTS_PER_SEQUENCE = 16
"""The most snapshots for each running sequence where their number is not configured."""
log = logging.getLogger(__name__)


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
        """Bytes of one token in one cache group; all groups are alike."""
        ...

    @property
    def state_bytes(self) -> int:
        """Bytes of the recurrent state of one sequence; 0: it keeps none."""
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
    if any(isinstance(span, Bidirectional) for span in model.spans):
        tokens = _tokens_of_whole_texts(config, tokens, longest)
    limits = StepLimits(
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=tokens,
        max_output_rows=min(config.max_num_seqs + SCORE_ROWS, tokens),
        max_model_len=longest,
        block_size=block_size,
        num_blocks=0,
        spans=model.spans,
        state_bytes=model.state_bytes,
        kv_cache_code=config.kv_cache_code,
    )
    return replace(limits, num_blocks=limits.pages_needed(longest))


def _tokens_of_whole_texts(config: ExecutorConfig, tokens: int, longest: int) -> int:
    """Token rows of a step that has to hold a whole text. Raises UsageError."""
    if config.max_num_batched_tokens is not None and tokens < longest:
        raise UsageError(
            f"--max-num-batched-tokens {tokens}: an encoder reads a text in one step, and this one takes "
            f"{longest} tokens; raise it, or lower --max-model-len"
        )
    return max(tokens, longest)


def resolve_limits(
    model: ModelSizes,
    config: ExecutorConfig,
    defaults: BackendDefaults,
    *,
    free_bytes: int,
    default_kv_bytes: int | None = None,
) -> StepLimits:
    """Limits with a KV cache of the bytes that the configuration asks for, else of `default_kv_bytes`, else
    of all of `free_bytes`: memory beside the weights and the buffers of a step. Recurrent states and their
    snapshots come out of these bytes first; fewer sequences run at a time where their states would take more
    than LIVE_STATES_SHARE. No spare state shortens the longest sequence: there are none rather than that.

    Raises OutOfMemoryError where not even one sequence fits, or more is asked for than there is. Without a
    length in the configuration, max_model_len is lowered to what fits.
    """
    limits = smallest_limits(model, config, defaults)
    budget = config.kv_cache_bytes or (max(0, free_bytes) if default_kv_bytes is None else default_kv_bytes)
    page_bytes = max(1, _page_token_bytes(model, config) * limits.block_size)  # 0: it has no attention
    if model.state_bytes:
        limits = _with_states(limits, config, budget)
    if limits.num_spares and _fitting(limits, budget, page_bytes) < limits.max_model_len:
        limits = replace(limits, num_spares=0)
    state_bytes, longest = limits.num_states * limits.state_bytes, limits.max_model_len
    pages, fitting = max(0, budget - state_bytes) // page_bytes, _fitting(limits, budget, page_bytes)
    if config.max_model_len is None:
        longest = fitting
    if not 0 < longest <= fitting:
        needed = limits.pages_needed(max(longest, 1)) * page_bytes
        raise OutOfMemoryError(
            f"the KV cache has room for {fitting} tokens in {budget / GIB:.2f} GiB{_beside_states(limits)}, "
            f"and one sequence of {longest} needs {needed / GIB:.2f} GiB: free memory, lower "
            f"--max-model-len{_or_states(limits)}, or raise --kv-cache-gib"
        )
    limits = replace(limits, max_model_len=longest)
    most = len(model.spans) * limits.blocks_per_seq * limits.max_num_seqs
    limits = replace(limits, num_blocks=config.num_blocks or min(pages, most))
    _tell_less(config, budget, limits.num_blocks * page_bytes + state_bytes, free_bytes)
    if limits.num_blocks * page_bytes + state_bytes > free_bytes:
        raise OutOfMemoryError(
            f"--kv-cache-gib {budget / GIB:.2f}: {free_bytes / GIB:.2f} GiB of memory are free beside the "
            "weights and the buffers of a step; lower it, or leave it out"
        )
    return limits


def _fitting(limits: StepLimits, budget: int, page_bytes: int) -> int:
    """Tokens of the longest sequence that has pages beside all states, limits.max_model_len at most."""
    pages = max(0, budget - limits.num_states * limits.state_bytes) // page_bytes
    chunk, most = limits.max_num_batched_tokens, limits.max_model_len
    return longest_sequence(limits.spans, pages, chunk, limits.block_size, at_most=most)


def _page_token_bytes(model: ModelSizes, config: ExecutorConfig) -> int:
    """Bytes of one token in a page, and in that of a second model which mirrors it."""
    return model.kv_bytes_per_token + (config.beside.kv_bytes_per_token if config.beside else 0)


def _tell_less(config: ExecutorConfig, budget: int, used: int, free_bytes: int) -> None:
    """A cache that is asked for and cannot be used is smaller; what was asked for beyond what there is was
    likely a mistake."""
    if config.kv_cache_bytes and used < budget and budget > free_bytes:
        log.warning(
            "--kv-cache-gib %.2f: %.2f GiB are taken, as much as max_num_seqs (%d) and max_model_len can "
            "use; %.2f GiB of memory are free",
            *(budget / GIB, used / GIB, config.max_num_seqs, free_bytes / GIB),
        )


def _with_states(limits: StepLimits, config: ExecutorConfig, budget: int) -> StepLimits:
    """Limits with as many sequences as have room for their states, and with snapshots."""
    size, wanted = limits.state_bytes, limits.max_num_seqs
    live = min(wanted, max(1, int(budget * LIVE_STATES_SHARE) // size))
    if live < wanted:
        log.warning(
            "max_num_seqs is lowered from %d to %d: the recurrent state of a sequence takes %.1f MiB, and at "
            "most half of the KV cache's %.2f GiB is for states; --kv-cache-gib gives more",
            *(wanted, live, size / MIB, budget / GIB),
        )
    snapshots = config.state_snapshots
    if snapshots is None:
        snapshots = min(SNAPSHOTS_PER_SEQUENCE * live, int(budget * SNAPSHOTS_SHARE) // size)
    spares = min(config.spare_states, live, int(budget * SPARES_SHARE) // size)
    rows = min(live + SCORE_ROWS, limits.max_num_batched_tokens)
    return replace(
        limits, max_num_seqs=live, max_output_rows=rows, num_snapshots=snapshots, num_spares=spares
    )


def _or_states(limits: StepLimits) -> str:
    return ", state_snapshots or --max-num-seqs" if limits.num_states else ""


def _beside_states(limits: StepLimits) -> str:
    if not limits.num_states:
        return ""
    nbytes = limits.num_states * limits.state_bytes
    spares = f", {limits.num_spares} of drafts" if limits.num_spares else ""
    return (
        f", of which the recurrent states of {limits.max_num_seqs} sequences{spares} and "
        f"{limits.num_snapshots} snapshots take {nbytes / GIB:.2f} GiB"
    )
