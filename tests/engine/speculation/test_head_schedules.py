"""A head beside the chain model, over random schedules: each of its drafts is right as long as every row that
it reads through its pages is that of the sequence."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firelane.contract import NOTHING, SlotState, StepInputs, StepLimits, StepOutputs
from firelane.engine.speculation.heads.head_proposer import HeadProposer
from firelane.engine.speculation.heads.head_rows import HeadRows
from firelane.engine.speculation.heads.head_steps import HeadSteps
from firelane.kv.prefix import tenant_id
from firelane.wire.frames import Abort
from tests.engine.chain_model import VOCAB, ChainExecutor, chain_hash, draw
from tests.engine.driver import Driver
from tests.free_steps import make_steps_free

BITS, WIDTH, SEED = 21, 4, 7
OWN = 2 * WIDTH
SIZES = {"max_num_seqs": 4, "max_num_batched_tokens": 40, "max_output_rows": 40, "max_model_len": 60}


def as_numbers(history: int) -> list[float]:
    """Exactly, behind a one."""
    return [1.0, *(float(history >> shift & (1 << BITS) - 1) for shift in (0, BITS, 2 * BITS))]


def as_history(numbers: np.ndarray) -> int:
    return sum(int(part) << shift for part, shift in zip(numbers[1:], (0, BITS, 2 * BITS), strict=True))


def chunk_of(inputs: StepInputs, i: int) -> tuple[int, int, int]:
    """Slot, first position and length."""
    return int(inputs.chunk_slot[i]), int(inputs.chunk_start[i]), int(inputs.chunk_len[i])


class TellingChain(ChainExecutor):
    """Tells of each row the hash of all tokens up to it."""

    features_out = WIDTH

    def __init__(self, limits: StepLimits) -> None:
        super().__init__(limits)
        self.submitted = None

    def submit(self, inputs):
        self.submitted = inputs
        super().submit(inputs)

    def wait(self):
        outputs, inputs = super().wait(), self.submitted
        features = []
        for i in range(inputs.num_chunks):
            slot, start, count = (
                int(a[i]) for a in (inputs.chunk_slot, inputs.chunk_start, inputs.chunk_len)
            )
            history = 0
            for position in range(start + count):
                history = chain_hash(history, int(self.state.tokens[slot, position]))
                features += [as_numbers(history)] if position >= start else []
        return replace(outputs, features=np.array(features, np.float32).reshape(-1, WIDTH))


class HeadChain:
    """An executor of a layer of a head whose draw follows from its row alone, and is right. It keeps each row
    in its page, and draws something else where a row of an earlier position does not lead to the next one.
    The last row of a page may have another token behind it; in further layers, whose rows read tokens further
    on, the last rows of a page may be those of another text."""

    features_in, features_out = 3 * WIDTH, WIDTH

    def __init__(self, limits: StepLimits, depth: int = 0) -> None:
        self.limits, self.state = limits, SlotState.allocate(limits, VOCAB)
        self.depth = depth
        self.pages = np.full((limits.num_blocks, limits.block_size, 1 + WIDTH), np.nan)
        self.wrong = 0

    def submit(self, inputs):
        self.inputs = inputs

    def wait(self):
        inputs, outputs = self.inputs, StepOutputs.allocate(self.limits, 1, WIDTH)
        at, row = 0, 0
        for i in range(inputs.num_chunks):
            slot, start, count = (
                int(a[i]) for a in (inputs.chunk_slot, inputs.chunk_start, inputs.chunk_len)
            )
            for position in range(start, start + count):
                self._store(slot, position, inputs.features[at])
                token, history = self._at(slot, position)
                behind = chain_hash(history, token)
                outputs.features[at] = as_numbers(behind)
                at += 1
            if inputs.num_rows:
                is_right = self._leads(slot, start + count)
                self.wrong += not is_right
                outputs.tokens[row] = (draw(behind, SEED) + (not is_right)) % VOCAB
                row += 1
        return outputs

    def _store(self, slot, position, numbers):
        told, own = numbers[WIDTH:OWN], numbers[OWN:]
        assert bool(told[0]) != bool(own[0])
        assert not (self.depth and told[0])
        page, offset = self._place(slot, position)
        self.pages[page, offset] = [numbers[0], *(told if told[0] else own)]

    def _place(self, slot, position):
        size = self.limits.block_size
        return self.state.block_tables[0, slot, position // size], position % size

    def _at(self, slot, position):
        token, *numbers = self.pages[self._place(slot, position)]
        return int(token), as_history(np.array(numbers))

    def _leads(self, slot, stop):
        """Each row's token leads to the next row; across pages some token does."""
        size = self.limits.block_size
        for position in range(stop - 1):
            if np.isnan(self.pages[self._place(slot, position)]).any():
                return False
            token, history = self._at(slot, position)
            if self.depth and (position + 1) % size == 0:
                continue
            tokens = [token] if (position + 1) % size else range(VOCAB)
            if self._at(slot, position + 1)[1] not in [chain_hash(history, one) for one in tokens]:
                return False
        return True

    def standby(self):
        self.pages.fill(np.nan)
        return NOTHING

    def wake(self):
        pass


