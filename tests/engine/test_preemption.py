"""Who yields, and that a plan which is withdrawn leaves no trace."""

from __future__ import annotations

import pytest


def flood(d, request_of, count, **claim):
    d.core.scheduler.pace.tokens_within = lambda _: 6.0
    d.submit(*(request_of(100 + i, range(4), max_tokens=40, **claim) for i in range(count)))
    for _ in range(6):
        d.step()


def waiting(d, request_of, **claim):
    """A newcomer that waits, as the preemptor sees it."""
    d.core.submit(request_of(1, range(12), **claim))
    return d.core.table.waiting.get(1)


def yields(d, head):
    victim = d.core.scheduler._preemptor.for_newcomer(head)
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
    computed = d.core.scheduler._preemptor._computed(youngest)
    youngest.lost = computed // 2 + 1
    assert yields(d, head) is None
    youngest.lost = computed // 2
    assert yields(d, head) == 103


@pytest.mark.parametrize(("weight", "victim"), [(0.3, None), (0.4, 103), (1.0, 103)])
def test_a_tenant_yields_no_more_than_leaves_it_level(driver, request_of, weight, victim):
    """Of four slots: three to one is as 1 to 1/3."""
    d = driver()
    flood(d, request_of, 9, tenant="a")
    assert yields(d, waiting(d, request_of, tenant="b", weight=weight)) == victim


def state(d):
    table = d.core.table
    arrays = (table.length, table.last_step, table.ending_step, table.decoding)
    sequences = {s.id: (s.computed, s.scored, s.installed) for s in table.running.values()}
    return (
        [a.tolist() for a in arrays],
        list(table.prefilling),
        sequences,
        table.accounts.counter.round(6).tolist(),
    )


def test_a_withdrawn_plan_leaves_no_trace(driver, request_of):
    """Plans with decodes, last tokens, and chunks that score, begin and end prompts."""
    d = driver(block_size=64, max_model_len=64, max_output_rows=6, num_blocks=40)
    scheduler, withdrawn, ending = d.core.scheduler, 0, 0
    scheduler.pace.tokens_within = lambda _: 9.0
    for i in range(24):
        scores = {"prompt_logprobs": 1} if i % 3 == 0 else {}
        d.submit(request_of(i, range(3 + i), max_tokens=3, tenant="ab"[i % 2], **scores))
    d.step()
    while not d.core.is_idle:
        scheduler._withdraw(scheduler.plan(d.core._next_step))  # who can have a slot has it now
        d.core.check_integrity()
        before = state(d)
        plan = scheduler.plan(d.core._next_step)
        ending += len(d.core.table.running) and int((d.core.table.ending_step == plan.step).sum())
        scheduler._withdraw(plan)
        if list(before[2]) == list(d.core.table.running):
            assert state(d) == before
            withdrawn += 1
        d.step()
    assert withdrawn > 10
    assert ending > 5
    assert len(d.reasons) == 24
