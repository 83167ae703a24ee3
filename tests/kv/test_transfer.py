"""The contract of page transfer, over each transport: what may happen to a peer, and that nothing of it gives
a page whose content is not the one of its name."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from firelane.contract import HostPages
from firelane.errors import PeerLostError
from firelane.kv import WantedPage
from firelane.kv.transfer import reader
from firelane.kv.transfer.native import page_copier
from firelane.kv.transfer.page_copy import PageCopier, checksum
from tests.kv.transfer_engines import (
    PAGE_BYTES,
    STATE_BYTES,
    Engine,
    assert_same,
    attach,
    engine_of,
    pair,
    prompt,
    with_checksum,
)


@pytest.fixture(params=["plain", "native"], scope="module")
def copier(request, cache_dir):
    return PageCopier() if request.param == "plain" else page_copier(cache_dir)


@pytest.fixture(params=["shm", "tcp", "ciphered", "nixl", "copied"])
def transport(request, copier):
    return request.param, copier


def test_pages_come_by_their_names(transport):
    with pair(transport) as (there, here):
        peer = attach(transport, there, here)
        assert peer == there.transfer.engine_id
        way = {"copied": "tcp", "ciphered": "tcp"}.get(transport[0], transport[0].removesuffix("-installed"))
        assert here.transfer.transport(peer) == way
        expected = there.fill(prompt(80))
        wanted = here.wanted(prompt(81))
        settled = here.pull(peer, wanted)
        assert (settled.outcome, settled.nbytes) == ("ok", 20 * PAGE_BYTES)
        assert_same(here.content(wanted), expected)
        assert here.kv.search.lookup(here.kv.chain(b""), prompt(81), 81).num_blocks == 20
        assert not here.wanted(prompt(81))


def test_only_missing_pages_travel(transport):
    with pair(transport) as (there, here):
        peer = attach(transport, there, here)
        there.fill(prompt(32))
        here.fill(prompt(12))
        wanted = here.wanted(prompt(33))
        assert len(wanted) == 5
        assert here.pull(peer, wanted).nbytes == 5 * PAGE_BYTES


def test_a_tenant_finds_no_pages_of_another(transport):
    with pair(transport) as (there, here):
        peer = attach(transport, there, here)
        there.fill(prompt(16), salt=b"acme")
        settled = here.pull(peer, here.wanted(prompt(17), salt=b"other"))
        assert (settled.outcome, settled.nbytes) == ("stale", 0)
        assert here.kv.num_used_pages == 0


def test_pages_that_are_not_there_are_missing_and_the_others_come(transport):
    with pair(transport) as (there, here):
        peer = attach(transport, there, here)
        expected = there.fill(prompt(16))
        wanted = here.wanted(prompt(33))
        settled = here.pull(peer, wanted)
        assert (settled.outcome, settled.arrived) == ("stale", [True] * 4 + [False] * 4)
        assert_same(here.content(wanted), expected)


def test_a_page_that_is_given_out_while_it_is_copied_is_stale(transport):
    with pair(transport) as (there, here):
        peer = attach(transport, there, here)
        expected = there.fill(prompt(16))

        def given_out(page):
            there.kv.forget()
            return checksum(page)

        with_checksum(there, given_out)
        wanted = here.wanted(prompt(17))
        settled = here.pull(peer, wanted)
        assert settled.outcome == "stale"
        assert not any(settled.arrived)
        assert not here.content(wanted)
        there.pool.copier = transport[1]
        expected = there.fill(prompt(16))
        assert here.pull(peer, wanted).outcome == "ok"
        assert_same(here.content(wanted), expected)


def test_altered_bytes_are_not_used(transport):
    with pair(transport) as (there, here):
        peer = attach(transport, there, here)
        there.fill(prompt(16))
        spoilt = iter([False, True, False, False])

        def altered(page):
            result = checksum(page)
            page[4321] ^= 8 * next(spoilt)
            return result

        with_checksum(there, altered)
        settled = here.pull(peer, here.wanted(prompt(17)))
        assert (settled.outcome, settled.arrived) == ("stale", [True, False, True, True])


def test_a_peer_that_is_not_attached_is_lost(transport):
    with pair(transport) as (there, here):
        assert here.pull("nobody", here.wanted(prompt(9))).outcome == "lost"
        peer = attach(transport, there, here)
        here.transfer.detach(peer)
        assert here.pull(peer, here.wanted(prompt(9))).outcome == "lost"


def test_a_peer_that_hangs_up_is_lost_and_told_of_once(transport):
    with pair(transport) as (there, here):
        peer = attach(transport, there, here)
        there.transfer.close()
        assert [here.pull(peer, here.wanted(prompt(9))).outcome for _ in range(2)] == ["lost", "lost"]
        assert [one for one, _ in here.lost] == [peer]


def test_a_slow_peer_is_late_and_its_pages_stay_reserved_until_then(transport):
    with pair(transport) as (there, here):
        peer = attach(transport, there, here)
        there.fill(prompt(16))
        go_on = threading.Event()
        with_checksum(there, lambda page: go_on.wait(60) and checksum(page))
        settled = here.pull(peer, here.wanted(prompt(17)), deadline_s=0.05)
        go_on.set()
        assert (settled.outcome, settled.arrived) == ("late", [False] * 4)
        assert [one for one, _ in here.lost] == [peer]
        again = attach(transport, there, here)
        assert here.pull(again, here.wanted(prompt(17))).outcome == "ok"


def test_another_life_is_another_peer(transport):
    with pair(transport) as (there, here):
        peer = attach(transport, there, here)
        there.transfer.close()
        other = engine_of(transport)
        other.fill(prompt(16))
        try:
            again = attach(transport, other, here)
            assert again != peer
            assert here.pull(peer, here.wanted(prompt(17))).outcome == "lost"
            assert here.pull(again, here.wanted(prompt(17))).outcome == "ok"
        finally:
            other.close()


@pytest.mark.parametrize(
    ("reader", "reason"),
    [
        ({"identity": "another"}, "another model"),
        ({"layout_id": "another"}, "laid out differently: another"),
        ({"page_bytes": 512}, r"laid out differently: layout \(512 B\)"),
        ({"key": b"other"}, "keys of the cluster differ"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(transport, reader, reason):
    with pair(transport, reader=reader) as (there, here), pytest.raises(PeerLostError, match=reason):
        attach(transport, there, here)


def test_pages_are_private_unless_both_can_map_them(copier):
    """A source without a file in memory sends its pages over the Unix socket."""
    there, here = Engine(maps=False, copier=copier), Engine(maps=True, copier=copier)
    try:
        expected = there.fill(prompt(16))
        peer = attach(("shm", copier), there, here)
        wanted = here.wanted(prompt(17))
        assert here.pull(peer, wanted).outcome == "ok"
        assert_same(here.content(wanted), expected)
    finally:
        here.close()
        there.close()


def test_the_longest_state_that_is_there_comes(transport):
    with pair(transport, has_states=True) as (there, here):
        peer = attach(transport, there, here)
        there.save(prompt(8))
        expected = there.save(prompt(24))
        settled, state = here.pull_state(peer, prompt(41))
        assert (settled.outcome, settled.nbytes) == ("ok", STATE_BYTES)
        assert np.array_equal(state, expected)
        assert here.kv.search.lookup(here.kv.chain(b""), prompt(41), 41).num_blocks == 0
        there.fill(prompt(40))
        assert here.pull(peer, here.wanted(prompt(41))).outcome == "ok"
        assert here.kv.search.lookup(here.kv.chain(b""), prompt(41), 41).num_blocks == 6
        settled, state = here.pull_state(peer, prompt(41))
        assert (settled.state, state) == (-1, None)  # a shorter one is of no use now


def test_a_state_far_behind_the_end_is_found(transport, monkeypatch):
    monkeypatch.setattr(reader, "STATES_BATCH", 3)
    with pair(transport, has_states=True) as (there, here):
        peer = attach(transport, there, here)
        expected = there.save(prompt(4))
        settled, state = here.pull_state(peer, prompt(41))
        assert settled.state == 9
        assert np.array_equal(state, expected)


@pytest.mark.parametrize("spoils", ["given out", "altered", "nothing there"])
def test_a_state_that_is_not_what_it_was_said_to_be_does_not_come(transport, spoils):
    with pair(transport, has_states=True) as (there, here):
        peer = attach(transport, there, here)
        if spoils != "nothing there":
            there.save(prompt(8))

        def spoilt(page):
            result = checksum(page)
            if spoils == "given out":
                there.kv.forget()
            else:
                page[4321] ^= 8
            return result

        with_checksum(there, spoilt)
        settled, state = here.pull_state(peer, prompt(13))
        assert (settled.outcome, settled.state, settled.nbytes, state) == ("ok", -1, 0, None)
        assert here.kv.states.num_named == 0


def test_a_model_with_states_has_no_pages_of_one_without(transport):
    facts = {"has_states": True}
    with (
        pair(transport, reader=facts) as (there, here),
        pytest.raises(PeerLostError, match=r"laid out differently: layout\+states \(9000 B, 20032 B\)"),
    ):
        attach(transport, there, here)


def test_memory_layouts_are_seen_as_they_are():
    memory = HostPages(pages=np.zeros((3, 5), np.uint8), layout_id="x")
    assert (memory.num_pages, memory.page_bytes, memory.fd) == (3, 5, -1)
    assert WantedPage(0, b"n").group == 0
