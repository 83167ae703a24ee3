"""Spare states: who holds one, and how far a live state is behind."""

from __future__ import annotations

import numpy as np
import pytest

from firelane.engine.sequences.spares import NO_SPARE, SpareStates

FIRST = 10
SLOTS = np.array([0, 2, 3])


def int32(*numbers):
    return np.array(numbers, np.int32)


@pytest.fixture
def spares():
    found = SpareStates(4, count=2, first=FIRST)
    yield found
    for slot in range(4):
        found.release(slot)
    found.check_integrity(range(4))
    assert found.of(SLOTS) is None


def verified(spares, counts, won, slots=SLOTS):
    """Spare states of a step with so many drafted tokens that win so many, and by how much it advanced."""
    chosen = spares.choose(slots, int32(*counts) > 0)
    counts = np.where(chosen == NO_SPARE, 0, counts).astype(np.int32)
    spares.submitted(slots, chosen, counts)
    return chosen.tolist(), spares.committed(slots, counts, int32(*won)).tolist()


def test_as_many_as_there_are(spares):
    chosen, advanced = verified(spares, (3, 3, 3), (4, 2, 1))
    assert chosen == [FIRST, FIRST + 1, NO_SPARE]
    assert advanced == [4, 1, 1]
    begins, behind = spares.of(SLOTS)
    assert begins.tolist() == [FIRST, 2, 3]
    assert behind.tolist() == [0, 1, 0]
    spares.check_integrity([1, 3])


def test_one_that_was_right_keeps_its_own(spares):
    verified(spares, (0, 3, 0), (1, 4, 1))
    assert verified(spares, (2, 2, 0), (3, 3, 1))[0] == [FIRST + 1, FIRST, NO_SPARE]


def test_a_step_without_drafts_gives_all_back(spares):
    verified(spares, (2, 3, 0), (3, 2, 1))
    spares.submitted(SLOTS, None, None)
    assert spares.of(SLOTS) is None


def test_a_draft_whose_first_token_was_wrong_leaves_nothing_behind(spares):
    assert verified(spares, (3, 0, 0), (1, 1, 1))[1] == [1, 1, 1]
    assert spares.of(SLOTS) is None


def test_what_others_may_have_to_compute_anew(spares):
    verified(spares, (3, 0, 0), (3, 1, 1))
    assert spares.num_others(SLOTS) == 0
    assert spares.num_others(np.array([2, 3])) == spares.num_behind(SLOTS) == 2
    other = np.array([2])
    spares.submitted(other, spares.choose(other, np.array([True])), int32(4))
    assert spares.num_others(np.array([3])) == 2 + 4
    spares.committed(other, int32(4), int32(1))
    assert spares.num_others(np.array([3])) == 2


@pytest.mark.parametrize("won", [1, 3, 5])
def test_a_sequence_that_ends_in_flight_is_not_behind(spares, won):
    counts, chosen = int32(4, 0, 0), spares.choose(SLOTS, np.array([True, False, False]))
    spares.submitted(SLOTS, chosen, counts)
    spares.release(0)
    spares.committed(SLOTS, counts, int32(won, 1, 1))
    assert spares.of(SLOTS) is None


def test_without_spare_states_all_advance():
    spares = SpareStates(4)
    assert spares.of(SLOTS) is None
    assert spares.committed(SLOTS, int32(3, 0, 0), int32(3, 1, 1)).tolist() == [3, 1, 1]
