"""Pages that a sequence gave up while a step in flight still writes to them: the next step may have them, as
it runs behind, and what comes from elsewhere may not."""

from __future__ import annotations

import pytest

from firelane.kv import SnapshotRule, WantedPage
from firelane.kv.pool import STATES

SIZES = {"max_num_seqs": 6, "max_output_rows": 6, "state_bytes": 8, "num_snapshots": 30}
WANTED = [WantedPage(0, b"n" * 16)]
STATE = [WantedPage(STATES, b"n" * 16)]


@pytest.fixture
def pipeline(driver):
    return driver(
        max_in_flight=2, is_pipelined=True, num_blocks=20, snapshots=SnapshotRule(interval=4), **SIZES
    )


def test_nothing_comes_into_pages_of_a_step_in_flight(pipeline, request_of, alone):
    d, kv = pipeline, pipeline.core.kv
    requests = [request_of(i, range(i, i + 5), max_tokens=20) for i in range(6)]
    d.submit(*requests)
    held_up = 0
    while len(d.reasons) < 6:
        d.step()
        free = kv.num_available
        pages = kv.incoming.begin(WANTED, min(1, free))
        states = kv.states.incoming.begin(STATE, 1)
        if d.core.table.is_released_in_flight():
            assert (pages, states) == ([], [])
            held_up += free > 0
        if pages:
            kv.incoming.settle(pages, [False])
        if states:
            kv.states.incoming.settle(states, [False])
    assert held_up > 0
    for request in requests:
        assert d.tokens[request.id] == alone(request, 64, has_state=True)[0]


def test_pages_are_there_again_when_the_step_has_ended(pipeline, request_of):
    d, table = pipeline, pipeline.core.table
    d.submit(*(request_of(i, range(i, i + 5), max_tokens=20) for i in range(6)))
    while not table.is_released_in_flight():
        d.step()
    d.core.abort_all()
    d.run()
    assert not table.is_released_in_flight()
    pages = d.core.kv.incoming.begin(WANTED, 1)
    assert len(pages) == 1
    d.core.kv.incoming.settle(pages, [False])