class Scene:
    """An engine whose drafts come from the head; steps take no time."""

    def __init__(self, *, layers=1, **sizes):
        limits = StepLimits(**(SIZES | sizes))
        self.served, self.heads = TellingChain(limits), [HeadChain(limits, depth) for depth in range(layers)]
        table = np.zeros((VOCAB, WIDTH), np.float32)
        table[:, 0] = np.arange(VOCAB)
        rows = HeadRows(table=table, target_width=WIDTH, own_at=OWN, row_width=3 * WIDTH)
        steps = [HeadSteps(head, self.served) for head in self.heads]
        proposer = HeadProposer(rows, steps, self.served.state, clock=lambda: 0.0)
        self.d = Driver(self.served, proposer=proposer)
        self.drafter = self.d.core.drafter
        make_steps_free(self.drafter)

    @property
    def counts(self):
        return self.drafter.drafted_tokens, self.drafter.accepted_tokens


@pytest.mark.parametrize("layers", [1, 2, 3, 8])
def test_a_right_head_drafts_what_is_drawn(request_of, alone, layers):
    scene = Scene(layers=layers, block_size=4, num_blocks=32)
    request = request_of(1, range(9), max_tokens=50, seed=SEED)
    scene.d.submit(request)
    scene.d.run()
    assert (scene.d.tokens[1], scene.d.reasons[1]) == alone(request, 60)
    drafted, accepted = scene.counts
    assert drafted == accepted > 30
    assert scene.served.steps < 20


@pytest.mark.parametrize("layers", [1, 3])
def test_standby_loses_what_the_head_knew(request_of, alone, layers):
    """The prefix cache may find a prompt whose rows the head has lost: to it the text begins behind them, and
    its drafts are right as far as it knows."""
    scene = Scene(layers=layers, block_size=4, num_blocks=32)
    before = 0
    for number in (1, 2):
        request = request_of(number, range(30), max_tokens=20, seed=SEED)
        scene.d.submit(request)
        scene.d.run()
        assert scene.d.tokens[number] == alone(request, 60)[0]
        assert scene.counts[0] == scene.counts[1]
        assert scene.counts[0] > before
        before = scene.counts[0]
        scene.drafter.standby()
        scene.drafter.wake()
    assert scene.d.cached[2]
    assert not any(head.wrong for head in scene.heads)


sizes = st.fixed_dictionaries(
    {
        "max_num_seqs": st.integers(1, 4),
        "max_output_rows": st.integers(4, 30),
        "max_num_batched_tokens": st.integers(4, 40),
        "block_size": st.sampled_from([1, 2, 4, 8]),
    }
)
requests = st.fixed_dictionaries(
    {
        "prompt": st.lists(st.integers(0, 2), min_size=1, max_size=24),
        "max_tokens": st.integers(1, 24),
        "stop_token_ids": st.lists(st.integers(0, 49), max_size=4, unique=True),
        "salt": st.sampled_from([b"", b"other"]),
        "tenant": st.sampled_from(["a", "b"]),
        "seed": st.just(SEED),
    }
)


@settings(max_examples=150, deadline=None)
@given(
    sizes=sizes,
    pages=st.integers(0, 40),
    sent=st.lists(requests, min_size=1, max_size=8),
    aborted=st.sets(st.integers(0, 7), max_size=2),
    forgotten=st.booleans(),
    layers=st.sampled_from([1, 1, 2, 3, 5]),
)
def test_drafts_are_right_whatever_is_shared_preempted_or_forgotten(
    request_of, alone, sizes, pages, sent, aborted, forgotten, layers
):
    scene = Scene(layers=layers, **sizes, num_blocks=60 // sizes["block_size"] + 1 + pages)
    sent = [request_of(i, **fields) for i, fields in enumerate(sent)]
    scene.d.submit(*sent)
    for _ in range(5):
        scene.d.step()
    scene.d.channel.arrived.append(Abort(sorted(aborted)))
    if forgotten:
        scene.drafter.forget(tenant_id("a"))
    scene.d.run()
    for request in sent:
        tokens, reason = alone(request, 60)
        got = scene.d.tokens.get(request.id, [])
        if request.id in aborted and scene.d.reasons[request.id] == "abort":
            assert got == tokens[: len(got)]
        else:
            assert (got, scene.d.reasons[request.id]) == (tokens, reason)
    assert not any(head.wrong for head in scene.heads)
    assert scene.drafter.is_on
    if not aborted:
        assert scene.counts[0] == scene.counts[1]
