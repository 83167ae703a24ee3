"""The work that comes before a tenant's request, at engines that share their steps between tenants."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firelane.gateway.engines.in_flight import InFlight
from firelane.gateway.engines.routed_engine import Load, tokens_before
from firelane.gateway.engines.routing.least_time import LeastTime
from firelane.gateway.engines.routing.policies import LeastTokens, PageAware, SessionAffinity
from firelane.wire.frames import NewRequest, Sampling
from tests.gateway.test_policies import Engine


def flight(tokens, tenant="", *, number=1, weight=1.0, background=False, session=b""):
    request = NewRequest(
        id=number,
        prompt=array("i", range(tokens)).tobytes(),
        sampling=Sampling(),
        tenant=tenant,
        weight=weight,
        background=background,
    )
    return InFlight(request, None, session)


def engine(name, *flights):
    load = Load()
    for one in flights:
        load.add(one)
    return Engine(name, prefill_tokens=load.tokens, queued=load.queued)


def before(one, *flights):
    (tokens,) = tokens_before(one, [engine("0", *flights)])
    return tokens


def test_of_one_tenant_all_counts():
    assert before(flight(10, "a"), flight(500, "a"), flight(70, "a")) == 570
    assert before(flight(10, "a")) == 0


def test_a_flood_counts_as_much_as_the_request_itself():
    assert before(flight(10, "b"), flight(500, "a")) == 10
    assert before(flight(1000, "b"), flight(500, "a")) == 500


def test_own_prompts_count_and_so_does_what_shares_steps_with_them():
    assert before(flight(10, "b"), flight(500, "a"), flight(40, "b")) == 40 + 50


def test_weights_count():
    assert before(flight(10, "b", weight=2.0), flight(500, "a")) == 5
    assert before(flight(10, "b"), flight(500, "a", weight=3.0)) == 30


def test_where_there_is_little_all_counts():
    assert before(flight(100, "b"), flight(20, "a", weight=0.1), flight(70, "c", background=True)) == 90


def test_background_work_counts_for_its_own_kind_alone():
    flood = flight(500, "a", background=True)
    assert before(flight(10, "b"), flood) == 0
    assert before(flight(10, "a"), flood) == 0
    assert before(flight(10, "b", background=True), flood) == 10
    assert before(flight(10, "b", background=True), flood, flight(300, "c")) == 310


def test_an_engine_that_takes_who_comes_first_counts_all():
    first_come = Engine("0", prefill_tokens=500)
    assert tokens_before(flight(10, "b"), [first_come]) == [500]


accounts = st.tuples(st.sampled_from("abc"), st.booleans(), st.sampled_from([0.5, 1.0, 4.0]))


@given(st.lists(st.tuples(accounts, st.integers(1, 2000)), max_size=8), accounts, st.integers(1, 2000))
def test_between_the_tenants_own_work_and_all_work(queue, own, tokens):
    queue = [flight(n, t, weight=w, background=b, number=i) for i, ((t, b, w), n) in enumerate(queue)]
    tenant, background, weight = own
    one = flight(tokens, tenant, weight=weight, background=background)
    mine = sum(
        f.prompt_tokens for f in queue if (f.request.tenant, f.request.background) == (tenant, background)
    )
    assert mine <= before(one, *queue) <= sum(f.prompt_tokens for f in queue)


def test_a_load_forgets_accounts_that_have_nothing_left():
    load, some = Load(), [flight(10, "a", number=1), flight(20, "b", number=2), flight(30, "a", number=3)]
    in_flight = {one.id: one for one in some}
    for one in some:
        load.add(one)
    queued = load.queued.interactive
    assert (queued.tenants, queued.tokens, queued.weights) == ({"a": 40, "b": 20}, 60, 2.0)
    some[0].tokens.append(1)
    del in_flight[2]
    load.settle(in_flight)
    assert (queued.tenants, queued.tokens, queued.weights) == ({"a": 30}, 30, 1.0)
    load.settle({})
    assert (queued.tenants, queued.tokens, queued.weights, load.tokens) == ({}, 0, 0.0, 0)


@pytest.mark.parametrize("policy", [LeastTokens, PageAware, LeastTime, SessionAffinity])
def test_a_tenants_prompts_are_spread_whatever_others_have(policy):
    """By all tokens the second engine has less to do; this tenant's prompts are there."""
    flooded = engine("0", flight(9000, "a"))
    own = engine("1", flight(4000, "a", number=2), flight(4000, "b", number=3))
    assert policy().choose(flight(2000, "b"), [flooded, own]) is flooded
    assert policy().choose(flight(2000, "c"), [engine("0", flight(9000, "c")), own]) is own


def test_a_session_stays_beside_anothers_flood():
    some, one = [Engine(str(i)) for i in range(3)], flight(10, "b", session=b"s")
    home = SessionAffinity().choose(one, some)
    home.prefill_tokens, home.queued = 90_000, engine("", flight(90_000, "a")).queued
    assert SessionAffinity().choose(one, some) is home
    home.queued = engine("", flight(90_000, "b")).queued
    assert SessionAffinity().choose(one, some) is not home
