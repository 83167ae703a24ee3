"""Prompts whose pages lie in tiers and with another engine: each page comes once, from the nearest, and the
tokens are those of an engine that has computed all of it."""

from __future__ import annotations

from contextlib import contextmanager

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firelane.contract import CAUSAL, Window
from firelane.engine.pages import page_waits, tier_reads
from firelane.engine.pages.page_waits import PageWaits
from firelane.engine.sequences.prerequisites import Prerequisites, Waited
from firelane.errors import RequestError
from firelane.kv import SnapshotRule, WantedPage
from firelane.kv.tiers import HostTier
from tests.engine.handed_over import connected
from tests.engine.test_resume import VARIETIES, outcome
from tests.engine.test_tiered_pages import HeldUp, forget_pages, page_bytes_of, tiered

STATES = {"state_bytes": 8, "num_snapshots": 12, "snapshots": SnapshotRule(interval=8, at_least=4)}


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    """Enough on however slow a machine."""
    monkeypatch.setattr(tier_reads, "UNKNOWN_S", 60.0)
    for name in ("UNKNOWN_S", "LEAST_S", "MOST_S"):
        monkeypatch.setattr(page_waits, name, 60.0)


@contextmanager
def both(driver, tier=HostTier, *, slots=256, num_blocks=64, **sizes):
    """An engine that gives pages, and one with a tier that has them from there."""
    peer, engine = (driver(num_blocks=num_blocks, **sizes) for _ in range(2))
    with (
        connected(peer, engine) as (transfer, _),
        tiered(engine, tier(slots, page_bytes_of(engine))) as tiers,
    ):
        yield peer, engine, tiers, transfer.engine_id


def started(d, request_id):
    return next(s for f in d.frames for s in f.started if s.id == request_id)


def in_tier(d, tiers, request):
    """Its pages lie in the tier alone."""
    d.submit(request)
    d.run()
    forget_pages(d, tiers)


@pytest.mark.parametrize("fields", VARIETIES.values(), ids=VARIETIES)
def test_the_peer_gives_what_the_tier_lacks(driver, request_of, fields):
    request = request_of(3, range(25), **{"seed": 3, "max_tokens": 9, **fields})
    whole = driver()
    whole.submit(request)
    whole.run()
    with both(driver) as (peer, d, tiers, peer_id):
        in_tier(d, tiers, request_of(1, range(13), max_tokens=1))
        peer.submit(request_of(2, range(25), max_tokens=1))
        peer.run()
        d.submit(msgspec.structs.replace(request, pages_at=peer_id))
        d.run()
        assert outcome(d, 3) == outcome(whole, 3)
        told, stats = started(d, 3), d.frames[-1].stats
        if told.cached_tokens:  # nothing is reused of prompts whose log-probabilities are asked for
            assert (told.cached_tokens, told.host_tokens, told.peer_tokens) == (24, 12, 12)
            assert stats.pulled_bytes == 3 * page_bytes_of(d)
            assert stats.host_hits == 3


def test_a_tier_that_has_all_of_it_asks_nobody(driver, request_of, alone):
    request = request_of(3, range(17), seed=3)
    with both(driver) as (peer, d, tiers, peer_id):
        peer.submit(request)
        peer.run()
        in_tier(d, tiers, request_of(1, range(17), max_tokens=1))
        d.submit(msgspec.structs.replace(request, pages_at=peer_id))
        d.run()
        assert (d.tokens[3], d.reasons[3]) == alone(request, 64)
        assert started(d, 3).host_tokens == 16
        assert d.frames[-1].stats.pulls_ok == 0


def test_a_snapshot_of_the_tier_is_not_pulled(driver, request_of, alone):
    request = request_of(3, range(19), seed=3, max_tokens=6)
    with both(driver, **STATES) as (peer, d, tiers, peer_id):
        peer.submit(request)
        peer.run()
        in_tier(d, tiers, request_of(1, range(19), max_tokens=1))
        d.submit(msgspec.structs.replace(request, pages_at=peer_id))
        d.run()
        assert (d.tokens[3], d.reasons[3]) == alone(request, 64, has_state=True)
        assert started(d, 3).host_tokens == 16
        assert d.frames[-1].stats.pulls_ok == 0


