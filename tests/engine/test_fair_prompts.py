"""Prompts of tenants side by side: a long one does not hold up those of others who have had less."""

from __future__ import annotations

import pytest

from tests.engine.driver import Driver, make_request

LONG, SHORT = range(48), range(3)


def driver(**sizes):
    return Driver(max_num_batched_tokens=8, max_num_seqs=8, max_output_rows=8, num_blocks=128, **sizes)


def first_tokens(d, *ids):
    """The step in which each request gets its first token."""
    found = {}
    for step in range(200):
        if len(found) == len(ids):
            return [found[i] for i in ids]
        d.step()
        found.update({i: step for i in ids if d.tokens.get(i) and i not in found})
    raise AssertionError("no first token")


@pytest.mark.parametrize("max_in_flight", [1, 2])
def test_a_short_prompt_does_not_wait_for_anothers_long_one(max_in_flight):
    d = driver(max_in_flight=max_in_flight)
    d.submit(make_request(1, LONG, tenant="a"))
    d.step()
    d.submit(make_request(2, SHORT, tenant="b"))
    short, long = first_tokens(d, 2, 1)
    assert short <= 2  # behind the step that is under way
    assert long <= short + 7


def test_within_a_tenant_who_came_first_is_first():
    d = driver()
    d.submit(make_request(1, LONG, tenant="a"))
    d.step()
    d.submit(make_request(2, SHORT, tenant="a"))
    long, short = first_tokens(d, 1, 2)
    assert long <= short


def test_prompts_of_two_tenants_advance_alike():
    d = driver()
    d.submit(make_request(1, LONG, tenant="a"), make_request(2, LONG, tenant="b"))
    one, two = first_tokens(d, 1, 2)
    assert abs(one - two) <= 2


def test_who_has_had_more_waits_for_a_longer_prompt_of_who_has_had_less():
    d = driver()
    d.submit(make_request(1, SHORT, tenant="b"))
    first_tokens(d, 1)
    d.submit(make_request(2, LONG, tenant="a"))
    d.step()
    d.submit(make_request(3, range(24), tenant="b"), make_request(4, SHORT, tenant="a"))
    b, a = first_tokens(d, 3, 2)
    assert b < a


def test_nobody_starves_beside_short_prompts_that_never_end():
    """A tenant's long prompt goes on while another one sends short ones without an end."""
    d = driver()
    d.submit(make_request(1, LONG, tenant="a"))
    for number in range(2, 60):
        d.submit(make_request(number, SHORT, tenant="b", max_tokens=2))
        d.step()
        if d.tokens.get(1):
            break
    assert number < 30
