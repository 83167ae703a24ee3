"""Prompts whose pages a tier has: the tokens are those of an engine that has computed all of it."""

from __future__ import annotations

import threading
from contextlib import contextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firelane.contract import CAUSAL, Window
from firelane.engine.pages import page_waits, tier_reads
from firelane.kv import SnapshotRule
from firelane.kv.prefix import tenant_id
from firelane.kv.tiers import AdmitReused, CachedMemory, HostTier, TierAdmission, TieredPages
from tests.engine.test_resume import VARIETIES, outcome
from tests.kv.shared_pages import copied


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    """Enough on however slow a machine."""
    monkeypatch.setattr(tier_reads, "UNKNOWN_S", 60.0)
    for name in ("LEAST_S", "MOST_S"):
        monkeypatch.setattr(page_waits, name, 60.0)


def page_bytes_of(d):
    return d.executor.kv[0].nbytes


@contextmanager
def tiered(d, *tiers, admission=TierAdmission, copies=False):
    """The engine with these tiers; in the end they are closed. copies: its pages are no array."""
    pages, states = d.executor.page_memory, d.executor.state_memory
    if copies:
        pages, states = copied(pages), copied(states)
    memory = CachedMemory(pages, len(d.core.kv.spans), states)
    tiered = TieredPages(tiers, memory, d.core.kv, admission)
    d.core.have_tiers(tiered)
    try:
        yield tiered
    finally:
        tiered.close()


@contextmanager
def with_host(driver, slots=256, *, admission=TierAdmission, tenant_slots=None, copies=False, **sizes):
    d = driver(**sizes)
    host = HostTier(slots, page_bytes_of(d), tenant_slots)
    with tiered(d, host, admission=admission, copies=copies) as tiers:
        yield d, tiers, host


def forget_pages(d, tiers):
    """Forget all pages, so that it is as if others had taken them since."""
    tiers.settle()
    d.core.kv.forget()
    d.executor.kv.fill(-1)
    d.executor.states[d.limits.max_num_seqs :] = -1


@pytest.mark.parametrize("fields", VARIETIES.values(), ids=VARIETIES)
def test_the_same_tokens_behind_restored_pages(driver, request_of, fields):
    request = request_of(1, range(17), **{"seed": 3, "max_tokens": 16, **fields})
    whole = driver()
    whole.submit(request)
    whole.run()
    with with_host(driver) as (d, tiers, _):
        d.submit(request_of(2, range(17), max_tokens=1))
        d.run()
        forget_pages(d, tiers)
        d.submit(request)
        d.run()
        assert outcome(d, 1) == outcome(whole, 1)
        assert d.cached[1] == whole.cached[1] or d.cached[1] == 16
        started = next(s for f in d.frames for s in f.started if s.id == 1)
        assert started.host_tokens == d.cached[1]
        stats = d.frames[-1].stats
        assert stats.host_hits == d.cached[1] // 4
        assert stats.host_read_bytes == stats.host_hits * page_bytes_of(d)


def test_an_idle_engine_tells_what_its_tiers_have_stored_since(driver, request_of):
    with with_host(driver) as (d, tiers, host):
        d.submit(request_of(1, range(17), max_tokens=1))
        d.run()
        tiers.settle()
        d.step()
        assert d.frames[-1].stats.host_pages == len(host.index) > 0
        told = len(d.frames)
        d.step()
        assert len(d.frames) == told
        tiers.forget(tenant_id(""), lambda _: None)
        tiers.settle()
        d.step()
        assert d.frames[-1].stats.host_pages == 0


def test_pages_that_are_here_are_not_read(driver, request_of):
    with with_host(driver) as (d, tiers, _):
        for i in (1, 2):
            d.submit(request_of(i, range(17)))
            d.run()
            tiers.settle()
        assert d.cached[2] == 16
        assert d.frames[-1].stats.host_hits == 0


def test_windows_are_restored_too(driver, request_of):
    spans = (CAUSAL, Window(6), Window(6))
    request = request_of(1, range(21), max_tokens=6)
    whole = driver(spans=spans, num_blocks=64)
    whole.submit(request)
    whole.run()
    with with_host(driver, spans=spans, num_blocks=64) as (d, tiers, _):
        for i in (1, 2):
            d.submit(request_of(i, range(21), seed=1, max_tokens=6))
            d.run()
            forget_pages(d, tiers)
        assert d.cached[2] == 20
        assert d.tokens[1] == d.tokens[2] == whole.tokens[1]


STATES = {"state_bytes": 8, "num_snapshots": 9, "snapshots": SnapshotRule(interval=8, at_least=4)}


