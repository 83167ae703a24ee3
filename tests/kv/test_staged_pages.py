"""Transfer of pages that are copied at both ends: some at a time, and none while there is no memory."""

from __future__ import annotations

import time

import numpy as np
import pytest

from firelane.errors import PeerLostError
from firelane.kv.transfer import outgoing
from firelane.kv.transfer.handshake import Side, join
from firelane.kv.transfer.messages import Find, Found, PageLine
from firelane.kv.transfer.outgoing import most_staged
from firelane.kv.transfer.page_copy import PageCopier
from tests.kv.shared_pages import page_memory
from tests.kv.transfer_engines import PAGE_BYTES, Engine, assert_same, attach, connection, pair, prompt

COPIED = "copied", PageCopier()


@pytest.fixture
def few(monkeypatch):
    """Room for three pages at a time."""
    monkeypatch.setattr(outgoing, "STAGED_BYTES", 3 * PAGE_BYTES + 1)


@pytest.mark.usefixtures("few")
def test_room_is_for_some_pages_or_for_a_large_one():
    sizes = [PAGE_BYTES, 2 * PAGE_BYTES, 4 * PAGE_BYTES, 1]
    assert [most_staged(page_memory(1, size, copied=True)) for size in sizes] == [3, 1, 1, 32]


@pytest.mark.usefixtures("few")
def test_all_pages_come_some_at_a_time():
    with pair(COPIED) as (there, here):
        peer = attach(COPIED, there, here)
        expected = there.fill(prompt(80))
        wanted = here.wanted(prompt(81))
        assert here.pull(peer, wanted).outcome == "ok"
        assert_same(here.content(wanted), expected)
        assert there.memory.copied == here.memory.copied == 20, "each is copied once"


def test_engines_of_one_machine_send_what_none_can_map():
    there, here = (Engine(maps=True, copied=True) for _ in range(2))
    try:
        expected = there.fill(prompt(16))
        peer = attach(("shm", PageCopier()), there, here)
        assert here.transfer.transport(peer) == "tcp"
        wanted = here.wanted(prompt(17))
        assert here.pull(peer, wanted).outcome == "ok"
        assert_same(here.content(wanted), expected)
    finally:
        here.close()
        there.close()


def test_who_copies_has_pages_of_who_does_not_and_the_other_way():
    there, here = Engine(maps=True), Engine(maps=True, copied=True)
    try:
        for source, reader, first in ((there, here, 0), (here, there, 500)):
            expected = source.fill(prompt(16, first))
            peer = attach(("shm", PageCopier()), source, reader)
            wanted = reader.wanted(prompt(17, first))
            assert reader.pull(peer, wanted).outcome == "ok"
            assert_same(reader.content(wanted), expected)
    finally:
        here.close()
        there.close()


def test_a_source_in_standby_has_no_pages():
    with pair(COPIED, has_states=True) as (there, here):
        peer = attach(COPIED, there, here)
        expected = there.fill(prompt(16))
        there.memory.is_away = True
        wanted = here.wanted(prompt(17))
        settled = here.pull(peer, wanted)
        assert (settled.outcome, settled.arrived) == ("stale", [False] * 4)
        there.memory.is_away = False
        assert here.pull(peer, wanted).outcome == "ok"
        assert_same(here.content(wanted), expected)


def test_a_reader_that_cannot_write_has_no_pages():
    with pair(COPIED) as (there, here):
        peer = attach(COPIED, there, here)
        there.fill(prompt(16))
        here.memory.is_away = True
        settled = here.pull(peer, here.wanted(prompt(17)))
        assert (settled.outcome, settled.arrived) == ("lost", [False] * 4)
        assert here.lost[0][1] == "pages of this engine cannot be written to"


@pytest.mark.usefixtures("few")
def test_no_more_pages_are_answered_than_there_is_room_for():
    """One message may ask for more; the pages beyond are told to be missing."""
    there, asks = Engine(maps=False, copied=True), Engine(maps=False, copied=True)
    try:
        expected = there.fill(prompt(40))
        sock, mine = connection(COPIED)
        there.transfer.export(sock)
        line = PageLine(mine)
        line.deadline_s = time.monotonic() + 20
        join(line, Side("asks", asks.pool, b""), maps=False)
        names = [page.name for page in asks.wanted(prompt(41))]
        line.send(Find([(0, name) for name in names]))
        found: Found = line.receive(Found)
        assert [page >= 0 for page in found.pages] == [True] * 3 + [False] * 7
        sent = np.zeros((3, PAGE_BYTES), np.uint8)
        line.receive_pages(PageCopier(), sent, np.arange(3))
        assert [row.tobytes() for row in sent] == [expected[name].tobytes() for name in names[:3]]
        line.close()
    finally:
        there.close()
        asks.close()


def test_other_ranks_are_refused_by_name():
    with (
        pair(COPIED, reader={"layout_id": "x of 2 ranks"}, layout_id="y of 4 ranks") as (there, here),
        pytest.raises(PeerLostError, match=r"x of 2 ranks .* is not y of 4 ranks .* number of ranks"),
    ):
        attach(COPIED, there, here)
