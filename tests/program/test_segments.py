"""Segments of sums."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from firelane.program.segments import SEGMENTS, segment_ranges, segments_of, subtree, tree_sum


@pytest.mark.parametrize(
    ("k", "widths"),
    [
        (128, (16,) * 8),
        (8192, (1024,) * 8),
        (136, (16, 16, 16, 16, 16, 16, 16, 24)),
        (48, (0, 0, 16, 0, 0, 16, 0, 16)),
        (8, (0, 0, 0, 0, 0, 0, 0, 8)),
    ],
)
def test_widths_follow_from_k(k: int, widths: tuple[int, ...]) -> None:
    assert segments_of(k) == widths


@given(k=st.integers(1, 5000), ranks=st.sampled_from([1, 2, 4, 8]))
def test_ranks_share_all_inputs(k: int, ranks: int) -> None:
    widths = segments_of(k)
    assert len(widths) == SEGMENTS
    shares = [subtree(widths, ranks, rank) for rank in range(ranks)]
    assert [i for share in shares for i in share] == [*range(k)]
    assert [i for r in segment_ranges(widths) for i in r] == [*range(k)]
    assert all(share.start % 16 == 0 for share in shares)


@given(st.lists(st.none() | st.floats(-1e6, 1e6, width=32), min_size=8, max_size=8), st.sampled_from([2, 4]))
def test_subtrees_add_up_to_the_tree(numbers: list[float | None], ranks: int) -> None:
    parts = [None if n is None else np.array([n], np.float32) for n in numbers]
    each = SEGMENTS // ranks
    subtrees = [tree_sum(parts[i : i + each]) for i in range(0, SEGMENTS, each)]
    whole, together = tree_sum(parts), tree_sum(subtrees)
    assert (whole is None) == (together is None)
    if whole is not None and together is not None:
        assert whole.tobytes() == together.tobytes()


def test_order_of_the_tree() -> None:
    big, one = np.float32(2**24), np.float32(1)
    parts = [np.array([n], np.float32) for n in (big, one, one, 0, 0, 0, 0, 0)]
    found = tree_sum(parts)
    assert found is not None
    assert found[0] == (big + one) + one == big  # from left to right: one is lost twice
    swapped = tree_sum([parts[1], parts[2], *parts[:1], *parts[3:]])
    assert swapped is not None
    assert swapped[0] == big + 2
