"""Snapshots of recurrent states are made at some boundaries of blocks, and some prompts begin with one."""

from __future__ import annotations

import pytest

from firelane.contract import CAUSAL, NO_SNAPSHOT, ZERO_STATE, Window
from firelane.kv import SnapshotRule
from tests.engine.resume import resumed

RULE = SnapshotRule(interval=1000, at_least=1)
MODEL = {"has_state": True}


@pytest.fixture
def stateful(driver):
    def make(**sizes):
        given = {"num_snapshots": 16, "state_bytes": 64, "snapshots": RULE, "num_blocks": 64}
        return driver(**{**given, **sizes})

    return make


def begin_and_save(d):
    """(start, from, length, save) of each chunk of the step in flight."""
    inputs = d.executor.pending
    count = inputs.num_chunks
    columns = (inputs.chunk_start, inputs.chunk_from, inputs.chunk_len, inputs.chunk_save)
    return list(zip(*(column[:count].tolist() for column in columns), strict=True))


def prompt(length, first=0):
    return [(first + i) % 50 for i in range(length)]


def test_a_prefill_ends_a_chunk_at_its_last_block_boundary(stateful, request_of):
    d = stateful()
    d.submit(request_of(1, prompt(11)))
    d.step()
    ((start, begin, length, save),) = begin_and_save(d)
    assert (start, begin, length) == (0, ZERO_STATE, 8)
    assert save >= d.limits.max_num_seqs
    d.step()
    slot = d.core.table.running[1].slot
    assert begin_and_save(d) == [(8, slot, 3, NO_SNAPSHOT)]
    d.run()


def test_snapshots_at_each_interval_and_not_too_near(stateful, request_of):
    d = stateful(snapshots=SnapshotRule(interval=14, at_least=6), max_num_batched_tokens=64)
    d.submit(request_of(1, prompt(38), max_tokens=1))
    lengths = []
    while 1 not in d.reasons:
        d.step()
        if d.executor.pending:
            lengths.append([(start + n, save != NO_SNAPSHOT) for start, _, n, save in begin_and_save(d)])
    assert lengths == [[(16, True)], [(32, True)], [(38, False)]]  # 36 is nearer to 32 than is worth a step


def test_a_short_prompt_is_not_cut(stateful, request_of):
    """Its first snapshot is the one of its decodes."""
    d = stateful(snapshots=None, max_num_batched_tokens=64)
    d.submit(request_of(1, prompt(15), max_tokens=1), request_of(2, prompt(19), max_tokens=1))
    d.step()
    assert [n for _, _, n, _ in begin_and_save(d)] == [15, 16]
    d.run()


@pytest.mark.parametrize("length", range(1, 26))
def test_hits_at_every_block(stateful, request_of, alone, length):
    """The first prompt is cut into chunks of one block, and leaves a snapshot at the end of each."""
    d = stateful(snapshots=SnapshotRule(interval=4, at_least=1))
    d.submit(request_of(1, prompt(24), max_tokens=1))
    d.run()
    request = request_of(2, [*prompt(length - 1), 49], max_tokens=9)
    d.submit(request)
    d.run()
    assert d.cached[2] == (length - 1) // 4 * 4
    assert (d.tokens[2], d.reasons[2]) == alone(request, 64, **MODEL)
    assert d.frames[-1].stats.state_snapshot_hits == (d.cached[2] > 0)


def test_pages_alone_make_no_hit(stateful, request_of, alone):
    d = stateful(num_snapshots=0)
    for i in range(2):
        d.submit(request_of(i, prompt(17)))
        d.run()
    assert d.cached == {0: 0, 1: 0}
    assert d.tokens[1] == alone(request_of(1, prompt(17)), 64, **MODEL)[0]


def test_without_a_prefix_cache_there_are_no_snapshots(stateful, request_of):
    d = stateful(prefix_cache=False)
    d.submit(request_of(1, prompt(30)))
    d.run()
    assert d.frames[-1].stats.state_snapshots_total == 0
    assert d.executor.states[d.limits.max_num_seqs :].max() == -1


