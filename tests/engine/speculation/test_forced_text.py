"""Drafts of text that grammars force."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from firelane.engine.speculation.forced_text import ForcedText

TEXTS = {0: [11, 12, 13, 14, 15], 1: [], 2: [21, 22], 3: [31, 32, 33]}


def forced(most=31):
    sequences = {slot: SimpleNamespace(slot=slot, most_drafted=most) for slot in TEXTS}
    return ForcedText(
        SimpleNamespace(at=sequences.__getitem__),
        SimpleNamespace(forced=lambda sequence: TEXTS[sequence.slot]),
    )


def runs(text, price=0.1, room=31, step=1):
    slots = np.array([0, 1, 2], np.int64)
    return text.runs(step, slots, np.full(3, room, np.int32), price)


def test_all_of_the_text_is_drafted_at_once():
    assert runs(forced()) == {0: TEXTS[0], 2: TEXTS[2]}


@pytest.mark.parametrize(
    ("most", "room", "expected"), [(31, 3, 3), (1, 31, 1), (0, 31, 0), (31, 0, 0), (31, -2, 0)]
)
def test_a_draft_fits_into_pages_and_into_what_its_request_allows(most, room, expected):
    assert len(runs(forced(most), room=room).get(0, [])) == expected


def test_tokens_that_cost_more_than_they_are_likely_to_win_are_left_out():
    assert len(runs(forced(), price=0.9**3 + 1e-6)[0]) == 2
    assert not runs(forced(), price=0.95)


def test_spellings_that_differ_make_later_drafts_shorter_and_those_that_agree_longer():
    text = forced()
    for _ in range(30):
        text.note(5, 0)
    assert len(runs(text).get(0, [])) < 5
    for _ in range(40):
        text.note(5, 5)
    assert len(runs(text)[0]) == 5


def test_a_draft_is_known_for_its_step_alone():
    text = forced()
    runs(text, step=7)
    assert [text.has(7, slot) for slot in range(4)] == [True, False, True, False]
    assert not text.has(8, 0)
