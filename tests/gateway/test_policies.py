"""Policies: which of several engines a request goes to."""

from __future__ import annotations

import itertools
from array import array
from dataclasses import dataclass, field

import pytest

from firelane.gateway.config.model import ROUTING
from firelane.gateway.engines.in_flight import InFlight
from firelane.gateway.engines.routed_engine import TenantLoad
from firelane.gateway.engines.routing.page_record import LEAST_PAGES, PageRecord
from firelane.gateway.engines.routing.policies import (
    GATE_TOKENS,
    LeastRequests,
    LeastTokens,
    PageAware,
    Random,
    SessionAffinity,
)
from firelane.gateway.engines.routing.routing import POLICIES
from firelane.wire.frames import NewRequest, Sampling
from firelane.wire.page_names import PAGE_TOKENS, page_names


@dataclass
class Engine:
    name: str
    prefill_tokens: int = 0
    sequences: int = 0
    kv_tokens: int = 1 << 20
    life: int = field(default_factory=itertools.count(1).__next__)
    step_ms: float = 0.0
    token_ms: float = 0.0
    queued: TenantLoad | None = None


def engines(*prefill_tokens):
    return [Engine(str(i), tokens) for i, tokens in enumerate(prefill_tokens)]


def prompt(*parts):
    """A prompt of (token, count) pairs."""
    return array("i", [token for token, count in parts for _ in range(count)]).tobytes()


def flight(text=b"", *, session=b"", salt=b""):
    return InFlight(NewRequest(id=1, prompt=text, sampling=Sampling(), salt=salt), None, session)


def cached_tokens(record, names):
    return {life: pages * PAGE_TOKENS for pages, lives in record.cached(names) for life in lives}


def send(policy, one, to):
    chosen = policy.choose(one, to)
    policy.sent(one, chosen)
    return chosen


def test_all_names_have_a_policy():
    assert tuple(POLICIES) == ROUTING


def test_random_takes_all_engines_in_turns_that_its_seed_fixes():
    some = engines(0, 0, 0)
    drawn = [[Random(seed).choose(flight(), some).name for _ in range(1)] for seed in (1, 1)]
    assert drawn[0] == drawn[1]
    policy = Random(1)
    assert {policy.choose(flight(), some).name for _ in range(50)} == {"0", "1", "2"}


def test_least_requests_counts_requests_and_least_tokens_their_length():
    one, two = Engine("0", prefill_tokens=50_000, sequences=1), Engine("1", prefill_tokens=100, sequences=2)
    assert LeastRequests().choose(flight(), [one, two]) is one
    assert LeastTokens().choose(flight(), [one, two]) is two


def test_choices_of_one_prompt_stay_together():
    policy, some, text = LeastTokens(), engines(0, 10), prompt((1, 8))
    assert send(policy, flight(text), some) is some[0]
    some[0].prefill_tokens = 99
    assert send(policy, flight(text), some) is some[0]
    assert send(policy, flight(text), some[1:]) is some[1]
    assert send(policy, flight(prompt((1, 8))), some) is some[1]


def test_a_session_stays_at_its_engine():
    some = engines(0, 0, 0, 0)
    keys = [b"session %d" % i for i in range(200)]
    homes = {key: SessionAffinity().choose(flight(session=key), some).name for key in keys}
    assert {list(homes.values()).count(engine.name) > 20 for engine in some} == {True}
    policy = SessionAffinity()
    for engine in some:
        engine.prefill_tokens = GATE_TOKENS if engine.name == "0" else 0
    assert {key: policy.choose(flight(session=key), some).name for key in keys} == homes


def test_a_tenants_sessions_are_its_own():
    some = engines(*[0] * 8)
    key = [flight(session=b"1", salt=bytes([tenant])) for tenant in range(20)]
    assert len({SessionAffinity().choose(one, some).name for one in key}) > 1


def test_a_session_leaves_an_overloaded_engine_for_the_next_one_and_comes_back():
    some, policy, one = engines(0, 0, 0), SessionAffinity(), flight(session=b"a")
    home = policy.choose(one, some)
    home.prefill_tokens = GATE_TOKENS + 1
    away = policy.choose(one, some)
    assert away is not home
    assert away is SessionAffinity().choose(one, [engine for engine in some if engine is not home])
    home.prefill_tokens = GATE_TOKENS
    assert policy.choose(one, some) is home
    for engine in some:
        engine.prefill_tokens = 100_000
    home.prefill_tokens = 150_000
    assert policy.choose(one, some) is home


def test_sessions_of_other_engines_stay_where_one_leaves():
    some, policy = engines(0, 0, 0, 0), SessionAffinity()
    keys = [flight(session=b"%d" % i) for i in range(100)]
    before = [policy.choose(key, some) for key in keys]
    after = [policy.choose(key, some[1:]) for key in keys]
    assert all(now is then for now, then in zip(after, before, strict=True) if then is not some[0])


def test_without_a_session_the_least_work_counts():
    some = engines(5, 3)
    assert SessionAffinity().choose(flight(), some) is some[1]


LONG = prompt((7, 10 * PAGE_TOKENS))


def test_a_prompt_goes_where_its_pages_are():
    some, policy = engines(0, 0, 0), PageAware()
    home = send(policy, flight(LONG), some)
    home.prefill_tokens = 500
    longer = flight(LONG + prompt((8, 300)))
    assert send(policy, longer, some) is home
    assert longer.cached_tokens == 10 * PAGE_TOKENS
    other = flight(prompt((8, 1000)))
    assert send(policy, other, some) is not home
    assert other.cached_tokens == 0