def test_a_longer_prefix_with_its_snapshot_is_pulled(driver, request_of, alone):
    request = request_of(3, range(27), seed=3, max_tokens=6)
    with both(driver, **STATES) as (peer, d, tiers, peer_id):
        peer.submit(request)
        peer.run()
        in_tier(d, tiers, request_of(1, range(11), max_tokens=1))
        d.submit(msgspec.structs.replace(request, pages_at=peer_id))
        d.run()
        assert (d.tokens[3], d.reasons[3]) == alone(request, 64, has_state=True)
        told = started(d, 3)
        assert (told.cached_tokens, told.host_tokens, told.peer_tokens) == (24, 8, 16)


def test_a_tier_that_hangs_leaves_all_to_the_peer(driver, request_of, alone, monkeypatch):
    held_up = []

    def tier(*sizes):
        held_up.append(HeldUp(*sizes))
        return held_up[0]

    request = request_of(3, range(17), seed=3)
    with both(driver, tier) as (peer, d, tiers, peer_id):
        peer.submit(request)
        peer.run()
        in_tier(d, tiers, request_of(1, range(17), max_tokens=1))
        monkeypatch.setattr(tier_reads, "UNKNOWN_S", 0.05)
        d.submit(request_of(2, range(17), max_tokens=1))  # waits for the tier until it is late
        while 2 not in d.reasons:
            d.step()
        d.core.kv.forget()
        d.submit(msgspec.structs.replace(request, pages_at=peer_id))
        while 3 not in d.reasons:
            d.step()
        assert (d.tokens[3], d.reasons[3]) == alone(request, 64)
        assert (started(d, 3).host_tokens, started(d, 3).peer_tokens) == (0, 16)
        held_up[0].go_on.set()
        d.run()


def test_an_abort_while_both_bring_pages(driver, request_of):
    held_up = []

    def tier(*sizes):
        held_up.append(HeldUp(*sizes))
        return held_up[0]

    with both(driver, tier, num_blocks=10) as (peer, d, tiers, peer_id):
        peer.submit(request_of(1, range(29), max_tokens=1))
        peer.run()
        in_tier(d, tiers, request_of(1, range(13), max_tokens=1))
        d.submit(msgspec.structs.replace(request_of(2, range(29), max_tokens=1), pages_at=peer_id))
        d.step()
        d.abort(2)
        d.step()
        assert d.reasons[2] == "abort"
        held_up[0].go_on.set()
        d.run()
        assert d.core.kv.num_used_pages == 0
        d.core.kv.forget()
        d.submit(msgspec.structs.replace(request_of(3, range(29), max_tokens=1), pages_at=peer_id))
        d.run()
        assert d.cached[3] == 28, "who was aborted keeps no room"


class Slow(Prerequisites):
    """Each sequence becomes ready, or fails, when it is told so."""

    def __init__(self):
        self.waits, self.ended = {}, []

    @property
    def is_waiting(self):
        return bool(self.waits)

    def add(self, sequence, _):
        self.waits[sequence.id] = sequence
        return False

    def end(self, request_id, error=""):
        self.ended.append(Waited(self.waits.pop(request_id), RequestError(error) if error else None))

    def take(self):
        ended, self.ended = self.ended, []
        return ended

    def get(self, request_id):
        return self.waits.get(request_id)

    def waiting(self):
        return list(self.waits.values())

    def abort(self, sequence):
        del self.waits[sequence.id]


class Source:
    """Brings `page` until it is told that it has come."""

    def __init__(self, page=None):
        self.page, self.nearer, self.known, self.come = page, [], set(), set()
        self.is_busy = False

    def fetch(self, sequence, _, nearer):
        self.nearer.append(set(nearer))
        if self.page is None:
            return None
        self.known.add(sequence.id)
        return {self.page}

    def poll(self):
        pass

    def is_over(self, sequence):
        if sequence.id in self.come:
            self.known.remove(sequence.id)
        return sequence.id in self.come

    def give_up(self, sequence):
        self.known.discard(sequence.id)


