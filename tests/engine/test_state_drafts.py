"""Drafts of a model with recurrent state: of one that is wrong what was right is computed once more, and a
request gets the tokens that it gets one by one."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firelane.contract import CAUSAL, NO_SNAPSHOT, Chunk, Window, kept_from
from firelane.engine.policies.fcfs import FcfsPolicy
from firelane.engine.speculation.draft_length import DraftLength
from firelane.kv import SnapshotRule
from tests.engine.oracle import Oracle
from tests.engine.test_state_schedules import follow_up, model_of, outcome
from tests.free_steps import make_steps_free

SEED = 7
spans = st.lists(
    st.one_of(st.just(CAUSAL), st.builds(Window, st.integers(1, 12)), st.builds(Chunk, st.integers(1, 12))),
    min_size=1,
    max_size=3,
).map(tuple)
sizes = st.fixed_dictionaries(
    {
        "max_num_seqs": st.integers(1, 5),
        "max_output_rows": st.integers(5, 30),
        "max_num_batched_tokens": st.integers(6, 40),
        "max_model_len": st.integers(30, 60),
        "block_size": st.sampled_from([1, 2, 4]),
        "num_blocks": st.integers(30, 80),
        "prefix_cache": st.sampled_from([True, True, True, False]),
        "spans": st.one_of(st.just((CAUSAL,)), spans),
        "max_in_flight": st.sampled_from([1, 2, 3]),
        "is_pipelined": st.booleans(),
        "num_snapshots": st.sampled_from([40, 8, 2, 0]),
        "num_spares": st.sampled_from([5, 2, 1]),
        "state_bytes": st.just(64),
        "snapshots": st.builds(SnapshotRule, interval=st.integers(1, 12), at_least=st.integers(1, 5)),
    }
)
requests = st.fixed_dictionaries(
    {
        "prompt": st.lists(st.integers(0, 9), min_size=1, max_size=20),
        "max_tokens": st.integers(1, 25),
        "min_tokens": st.integers(0, 3),
        "stop_token_ids": st.lists(st.integers(0, 49), max_size=4, unique=True),
        "tenant": st.sampled_from(["a", "a", "b"]),
        "background": st.sampled_from([False, False, True]),
        "prompt_logprobs": st.sampled_from([-1, -1, -1, 1]),
        "seed": st.just(SEED),
    }
)
# A turn: new requests, requests that go on with what an earlier one has said, and which one is aborted.
turns = st.tuples(
    st.lists(requests, min_size=1, max_size=2),
    st.lists(st.tuples(st.integers(0, 30), st.lists(st.integers(0, 49), max_size=4)), max_size=1),
    st.one_of(st.none(), st.none(), st.integers(0, 30)),
)


class Undaunted(DraftLength):
    """Drafts the same length again, whatever became of those before."""

    def note(self, drafted, accepted):
        pass


def check_pages(d):
    """No chunk in flight writes to a page that others may find, or reads one that was given back."""
    inputs, size = d.executor.pending, d.limits.block_size
    for i in range(inputs.num_chunks if inputs else 0):
        blocks, start = d.core.table.at(int(inputs.chunk_slot[i])).blocks, int(inputs.chunk_start[i])
        if blocks is None:  # preempted
            continue
        assert blocks.published_blocks * size <= start
        for first, span in zip(blocks.first, d.limits.spans, strict=True):
            assert first <= kept_from(span, start) // size


@settings(max_examples=120, deadline=None)
@given(
    sizes=sizes,
    errors=st.lists(st.booleans(), max_size=80),
    schedule=st.lists(turns, min_size=1, max_size=8),
    is_fair=st.booleans(),
    is_undaunted=st.booleans(),
)
def test_random_schedules(driver, request_of, alone, tiles, sizes, errors, schedule, is_fair, is_undaunted):
    oracle = Oracle(SEED, sizes["spans"], itertools.cycle(errors or [False]), has_state=True)
    policy = None if is_fair else FcfsPolicy()
    with tiles(2), pytest.MonkeyPatch.context() as patch:
        if is_undaunted:
            patch.setattr("firelane.engine.speculation.drafter.DraftLength", Undaunted)
        d, sent, aborted = driver(policy=policy, proposer=oracle, **sizes), [], set()
        if is_undaunted:
            make_steps_free(d.core.drafter)
        for batch, later, abort in schedule:
            first = len(sent)
            sent += [request_of(first + i, **fields) for i, fields in enumerate(batch)]
            for which, new_tokens in later:
                sent.append(follow_up(d, sent, which, new_tokens, request_of, seed=SEED))
            d.submit(*sent[first:])
            if abort is not None:
                aborted.add(abort)
                d.abort(abort)
            d.step()
            check_pages(d)
        d.run(max_steps=5000)
        for request in sent:
            if request.id in d.rejected:
                assert "the prompt has" in d.rejected[request.id]
                continue
            longest = min(d.limits.max_model_len, d.core.kv.max_tokens + 1)
            expected = alone(request, longest, **model_of(d))
            if d.reasons[request.id] == "abort":
                assert request.id in aborted
                assert d.tokens.get(request.id, []) == expected[0][: len(d.tokens.get(request.id, []))]
            else:
                assert outcome(d, request) == expected


class Scripted:
    """Drafts `length` tokens, of which the first so many are right: the next number of `right` each time."""

    def __init__(self, length, right, spans=(CAUSAL,)):
        self.length, self.right, self.spans = length, iter(right), spans

    def propose(self, asked):
        found = []
        for one in asked:
            right = next(self.right, self.length)
            errors = iter([False] * right + [True])
            found += Oracle(SEED, self.spans, errors, has_state=True).propose(
                [one._replace(most=min(one.most, self.length))]
            )
        return found

    def forget(self, tenant):
        pass


@pytest.fixture
def drafting(driver, monkeypatch):
    """An engine whose steps with drafts are worth it."""
    monkeypatch.setattr("firelane.engine.speculation.drafter.DraftLength", Undaunted)

    def make(proposer, **sizes):
        given = {
            "num_snapshots": 8,
            "num_spares": 2,
            "state_bytes": 64,
            "num_blocks": 64,
            "max_output_rows": 40,
            "max_num_batched_tokens": 40,
            "block_size": 16,
        }
        d = driver(proposer=proposer, **(given | sizes))
        make_steps_free(d.core.drafter)
        return d

    return make


def chunks_of(d):
    """(start, length, from, drafted, spare, rows) of each chunk of the step in flight."""
    inputs = d.executor.pending
    found = []
    for i in range(inputs.num_chunks):
        rows = int((inputs.row_slot[: inputs.num_rows] == inputs.chunk_slot[i]).sum())
        columns = (inputs.chunk_start, inputs.chunk_len, inputs.chunk_from, inputs.chunk_drafted)
        found.append((*(int(column[i]) for column in columns), rows))
    return found


@pytest.mark.parametrize("right", range(5))
def test_what_is_right_of_a_draft_is_computed_once_more(drafting, request_of, alone, right):
    """The step after a draft that is right altogether goes on behind it."""
    d = drafting(Scripted(4, [right]))
    request = request_of(1, range(5), max_tokens=30, seed=SEED)
    d.submit(request)
    while not d.executor.pending or not d.executor.pending.chunk_drafted[0]:
        d.step()
    ((start, length, begin, drafted, rows),) = chunks_of(d)
    assert (length, drafted, rows) == (5, 4, 5)
    d.step()
    ((then, length, begin, drafted, rows),) = chunks_of(d)
    if right == 4:
        assert (then, begin) == (start + 5, d.limits.first_spare)
        assert rows == length == drafted + 1
    else:
        assert (then, begin, rows) == (start + 1, 0, drafted + 1)
        assert length == right + 1 + drafted
    d.run()
    assert (d.tokens[1], d.reasons[1]) == alone(request, 64, has_state=True)


@pytest.mark.parametrize("block_size", [1, 4, 16])
def test_a_rejection_at_every_position_in_turn(drafting, request_of, alone, tiles, block_size):
    right, spans = [n for pair in itertools.product(range(5), repeat=2) for n in pair], (CAUSAL, Window(3))
    with tiles(1):
        for first in range(0, len(right), 7):
            d = drafting(
                Scripted(4, right[first:], spans), block_size=block_size, spans=spans, num_blocks=200
            )
            request = request_of(1, range(5), max_tokens=50, seed=SEED)
            d.submit(request)
            while 1 not in d.reasons:
                d.step()
                check_pages(d)
            assert d.tokens[1] == alone(request, 64, spans=d.limits.spans, has_state=True)[0]


def test_as_many_draft_as_have_a_spare_state(drafting, request_of, alone):
    d, most = drafting(Oracle(SEED, (CAUSAL,), iter(()), has_state=True)), 0
    sent = [request_of(i, [i, 2], max_tokens=20, seed=SEED) for i in range(4)]
    d.submit(*sent)
    while len(d.reasons) < 4:
        d.step()
        if d.executor.pending:
            most = max(most, sum(drafted > 0 for *_, drafted, _ in chunks_of(d)))
    assert most == 2
    for request in sent:
        assert d.tokens[request.id] == alone(request, 64, has_state=True)[0]


def test_without_spare_states_nothing_is_drafted(drafting, request_of):
    d = drafting(Oracle(SEED, (CAUSAL,), iter(()), has_state=True), num_spares=0)
    d.submit(request_of(1, range(5), max_tokens=20, seed=SEED))
    d.run()
    assert not d.core.drafter.is_on
    assert d.frames[-1].stats.spec_drafts == 0


def test_a_drafting_sequence_leaves_snapshots(drafting, request_of):
    """A state behind a whole block is saved whether a draft follows it or not."""
    d = drafting(Scripted(1, itertools.cycle([1, 0])), block_size=4)
    d.submit(request_of(1, range(4), max_tokens=50, seed=SEED))
    saved = 0
    while 1 not in d.reasons:
        d.step()
        inputs = d.executor.pending
        saved += bool(inputs and inputs.chunk_drafted[0] and inputs.chunk_save[0] != NO_SNAPSHOT)
    assert saved > 1


def test_all_that_is_computed_anew_fits_into_a_step(drafting, request_of, alone):
    """Beside a token of every sequence: drafts are no longer than that."""
    d = drafting(
        Oracle(SEED, (CAUSAL,), itertools.cycle([False, False, True]), has_state=True),
        max_num_batched_tokens=7,
        num_spares=4,
    )
    sent = [request_of(i, [i, 2, 3], max_tokens=30, seed=SEED) for i in range(6)]
    d.submit(*sent)
    d.run()
    assert d.frames[-1].stats.spec_accepted_tokens > 0
    for request in sent:
        assert d.tokens[request.id] == alone(request, 64, has_state=True)[0]
