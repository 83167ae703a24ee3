"""The choice of the sequence that yields to an arriving request."""

from __future__ import annotations

import pytest

from firelane.engine.policies.victims import VictimChoice
from firelane.engine.step.draft import PlanDraft


def flood(d, request_of, count, **claim):
    d.core.policy.times.tokens_within = lambda _: 6.0
    d.submit(*(request_of(100 + i, range(4), max_tokens=40, **claim) for i in range(count)))
    for _ in range(6):
        d.step()


def waiting(d, request_of, **claim):
    """An arriving request that waits."""
    d.core.submit(request_of(1, range(12), **claim))
    return d.core.table.waiting.get(1)


def yields(d, head):
    draft = PlanDraft(d.core.table, d.core.kv, d.limits, drawn=0)
    victim = VictimChoice(draft).for_arrival(head, lacks_slot=not d.core.table.num_free_slots)
    return victim and victim.id


def test_the_youngest_of_the_flood_yields(driver, request_of):
    d = driver()
    flood(d, request_of, 9, tenant="a")
    assert yields(d, waiting(d, request_of, tenant="b")) == 103


def test_nobody_yields_to_background_or_to_its_own_tenant(driver, request_of):
    for claim in ({"tenant": "b", "background": True}, {"tenant": "a"}):
        d = driver()
        flood(d, request_of, 4, tenant="a")
        assert yields(d, waiting(d, request_of, **claim)) is None


def test_one_yields_again_only_after_twice_what_it_lost(driver, request_of):
    d = driver()
    flood(d, request_of, 9, tenant="a")
    head, youngest = waiting(d, request_of, tenant="b"), d.core.table.running[103]
    computed = d.core.table.computed(youngest)
    youngest.preempted_tokens = computed // 2 + 1
    assert yields(d, head) is None
    youngest.preempted_tokens = computed // 2
    assert yields(d, head) == 103


@pytest.mark.parametrize(("weight", "victim"), [(0.3, None), (0.4, 103), (1.0, 103)])
def test_a_tenant_yields_no_more_than_leaves_it_level(driver, request_of, weight, victim):
    """A flood with four slots gives one up where that leaves it level: three to one are the shares of the
    weights 1 and 1/3."""
    d = driver()
    flood(d, request_of, 9, tenant="a")
    assert yields(d, waiting(d, request_of, tenant="b", weight=weight)) == victim