def test_computing_anew_beats_a_long_queue():
    some, policy = engines(0, 0), PageAware()
    home = send(policy, flight(LONG), some)
    home.prefill_tokens = 50_000
    assert send(policy, flight(LONG), some) is not home
    home.prefill_tokens = 0
    assert {send(policy, flight(prompt((7, 10 * PAGE_TOKENS), (i, 9))), some).name for i in range(4)} == {
        "0",
        "1",
    }


def test_equal_engines_take_turns():
    some, policy = engines(0, 0, 0), PageAware()
    assert [send(policy, flight(prompt((i, 200))), some).name for i in range(6)] == [*"012012"]


def test_sequences_count():
    some, policy = engines(0, 0), PageAware()
    some[0].sequences = 1
    assert policy.choose(flight(LONG), some) is some[1]


def test_salts_share_nothing():
    some, policy = engines(0, 0), PageAware()
    send(policy, flight(LONG, salt=b"a"), some)
    other = flight(LONG, salt=b"b")
    send(policy, other, some)
    assert other.cached_tokens == 0


def test_a_new_life_of_an_engine_has_no_pages():
    some, policy = engines(0, 0), PageAware()
    home = send(policy, flight(LONG), some)
    home.life = 99_999
    again = flight(LONG)
    assert send(policy, again, some) is not home
    home.prefill_tokens, some[1].prefill_tokens = 0, 1 << 20
    assert send(policy, again, some) is home
    assert again.cached_tokens == 0


def test_a_record_forgets_the_ends_of_the_least_recently_used_prompts():
    (engine,), record = engines(0), PageRecord()
    engine.kv_tokens = 0
    first, second = (
        page_names(b"", prompt((1, 40 * PAGE_TOKENS))),
        page_names(b"", prompt((2, 40 * PAGE_TOKENS))),
    )
    record.expect(engine, first)
    record.expect(engine, second)
    assert len(record) == LEAST_PAGES
    assert cached_tokens(record, first) == {engine.life: (LEAST_PAGES - 40) * PAGE_TOKENS}
    assert cached_tokens(record, second) == {engine.life: 40 * PAGE_TOKENS}
    record.forget("0")
    assert (len(record), cached_tokens(record, second)) == (0, {})


def test_what_an_engine_tells_replaces_what_was_expected():
    (engine,), record = engines(0), PageRecord()
    first, second = (page_names(b"", prompt((i, 6 * PAGE_TOKENS))) for i in (1, 2))
    record.expect(engine, first[:4])
    record.tell(engine, second, (), is_whole=True)
    assert cached_tokens(record, first) == {}
    record.tell(engine, first[:3], second[2:])
    assert cached_tokens(record, second) == {engine.life: 2 * PAGE_TOKENS}
    record.expect(engine, first, 3)
    assert cached_tokens(record, first) == {engine.life: 6 * PAGE_TOKENS}
    record.tell(engine, (), first)
    assert (cached_tokens(record, first), len(record)) == ({}, 2)


def test_an_engine_that_lies_about_its_pages_fills_no_memory():
    (engine,), record = engines(0), PageRecord()
    engine.kv_tokens = 0
    record.tell(engine, range(10 * LEAST_PAGES), range(5))
    assert len(record) == LEAST_PAGES


def test_pages_go_with_their_engine_and_not_with_the_one_before():
    (engine,), record = engines(0), PageRecord()
    names, before = page_names(b"", LONG), Engine(engine.name)
    record.tell(engine, names, ())
    record.lost(before)
    assert len(record) == 10
    record.lost(engine)
    assert len(record) == 0


def test_engines_have_as_much_of_a_prompt_as_they_were_sent():
    some, record = engines(0, 0, 0), PageRecord()
    names = page_names(b"", prompt((1, 5 * PAGE_TOKENS)))
    for engine, pages in zip(some, (5, 2, 0), strict=True):
        record.expect(engine, names[:pages])
    first, second, _ = (engine.life for engine in some)
    assert cached_tokens(record, names) == {first: 5 * PAGE_TOKENS, second: 2 * PAGE_TOKENS}
    assert cached_tokens(record, names[:1]) == {first: PAGE_TOKENS, second: PAGE_TOKENS}
    assert cached_tokens(record, []) == {}


def test_a_page_that_most_engines_have_makes_none_of_them_better():
    policy, some, shared = PageAware(), engines(*[0] * 8), prompt((1, 4 * PAGE_TOKENS))
    for engine in some[1:]:
        policy.sent(flight(shared), engine)
    policy.sent(flight(shared + prompt((2, 4 * PAGE_TOKENS))), some[5])
    one = flight(shared + prompt((2, 5 * PAGE_TOKENS)))
    assert (send(policy, one, some), one.cached_tokens) == (some[5], 8 * PAGE_TOKENS)
    some[0].prefill_tokens = -(2 * 4 * PAGE_TOKENS) - 1  # all that it would compute beside the others
    assert policy.choose(flight(shared + prompt((3, 300))), some) is some[0]


@pytest.mark.parametrize("name", ROUTING)
def test_one_engine_is_always_chosen(name):
    (engine,) = some = engines(0)
    assert send(POLICIES[name](PageRecord()), flight(LONG, session=b"s"), some) is engine