class Request(msgspec.Struct):
    """In place of a sequence, too."""

    id: int


@pytest.fixture
def waits():
    inner, pages = Slow(), [WantedPage(0, bytes([i]), b"") for i in range(2)]
    waits = PageWaits(inner)
    waits.sources = Source(pages[0]), Source(None), Source(pages[1])
    assert not waits.add(Request(1), Request(1))
    return waits, inner, pages


def test_each_source_knows_what_nearer_ones_bring(waits):
    waits, _, pages = waits
    assert [source.nearer for source in waits.sources] == [[set()], [{pages[0]}], [{pages[0]}]]


def test_a_sequence_waits_for_all_of_it(waits):
    waits, inner, _ = waits
    first, _, last = waits.sources
    assert waits.is_waiting
    assert waits.get(1) == Request(1)
    assert waits.waiting() == [Request(1)]
    last.come.add(1)
    assert waits.take() == []
    inner.end(1)
    assert waits.take() == []
    assert waits.get(1) == Request(1)
    first.come.add(1)
    assert waits.take() == [(Request(1), None)]
    assert not waits.is_waiting
    assert waits.get(1) is None
    assert waits.waiting() == []


def test_what_is_ready_last_ends_the_wait(waits):
    waits, inner, _ = waits
    for source in waits.sources:
        source.come.add(1)
    assert waits.take() == []
    assert waits.waiting() == [Request(1)]
    inner.end(1)
    assert waits.take() == [(Request(1), None)]


def test_who_never_begins_is_given_up_everywhere(waits):
    waits, inner, _ = waits
    inner.end(1, "bad grammar")
    (ended,) = waits.take()
    assert (ended.sequence, str(ended.error)) == (Request(1), "bad grammar")
    assert not waits.is_waiting
    assert not any(source.known for source in waits.sources)


def test_an_abort_ends_all_waits(waits):
    waits, inner, _ = waits
    waits.abort(waits.get(1))
    assert inner.waits == {}
    assert not waits.is_waiting
    assert not any(source.known for source in waits.sources)


requests = st.tuples(
    st.sampled_from([(), range(8), range(14), range(20)]),
    st.lists(st.integers(0, 49), min_size=1, max_size=6),
    st.integers(1, 8),
    st.sampled_from(["here", "peer", "from peer"]),
)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.lists(requests, max_size=3), max_size=8),
    st.sampled_from([(CAUSAL,), (CAUSAL, Window(6)), (Window(5),)]),
    st.sampled_from([2, 12, 200]),
    st.integers(14, 26),
    st.sampled_from([None, None, (1, 40), (3, 12), (30, 1)]),
)
def test_random_schedules(driver, request_of, alone, schedule, spans, slots, num_blocks, states):
    """Whatever is with whom, each request gets what it would get alone."""
    sent = []
    sizes = {"spans": spans, "num_blocks": num_blocks * len(spans), "slots": slots}
    if states:
        rule = SnapshotRule(interval=4, at_least=states[0])
        sizes |= {"state_bytes": 8, "num_snapshots": states[1], "snapshots": rule}
    with both(driver, **sizes) as (peer, d, tiers, peer_id):
        for turn, arrivals in enumerate(schedule):
            for prefix, own, max_tokens, where in arrivals:
                request = request_of(len(sent), [*prefix, *own], max_tokens=max_tokens)
                sent.append((request, peer if where == "peer" else d))
                pages_at = peer_id if where == "from peer" else ""
                sent[-1][1].submit(msgspec.structs.replace(request, pages_at=pages_at))
            d.step()
            peer.step()
            if turn % 3 == 2:
                d.run()
                tiers.settle()
        d.run()
        peer.run()
        for request, engine in sent:
            expected = alone(request, 64, spans=spans, has_state=bool(states))
            assert (engine.tokens[request.id], engine.reasons[request.id]) == expected
        d.core.check_integrity()