def test_snapshots_are_restored_with_the_pages_before_them(driver, request_of, alone):
    requests = [request_of(i, range(19), seed=i, max_tokens=6) for i in (1, 2)]
    with with_host(driver, **STATES) as (d, tiers, host):
        for request in requests:
            d.submit(request)
            d.run()
            forget_pages(d, tiers)
        assert d.cached == {1: 0, 2: 16}
        assert [(d.tokens[i], d.reasons[i]) for i in (1, 2)] == [
            alone(r, 64, has_state=True) for r in requests
        ]
        started = next(s for f in d.frames for s in f.started if s.id == 2)
        assert started.host_tokens == 16
        assert d.frames[-1].stats.host_hits == 5, "four pages and a state of one part"
        assert any(group == 1 for group, _ in map(lambda slot: host.index.owner(slot).key, range(6)))


def test_a_conversation_goes_on_behind_what_was_answered(driver, request_of):
    """The latest snapshot of a sequence is stored when it has ended."""
    with with_host(driver, **STATES) as (d, tiers, _):
        d.submit(request_of(1, range(5), max_tokens=10))
        d.run()
        forget_pages(d, tiers)
        d.submit(request_of(2, [*range(5), *d.tokens[1], 7, 7], max_tokens=2))
        d.run()
        assert d.cached[2] >= 8


class WithoutStates(HostTier):
    """Stores pages of the first group alone."""

    def contains(self, key):
        return key[0] == 0 and super().contains(key)


def test_pages_without_a_snapshot_are_not_read(driver, request_of):
    d = driver(**STATES)
    with tiered(d, WithoutStates(64, page_bytes_of(d))) as tiers:
        for i in (1, 2):
            d.submit(request_of(i, range(19), seed=1))
            d.run()
            forget_pages(d, tiers)
        assert d.cached[2] == 0
        assert d.frames[-1].stats.host_hits == 0
        assert d.tokens[1] == d.tokens[2]


def test_no_longer_a_prefix_than_there_is_room_for(driver, request_of, alone):
    """A running sequence keeps its pages; the rest of the prompt is computed."""
    request, other = request_of(2, range(29, 50), max_tokens=4), request_of(1, range(20), max_tokens=12)
    with with_host(driver, num_blocks=11) as (d, tiers, _):
        d.submit(request_of(3, range(29, 50), max_tokens=1))
        d.run()
        forget_pages(d, tiers)
        d.submit(other)
        d.step()
        d.submit(request)
        d.run()
        assert (d.tokens[2], d.reasons[2]) == alone(request, 64)
        assert (d.tokens[1], d.reasons[1]) == alone(other, 64)
        assert d.cached[2] <= 20


def test_a_prefix_here_is_kept_while_the_rest_is_read(driver, request_of):
    with with_host(driver, num_blocks=10) as (d, tiers, _):
        d.submit(request_of(1, range(33), max_tokens=1))
        d.run()
        tiers.settle()
        d.submit(request_of(2, range(40, 49), max_tokens=1))  # takes what is behind the prompt's beginning
        d.run()
        d.submit(request_of(3, range(33), max_tokens=1))
        d.run()
        assert d.cached[3] == 32


def test_pages_at_their_second_use(driver, request_of):
    with with_host(driver, admission=lambda: AdmitReused(100)) as (d, tiers, host):
        d.submit(request_of(1, range(17)))
        d.run()
        tiers.settle()
        assert len(host.index) == 0
        d.submit(request_of(2, range(9)))
        d.run()
        tiers.settle()
        assert len(host.index) == 2


def test_tenants_share_nothing(driver, request_of):
    with with_host(driver) as (d, tiers, _):
        d.submit(request_of(1, range(17), salt=b"a", tenant="a"))
        d.run()
        forget_pages(d, tiers)
        d.submit(request_of(2, range(17), salt=b"b", tenant="b"))
        d.run()
        assert d.cached[2] == 0


def test_a_tenant_has_no_more_than_its_limit(driver, request_of):
    with with_host(driver, tenant_slots=3) as (d, tiers, host):
        d.submit(request_of(1, range(30), tenant="a"))
        d.run()
        tiers.settle()
        assert len(host.index) == 3


class HeldUp(HostTier):
    """Reads wait for `go_on`."""

    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.go_on = threading.Event()

    def get(self, key, into):
        assert self.go_on.wait(60)
        return super().get(key, into)


