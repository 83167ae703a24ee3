"""Steps of a pipeline: as many at a time as stages, each with sequences of its own."""

from __future__ import annotations

from collections import Counter

import pytest


class Log:
    """Slots and tokens of each step, in order of submission."""

    def __init__(self, executor):
        self.slots, self.tokens = [], []
        submit = executor.submit

        def submitting(inputs):
            self.slots.append(frozenset(inputs.chunk_slot[: inputs.num_chunks].tolist()))
            self.tokens.append(inputs.num_tokens)
            submit(inputs)

        executor.submit = submitting


@pytest.fixture
def pipeline(driver):
    def make(stages=2):
        sizes = {"max_num_seqs": 8, "max_output_rows": 8, "num_blocks": 128}
        d = driver(max_in_flight=stages, is_pipelined=True, **sizes)
        return d, Log(d.executor)

    return make


@pytest.mark.parametrize("stages", [2, 4])
def test_groups_of_equal_size_take_turns(pipeline, request_of, alone, stages):
    d, log = pipeline(stages)
    requests = [request_of(i, [i], max_tokens=20) for i in range(8)]
    d.submit(*requests)
    d.run()
    assert d.executor.most_in_flight == stages
    groups = log.slots[1 : 1 + stages]
    assert [len(group) for group in groups] == [8 // stages] * stages
    assert frozenset().union(*groups) == frozenset(range(8))
    assert log.slots[1:] == groups * 19
    for request in requests:
        assert d.tokens[request.id] == alone(request, 64)[0]


def test_one_sequence_has_one_step_in_flight(pipeline, request_of, alone):
    d, log = pipeline()
    d.submit(request_of(1, range(5), max_tokens=20))
    d.run()
    assert (d.executor.most_in_flight, len(log.slots)) == (1, 20)
    assert d.tokens[1] == alone(request_of(1, range(5), max_tokens=20), 64)[0]


def test_chunks_of_a_prompt_follow_each_other(pipeline, request_of, alone):
    d, log = pipeline()
    request = request_of(1, range(48), max_tokens=4)
    d.submit(request)
    d.step()
    d.step()
    assert log.tokens == [16, 16]
    assert d.executor.most_in_flight == 2
    d.run()
    assert log.tokens == [16, 16, 16, 1, 1, 1]
    assert d.tokens[1] == alone(request, 64)[0]


def test_an_arriving_sequence_joins_the_smaller_group(pipeline, request_of):
    d, log = pipeline()
    d.submit(*(request_of(i, [i], max_tokens=30) for i in range(5)))
    for _ in range(6):
        d.step()
    assert sorted(map(len, log.slots[-2:])) == [2, 3]
    d.submit(request_of(5, [5], max_tokens=20))
    for _ in range(8):
        d.step()
    assert [len(group) for group in log.slots[-2:]] == [3, 3]
    d.run()


def test_groups_are_balanced_when_sequences_end(pipeline, request_of):
    """All of one group end, and one of the other."""
    d, log = pipeline()
    requests = [request_of(i, [i], max_tokens=30) for i in range(6)]
    d.submit(*requests)
    for _ in range(5):
        d.step()
    ending = log.slots[-1]
    d.abort(next(r.id for r in requests if d.core.table.get(r.id).slot not in ending))
    for request in requests:
        sequence = d.core.table.get(request.id)
        if sequence is not None and sequence.slot in ending:
            d.abort(request.id)
    for _ in range(6):
        d.step()
    assert [len(group) for group in log.slots[-2:]] == [1, 1]
    d.run()


def test_every_sequence_gets_its_turn(pipeline, request_of):
    """With groups that cannot be equal none is left behind by more than a turn."""
    d, log = pipeline()
    d.submit(*(request_of(i, [i], max_tokens=40) for i in range(7)))
    for _ in range(29):
        d.step()
    turns = Counter(slot for group in log.slots for slot in group)
    assert max(turns.values()) - min(turns.values()) <= 1
    d.run()