def test_a_shared_prefix_gets_a_snapshot_when_the_second_prompt_shows_it(stateful, request_of, alone):
    """Prompts differ behind 18 tokens: no snapshot of the first one is of use to the second."""
    d = stateful()
    sent = [request_of(i, [*prompt(18), *prompt(12, first=20 + i)]) for i in range(3)]
    for request in sent:
        d.submit(request)
        d.run()
    assert d.cached == {0: 0, 1: 0, 2: 16}
    for request in sent:
        assert d.tokens[request.id] == alone(request, 64, **MODEL)[0]


def test_the_next_turn_begins_where_the_last_one_ended(stateful, request_of, alone):
    d = stateful()
    d.submit(request_of(1, prompt(9), max_tokens=14))
    d.run()
    conversation = [*prompt(9), *d.tokens[1]]
    request = request_of(2, [*conversation, 7, 7])
    d.submit(request)
    d.run()
    assert d.cached[2] == (len(conversation) - 1) // 4 * 4  # the last token drawn was never computed
    assert d.tokens[2] == alone(request, 64, **MODEL)[0]


def test_a_decode_keeps_one_snapshot_at_a_time(stateful, request_of):
    d = stateful()
    d.submit(request_of(1, prompt(9), max_tokens=40))
    named = []
    while 1 not in d.reasons:
        d.step()
        named.append(d.core.kv.states.num_named)
    assert max(named) == 2  # of the prompt, and the latest
    assert named[-1] == 2


def test_half_of_the_snapshots_are_not_for_decodes(stateful, request_of):
    d = stateful(num_snapshots=5)
    d.submit(*(request_of(i, prompt(3, first=i), max_tokens=30) for i in range(4)))
    d.run()
    assert d.core.kv.states.num_named == 3
    assert d.core.kv.states.latest_left == 3


def test_the_least_recently_used_is_taken_first(stateful, request_of):
    d = stateful(num_snapshots=2)
    for i, first in enumerate([0, 10, 0, 20, 0, 10]):
        d.submit(request_of(i, prompt(9, first=first), max_tokens=1))
        d.run()
    assert d.cached == {0: 0, 1: 0, 2: 8, 3: 0, 4: 8, 5: 0}


def test_a_snapshot_that_is_read_is_not_written_over(stateful, request_of, alone):
    """There is one snapshot, and the second prompt begins with it: it is not free before that step has
    ended, and is then, while the sequence runs on."""
    d = stateful(num_snapshots=1, max_num_batched_tokens=32)
    d.submit(request_of(1, prompt(9), max_tokens=1))
    d.run()
    request = request_of(2, prompt(30), max_tokens=5)
    d.submit(request)
    d.step()
    ((start, begin, _, save),) = begin_and_save(d)
    assert (start, begin, save) == (8, d.limits.max_num_seqs, NO_SNAPSHOT)
    assert d.core.kv.states.num_free == 0
    d.step()
    assert d.core.kv.states.num_free == 1
    d.run()
    assert d.tokens[2] == alone(request, 64, **MODEL)[0]


def test_many_begin_with_one_snapshot(stateful, request_of, alone):
    d = stateful()
    d.submit(request_of(0, prompt(9), max_tokens=1))
    d.run()
    sent = [request_of(i, prompt(9), max_tokens=9, seed=i) for i in range(1, 5)]
    d.submit(*sent)
    d.run()
    assert [d.cached[i] for i in range(1, 5)] == [8] * 4
    for request in sent:
        assert d.tokens[request.id] == alone(request, 64, **MODEL)[0]