def test_a_late_read_keeps_nobody_waiting(driver, request_of, alone, monkeypatch):
    """Its pages stay reserved until nobody writes to them any more, and no other read begins."""
    d = driver()
    tier = HeldUp(64, page_bytes_of(d))
    with tiered(d, tier) as tiers:
        d.submit(request_of(1, range(17)))
        d.run()
        forget_pages(d, tiers)
        monkeypatch.setattr(tier_reads, "UNKNOWN_S", 0.05)
        requests = [request_of(2, range(17)), request_of(3, range(17), seed=2)]
        d.submit(requests[0])
        while 2 not in d.reasons:
            d.step()
        d.core.kv.forget()
        d.submit(requests[1])
        while 3 not in d.reasons:
            d.step()
        assert d.cached == {1: 0, 2: 0, 3: 0}
        assert [(d.tokens[r.id], d.reasons[r.id]) for r in requests] == [alone(r, 64) for r in requests]
        assert d.core.kv.incoming.num_pages == 4
        tier.go_on.set()
        d.run()


def test_an_abort_while_pages_are_read(driver, request_of):
    d = driver(num_blocks=6)
    tier = HeldUp(64, page_bytes_of(d))
    with tiered(d, tier) as tiers:
        d.submit(request_of(1, range(17), max_tokens=1))
        d.run()
        forget_pages(d, tiers)
        d.submit(request_of(2, range(17), max_tokens=1))
        d.step()
        d.abort(2)
        d.step()
        assert d.reasons[2] == "abort"
        tier.go_on.set()
        d.run()
        d.core.kv.forget()
        d.submit(request_of(3, range(17), max_tokens=1))
        d.run()
        assert d.cached[3] == 16, "who was aborted keeps no room"


def test_standby_gives_the_memory_back(driver, request_of):
    with with_host(driver) as (d, tiers, host):
        d.submit(request_of(1, range(17)))
        d.run()
        forget_pages(d, tiers)
        tiers.standby()
        assert len(host.index) == 0
        d.submit(request_of(2, range(17), seed=1))
        d.run()
        assert d.cached[2] == 0
        assert d.tokens[1] == d.tokens[2]


def test_a_tenants_pages_are_erased_everywhere(driver, request_of):
    """Pages that a running sequence uses stay, but others do not find them any more."""
    with with_host(driver) as (d, tiers, host):
        for i, tenant in enumerate(["a", "b"]):
            d.submit(request_of(i, range(17), tenant=tenant, salt=tenant.encode(), max_tokens=1))
        d.run()
        tiers.settle()
        d.submit(request_of(2, range(17), tenant="a", salt=b"a"))
        d.step()
        assert d.core.kv.forget_tenant(tenant_id("a")) == 4
        d.core.check_integrity()
        erased = []
        tiers.forget(tenant_id("a"), erased.append)
        tiers.settle()
        assert erased == [4]
        assert len(host.index) == 4
        d.submit(
            request_of(3, range(9), tenant="a", salt=b"a"), request_of(4, range(9), tenant="b", salt=b"b")
        )
        d.run()
        assert (d.cached[3], d.cached[4]) == (0, 8)


requests = st.tuples(
    st.sampled_from([(), range(8), range(14), range(20)]),
    st.lists(st.integers(0, 49), min_size=1, max_size=6),
    st.integers(1, 10),
    st.sampled_from(["a", "b"]),
)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.lists(requests, max_size=3), max_size=8),
    st.sampled_from([(CAUSAL,), (CAUSAL, Window(6)), (Window(5),)]),
    st.sampled_from([(2, None), (12, 5), (200, None)]),
    st.integers(14, 26),
    st.sampled_from([None, None, (1, 40), (3, 12), (30, 1)]),
    st.booleans(),
)
def test_random_schedules(driver, request_of, alone, schedule, spans, slots, num_blocks, states, copies):
    """Whatever is in which tier, each request gets what it would get alone."""
    sent = []
    sizes = {"spans": spans, "num_blocks": num_blocks * len(spans)}
    if states:
        rule = SnapshotRule(interval=4, at_least=states[0])
        sizes |= {"state_bytes": 8, "num_snapshots": states[1], "snapshots": rule}
    with with_host(driver, slots[0], tenant_slots=slots[1], copies=copies, **sizes) as (d, tiers, h):
        for turn, arrivals in enumerate(schedule):
            for prefix, own, max_tokens, tenant in arrivals:
                fields = {"salt": tenant.encode(), "tenant": tenant, "max_tokens": max_tokens}
                sent.append(request_of(len(sent), [*prefix, *own], **fields))
                d.submit(sent[-1])
            d.step()
            if turn % 3 == 2:
                d.run()
                tiers.settle()
                h.index.check_integrity()
        d.run()
        for request in sent:
            assert (d.tokens[request.id], d.reasons[request.id]) == alone(
                request, 64, spans=spans, has_state=bool(states)
            )
