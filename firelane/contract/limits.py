"""Sizes fixed when an executor is made, and the constants that the engine and every backend share."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from firelane.contract.span import CAUSAL, KEY_TILE, Bidirectional, Span, reach

SAMPLE, SCORE, EMBED = 0, 1, 2


@dataclass(frozen=True, kw_only=True)
class StepLimits:
    """Sizes fixed when the executor is made.

    Pages 0 .. num_blocks - 1 are of equal size; one page holds block_size tokens of all layers of one cache
    group. spans: one for each cache group of the Program, in their order.

    Recurrent state lies in a pool of `num_states` states of state_bytes bytes each: state s < max_num_seqs is
    the live state of slot s, state max_num_seqs + i is snapshot i; behind the snapshots come num_spares spare
    states, those behind drafts. state_bytes is 0 where the Program keeps no recurrent state; there are no
    snapshots then.

    kv_cache_code: that of keys and values in pages, or ""; names of pages begin with it.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    max_output_rows: int
    max_model_len: int
    block_size: int
    num_blocks: int
    spans: tuple[Span, ...] = (CAUSAL,)
    num_snapshots: int = 0
    num_spares: int = 0
    state_bytes: int = 0
    kv_cache_code: str = ""

    @property
    def num_states(self) -> int:
        """Live states, snapshots and spare states."""
        return self.first_spare + self.num_spares if self.state_bytes else 0

    @property
    def first_spare(self) -> int:
        """The number of the first spare state among all states."""
        return self.max_num_seqs + self.num_snapshots

    @property
    def whole_prompts(self) -> bool:
        """Whether all tokens of a sequence have to be in one chunk: some of them see later ones."""
        return any(isinstance(span, Bidirectional) for span in self.spans)

    @property
    def blocks_per_seq(self) -> int:
        return -(-self.max_model_len // self.block_size)

    def pages_needed(self, tokens: int) -> int:
        """Pages that a sequence of so many tokens needs at most: sequence_pages with these limits."""
        return sequence_pages(self.spans, tokens, self.max_num_batched_tokens, self.block_size)


def pages_needed(span: Span, tokens: int, chunk: int, block_size: int) -> int:
    """Pages of one cache group that a sequence holds at a time, at most, while it grows to `tokens` tokens in
    chunks of at most `chunk`, and pages before kept_from are given back when a chunk is planned."""
    every = -(-tokens // block_size)
    seen = reach(span)
    if seen is None:
        return every
    return min(every, -(-(seen + chunk + KEY_TILE) // block_size) + 1)


def sequence_pages(spans: Sequence[Span], tokens: int, chunk: int, block_size: int) -> int:
    """Pages of all cache groups that a sequence of `tokens` tokens holds at a time, at most."""
    return sum(pages_needed(span, tokens, chunk, block_size) for span in spans)


def longest_sequence(
    spans: Sequence[Span], num_blocks: int, chunk: int, block_size: int, *, at_most: int
) -> int:
    """The most tokens, up to `at_most`, that a sequence can have in `num_blocks` pages."""
    return bisect_right(
        range(1, at_most + 1), num_blocks, key=lambda n: sequence_pages(spans, n, chunk, block_size)
    )