def test_a_snapshot_is_held_from_the_admission_to_the_first_chunk(stateful, request_of, alone):
    """Two come before background work, and the step has tokens for the first of them alone."""
    d = stateful(max_num_seqs=8, max_num_batched_tokens=8, max_output_rows=8, num_blocks=200)
    d.core.policy.times.tokens_within = lambda _: 8.0
    d.submit(request_of(0, prompt(17), max_tokens=1))
    d.run()
    d.submit(*(request_of(i, [i], max_tokens=60, background=i == 1) for i in range(1, 7)))
    while len(d.tokens) < 7:
        d.step()
    sent = [request_of(i, [*prompt(17), i, i], max_tokens=4) for i in (10, 11)]
    d.submit(*sent)
    d.step()
    second = d.core.table.running[11]
    assert not second.row_written
    assert second.blocks.snapshots.read != NO_SNAPSHOT
    d.run()
    assert (d.cached[10], d.cached[11]) == (16, 16)
    for request in sent:
        assert d.tokens[request.id] == alone(request, 64, **MODEL)[0]


def test_tenants_share_none(stateful, request_of):
    d = stateful()
    for i, salt in enumerate([b"a", b"b", b"a"]):
        d.submit(request_of(i, prompt(9), salt=salt))
        d.run()
    assert d.cached == {0: 0, 1: 0, 2: 8}


def test_a_preempted_sequence_goes_on_from_a_snapshot(stateful, request_of, alone):
    d = stateful(num_blocks=14, max_num_seqs=3, max_output_rows=3)
    sent = [request_of(i, prompt(9, first=10 * i), max_tokens=16) for i in range(3)]
    d.submit(*sent)
    d.run()
    stats = d.frames[-1].stats
    assert stats.preemptions > 0
    assert stats.state_snapshot_hits > 0
    for request in sent:
        assert d.tokens[request.id] == alone(request, 64, **MODEL)[0]


def test_a_request_that_another_engine_began_goes_on_after_every_cut(stateful, request_of, alone):
    request = request_of(1, prompt(9), max_tokens=16)
    tokens, _ = alone(request, 64, **MODEL)
    d = stateful()
    d.submit(*(resumed(request, tokens[:cut], 100 + cut) for cut in range(1, 16)))
    d.run()
    for cut in range(1, 16):
        assert d.tokens[100 + cut] == tokens[cut:]


@pytest.mark.parametrize("depth", [1, 2])
def test_an_abort_leaves_no_snapshot_held(stateful, request_of, depth):
    d = stateful(max_in_flight=depth)
    d.submit(request_of(1, prompt(30), max_tokens=20), request_of(2, prompt(8), max_tokens=20))
    for turn in range(12):
        d.step()
        if turn in (1, 8):
            d.abort(1 + (turn == 8))
    d.run()
    assert d.reasons == {1: "abort", 2: "abort"}


def test_an_embedding_leaves_no_snapshot_and_may_begin_with_one(stateful, request_of, embedding_of):
    d = stateful()
    request = request_of(1, prompt(17), pooling="last")
    d.submit(request)
    d.run()
    assert d.core.kv.states.num_named == 0
    d.submit(request_of(2, prompt(17), max_tokens=1))
    d.run()
    again = request_of(3, prompt(17), pooling="last")
    d.submit(again)
    d.run()
    assert d.cached[3] == 16
    assert d.embeddings[1] == d.embeddings[3] == embedding_of(request, **MODEL)


def test_a_scored_prompt_is_computed_whole_and_leaves_snapshots(stateful, request_of):
    d = stateful()
    for i in range(2):
        d.submit(request_of(i, prompt(17), prompt_logprobs=1))
        d.run()
    d.submit(request_of(2, prompt(17)))
    d.run()
    assert d.cached == {0: 0, 1: 0, 2: 16}


def test_all_kinds_of_layers_agree_on_one_length(stateful, request_of, alone, tiles):
    """Full pages up to 40, a window's up to 40, and the last snapshot at 32."""
    with tiles(4):
        rule = SnapshotRule(interval=32, at_least=9)
        d = stateful(spans=(CAUSAL, Window(8)), snapshots=rule, num_blocks=80)
        d.submit(request_of(1, prompt(41), max_tokens=1))
        d.run()
        request = request_of(2, [*prompt(41), 3, 3], max_tokens=6)
        d.submit(request)
        d.run()
        assert d.cached[2] == 32
        assert d.tokens[2] == alone(request, 64, spans=d.limits.spans, has_state=True)[0]
