"""Drafts get longer while they are accepted, shorter where they fail, and rare where nothing is accepted."""

from __future__ import annotations

from itertools import pairwise

from firelane.engine.speculation.draft_length import DOUBT, FIRST_LENGTH, LONGEST_PAUSE, DraftLength
from firelane.request_limits import MOST_DRAFTED


def test_accepted_drafts_get_longer_up_to_a_limit():
    length, seen = DraftLength(), []
    for _ in range(6):
        seen.append(length.choose(1.0, 0.02))
        length.note(seen[-1], seen[-1])
    assert seen == [FIRST_LENGTH, 8, 16, MOST_DRAFTED, MOST_DRAFTED, MOST_DRAFTED]


def test_a_draft_that_fails_in_its_middle_makes_the_next_one_less_sure():
    length = DraftLength()
    for _ in range(4):
        length.note(length.longest, length.longest)
    before = length.choose(1.0, 0.5)
    length.note(16, 0)
    length.note(16, 1)
    assert length.choose(1.0, 0.5) < before
    assert length.pause == 0


def tries_of(length, steps, price):
    """Steps at which drafts that always fail are tried, and how many tokens they have."""
    tries, drafted, rests = [], [], 0
    for step in range(steps):
        rests -= 1
        if rests < 0:
            tries.append(step)
            drafted.append(length.choose(0.6, price))
            length.note(drafted[-1], 0)
            rests = length.pause
    return tries, drafted


def test_drafts_that_always_fail_are_tried_ever_more_rarely():
    tries, drafted = tries_of(DraftLength(), 1000, 0.02)
    assert drafted[:4] == [4, 2, 1, 1]
    assert sum(drafted) <= 30
    assert max(b - a for a, b in pairwise(tries)) == LONGEST_PAUSE + 1


def test_a_sequence_begins_doubtful_where_drafts_of_others_failed():
    tries, drafted = tries_of(DraftLength(0.1), 100, 0.02)
    assert len(tries) <= 5
    assert set(drafted) == {1}
    assert DraftLength(0.1).pause == 7
    assert DraftLength(DOUBT).pause == 0


def test_one_accepted_token_ends_the_pause():
    length = DraftLength()
    for _ in range(6):
        length.note(1, 0)
    assert length.pause == 31
    length.note(1, 1)
    assert (length.pause, length.longest) == (0, 2)


def test_no_token_is_drafted_that_is_less_likely_than_its_row_costs():
    """A new sequence's own rate is 1: the chance of a token is 0.75 where its proposer says 0.5."""
    assert DraftLength().choose(0.5, 0.76) == 0
    assert DraftLength().choose(0.5, 0.75) == 0
    assert DraftLength().choose(0.5, 0.7) == 1
    assert DraftLength().choose(0.5, 0.56) == 2
    assert DraftLength().choose(1.0, 1.0) == 0


def test_a_proposer_is_believed_less_than_what_was_seen_of_its_drafts():
    length = DraftLength()
    for _ in range(3):
        length.note(4, 2)
    assert length.choose(1.0, 0.7) == length.choose(0.95, 0.7) == 1
    assert length.choose(0.4, 0.7) == 0


def test_a_sequence_whose_drafts_failed_tries_one_token_again_but_not_in_a_full_batch():
    length = DraftLength()
    for _ in range(8):
        length.note(1, 0)
    assert length.choose(0.9, 0.5) == 1
    assert length.choose(0.9, 1.5) == 0
