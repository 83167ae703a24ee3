"""Pages that sequences need, with one cache group and with several of several spans."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from firelane.contract import CAUSAL, Chunk, Span, StepLimits, Window, kept_from
from firelane.contract.limits import longest_sequence, pages_needed, sequence_pages

SPANS = st.one_of(
    st.just(CAUSAL), st.integers(1, 300).map(Window), st.integers(1, 300).map(Chunk), st.just(Window(4096))
)


def most_pages_held(span: Span, tokens: int, chunk: int, block_size: int) -> int:
    """By a sequence that is computed in chunks: pages are given back when a chunk is planned, then those of
    its tokens are taken."""
    most = 0
    for start in range(0, tokens, chunk):
        end = min(start + chunk, tokens)
        most = max(most, -(-end // block_size) - kept_from(span, start) // block_size)
    return most


@given(SPANS, st.integers(1, 1500), st.integers(1, 200), st.sampled_from([16, 32, 64, 128]))
def test_no_sequence_holds_more_than_is_needed(span: Span, tokens: int, chunk: int, block_size: int) -> None:
    needed = pages_needed(span, tokens, chunk, block_size)
    held = most_pages_held(span, tokens, chunk, block_size)
    assert held <= needed <= -(-tokens // block_size)
    assert needed <= held + 3 + 2 * 64 // block_size or needed == -(-tokens // block_size)


def test_a_long_sequence_of_a_window_model() -> None:
    """32,000 tokens take 2,000 pages of 16; a window of 4,096 has 256 of them, a chunk of 512 another 32."""
    assert pages_needed(CAUSAL, 32_000, 512, 16) == 2000
    assert pages_needed(Window(4096), 32_000, 512, 16) == 256 + 32 + 4 + 1
    assert pages_needed(Window(4096), 32_000, 1, 16) <= 1.1 * 256
    assert sequence_pages((CAUSAL, Window(4096)), 32_000, 512, 16) == 2293


def test_limits_add_up_their_groups() -> None:
    limits = StepLimits(
        max_num_seqs=4,
        max_num_batched_tokens=64,
        max_output_rows=8,
        max_model_len=2048,
        block_size=16,
        num_blocks=300,
        spans=(Window(100), CAUSAL),
    )
    assert limits.pages_needed(32) == 4
    assert limits.pages_needed(2048) == 128 + 16


@given(st.lists(SPANS, min_size=1, max_size=4), st.integers(0, 400), st.integers(1, 2000))
def test_the_longest_sequence_fits_and_one_more_token_does_not(
    spans: list[Span], num_blocks: int, at_most: int
) -> None:
    longest = longest_sequence(spans, num_blocks, 64, 16, at_most=at_most)
    assert 0 <= longest <= at_most
    assert longest == 0 or sequence_pages(spans, longest, 64, 16) <= num_blocks
    assert longest == at_most or sequence_pages(spans, longest + 1, 64, 16) > num_blocks


def test_spans_have_names() -> None:
    assert [str(span) for span in (CAUSAL, Window(7), Chunk(8))] == ["causal", "window 7", "chunk 8"]
