"""Pages of a head: what it may go on from when a slot, or a page, gets another text."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from firelane.engine.speculation.heads.head_layers import MOST_WAITING
from firelane.engine.speculation.proposer import NO_PROPOSAL, Asked, ComputedRows
from firelane.kv.prefix import PrefixChain
from tests.engine.chain_model import chain_hash, draw
from tests.engine.speculation.test_head_schedules import SEED, VOCAB, Scene, as_numbers

BLOCK = 16
TEXT, OTHER = [i * 7 % VOCAB for i in range(40)], [i * 5 % VOCAB + 1 for i in range(40)]


class Pages(Scene):
    """A head that is told of rows by hand. Slots have the pages that they are given."""

    def __init__(self, layers: int, **sizes: int) -> None:
        super().__init__(layers=layers, block_size=BLOCK, num_blocks=32, **sizes)
        self.state, self.proposer = self.served.state, self.drafter._proposer

    def place(self, slot, tokens, pages):
        """A sequence in this slot."""
        self.state.tokens[slot, : len(tokens)] = tokens
        sequence = SimpleNamespace(chain=PrefixChain(b"", BLOCK))
        self.move(slot, sequence, pages)
        return sequence

    def move(self, slot, sequence, pages):
        """It has other pages from now on."""
        self.state.block_tables[0, slot, : len(pages)] = pages
        sequence.blocks = SimpleNamespace(tables=[pages])

    def note(self, slot, sequence, start, stop, *, begins):
        """The target has computed rows start .. stop - 1."""
        history, features = 0, []
        for position, token in enumerate(self.state.tokens[slot, :stop].tolist()):
            history = chain_hash(history, token)
            features += [as_numbers(history)] if position >= start else []
        rows = np.array(features, np.float32)
        self.proposer.note_rows([ComputedRows(slot, sequence, start, rows, begins=begins)])

    def draft(self, slot, sequence, known, most):
        (found,) = self.draft_all({slot: (sequence, known)}, most)
        return found

    def draft_all(self, texts, most):
        """texts: by slot, a sequence and how many of its tokens are known."""
        asked = [
            Asked(slot, sequence, self.state.tokens[slot, :known], most)
            for slot, (sequence, known) in texts.items()
        ]
        return [found.tokens for found in self.proposer.propose(asked)]


def right(tokens, most):
    """Tokens that are drawn behind these."""
    history, found = 0, []
    for token in tokens:
        history = chain_hash(history, token)
    while len(found) < most:
        found.append(draw(history, SEED))
        history = chain_hash(history, found[-1])
    return found


@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize(("rows", "drafts"), [(0, False), (12, False), (12, True), (5, True), (5, False)])
def test_a_page_that_was_written_to_has_lost_its_text(layers, rows, drafts):
    """12 rows of another text are computed as a prompt, 5 wait for its first draft. Neither fills the page,
    so that it has no text of its own. The head begins behind a page that has lost its text."""
    scene = Pages(layers)
    scene.note(0, scene.place(0, TEXT, [3, 4]), 0, 24, begins=True)
    if rows:
        other = scene.place(1, OTHER, [3, 5])
        scene.note(1, other, 0, rows, begins=True)
    if drafts:
        assert scene.draft(1, other, rows + 1, 2) == right(OTHER[: rows + 1], 2)
    third = scene.place(2, TEXT, [3, 6])
    scene.note(2, third, BLOCK, 24, begins=True)
    assert scene.draft(2, third, 25, 4) == right(TEXT[:25], 4)
    is_lost = drafts or rows > MOST_WAITING
    assert scene.proposer._layers.texts[2].origin == BLOCK * is_lost
    reads = scene.heads[0].state.block_tables[0, 2].tolist()
    assert reads[:2] == ([6, 0] if is_lost else [3, 6])
    assert not any(head.wrong for head in scene.heads)


@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("start", [0, BLOCK])
def test_a_sequence_that_begins_anew_in_its_slot_has_none_of_its_rows(layers, start):
    """It was preempted, and has other pages: empty ones, or one that another sequence has filled."""
    scene = Pages(layers)
    scene.note(1, scene.place(1, TEXT, [3, 4]), 0, 24, begins=True)
    sequence = scene.place(0, TEXT, [8, 9])
    scene.note(0, sequence, 0, 22, begins=True)
    assert scene.draft(0, sequence, 23, 3) == right(TEXT[:23], 3)
    scene.move(0, sequence, [3, 10] if start else [11, 12])
    scene.note(0, sequence, start, 28, begins=True)
    assert scene.draft(0, sequence, 29, 4) == right(TEXT[:29], 4)
    assert not any(head.wrong for head in scene.heads)


@pytest.mark.parametrize("layers", [1, 3])
def test_rows_that_were_there_already_are_not_computed_again(layers):
    scene = Pages(layers)
    sequence = scene.place(0, TEXT, [8, 9])
    scene.note(0, sequence, 0, 22, begins=True)
    for head in scene.heads:
        head.stored = []
        head._store = lambda slot, position, numbers, head=head: (
            head.stored.append(position),
            type(head)._store(head, slot, position, numbers),
        )
    scene.note(0, sequence, 20, 26, begins=False)
    assert scene.draft(0, sequence, 27, 1) == right(TEXT[:27], 1)
    assert sorted(scene.heads[0].stored) == list(range(21, 26))


@pytest.mark.parametrize("layers", [1, 3])
def test_behind_a_gap_the_head_begins_with_the_next_page(layers):
    """It drafts nothing before. What it computes then names no page: others would miss rows before it."""
    scene = Pages(layers)
    sequence = scene.place(0, TEXT, [8, 9, 10])
    scene.note(0, sequence, 0, 5, begins=True)
    scene.note(0, sequence, 7, 12, begins=False)
    (found,) = scene.proposer.propose([Asked(0, sequence, scene.state.tokens[0, :13], 4)])
    assert found == NO_PROPOSAL
    scene.note(0, sequence, 12, 16, begins=False)
    assert scene.draft(0, sequence, 17, 4) == []
    scene.note(0, sequence, 16, 17, begins=False)
    assert scene.draft(0, sequence, 18, 4) == right(TEXT[:18], 4)
    scene.note(0, sequence, 17, 36, begins=False)
    assert scene.draft(0, sequence, 37, 4) == right(TEXT[:37], 4)
    assert not any(head.wrong for head in scene.heads)
    other = scene.place(1, TEXT, [8, 9, 11])
    scene.note(1, other, 2 * BLOCK, 36, begins=True)
    assert scene.proposer._layers.texts[1].origin == 2 * BLOCK
    assert scene.draft(1, other, 37, 4) == right(TEXT[:37], 4)
    assert not any(head.wrong for head in scene.heads)


def test_short_drafts_leave_few_rows_to_further_layers():
    """Only the first layer draws. What it tells waits for the others, which then draw what is right."""
    scene = Pages(3)
    sequence = scene.place(0, TEXT, [8, 9, 10])
    for stop in range(1, 36):
        scene.note(0, sequence, stop - 1, stop, begins=stop == 1)
        assert scene.draft(0, sequence, stop + 1, 1) == right(TEXT[: stop + 1], 1)
        layers = scene.proposer._layers.texts[0].layers
        assert max(layer.count for layer in layers) <= MOST_WAITING
    scene.note(0, sequence, 35, 36, begins=False)
    assert scene.draft(0, sequence, 37, 5) == right(TEXT[:37], 5)
    assert not any(head.wrong for head in scene.heads)


def test_drafts_of_more_rows_than_a_step_takes():
    """At the third layer each of four drafts has two rows that read drafted tokens."""
    scene = Pages(3, max_num_batched_tokens=4)
    texts = {slot: [(slot + 3) * i % VOCAB for i in range(40)] for slot in range(4)}
    placed = {slot: scene.place(slot, text, [2 * slot, 2 * slot + 1]) for slot, text in texts.items()}
    for slot, sequence in placed.items():
        for start in range(0, 12, 3):
            scene.note(slot, sequence, start, start + 3, begins=not start)
    found = scene.draft_all({slot: (sequence, 13) for slot, sequence in placed.items()}, 5)
    assert found == [right(text[:13], 5) for text in texts.values()]
    assert not any(head.wrong for head in scene.heads)
