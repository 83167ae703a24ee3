from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firelane.errors import RateLimitError
from firelane.gateway.tenants.tenant import Quota, Tenant, TokenBucket, duration


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def make(**limits):
    clock = Clock()
    return Quota(Tenant(name="acme", **limits), clock), clock


@given(st.lists(st.tuples(st.floats(0, 50), st.integers(1, 60)), max_size=30))
def test_a_bucket_never_gives_more_than_its_rate(asked):
    """In any time it gives at most one full bucket and what was filled in since."""
    bucket, now_s, given_out = TokenBucket(60, 0.0), 0.0, 0
    for after_s, amount in asked:
        now_s += after_s
        if bucket.wait_s(amount, now_s) == 0:
            bucket.add(-amount, now_s)
            given_out += amount
        assert given_out <= 60 + now_s + 1e-6
        assert -1e-6 <= bucket.level(now_s) <= 60


def test_a_resized_bucket_remembers_what_was_used():
    bucket = TokenBucket(60, 0.0)
    bucket.add(-50, 0.0)
    bucket.resize(100, 0.0)
    assert bucket.level(0.0) == 50
    bucket.resize(20, 0.0)
    assert bucket.level(0.0) == -30


def test_requests_a_minute():
    quota, clock = make(requests_per_minute=2)
    for _ in range(2):
        quota.admit()
        quota.end(0)
    with pytest.raises(RateLimitError, match="2 requests a minute") as caught:
        quota.admit()
    assert caught.value.retry_after_s == 30
    clock.now_s += 30
    quota.admit()


def test_requests_at_a_time():
    quota, _ = make(max_concurrent=1)
    quota.admit()
    with pytest.raises(RateLimitError, match="in flight"):
        quota.admit()
    quota.end(0)
    quota.admit()
    with pytest.raises(RateLimitError):
        quota.admit()


def test_unused_tokens_go_back():
    quota, _ = make(tokens_per_minute=100)
    quota.admit()
    held = quota.take_tokens(30, 60)
    assert held == 90
    quota.admit()
    with pytest.raises(RateLimitError, match="100 tokens a minute"):
        quota.take_tokens(10, 10)
    quota.end(0)
    quota.end(held, 40)
    assert b"x-ratelimit-remaining-tokens: 60\r\n" in quota.headers()


def test_a_request_that_did_not_start_counts_but_its_tokens_do_not():
    quota, _ = make(requests_per_minute=5, tokens_per_minute=100, max_concurrent=1)
    quota.admit()
    quota.end(quota.take_tokens(1, 1))
    assert b"remaining-requests: 4\r\n" in quota.headers()
    assert b"remaining-tokens: 100\r\n" in quota.headers()


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 60), st.integers(0, 90)), max_size=40))
def test_whatever_the_order_nothing_is_lost(acts):
    """Admit, hold, end and reload at random: at the end only what was used is missing."""
    quota, _ = make(tokens_per_minute=1000, max_concurrent=4)
    held, used = [], 0
    for act, prompt, output in acts:
        if act == 0:
            with contextlib.suppress(RateLimitError):
                quota.admit()
                held.append(0)
                held[-1] = quota.take_tokens(prompt, output)
        elif act == 1 and held:
            quota.end(held.pop(), prompt)
            used += prompt
        elif act == 2:
            quota.update(Tenant(name="acme", tokens_per_minute=1000, max_concurrent=4))
        assert len(held) <= 4
    for tokens in held:
        quota.end(tokens)
    assert f"remaining-tokens: {max(0, 1000 - used)}\r\n".encode() in quota.headers()
    for _ in range(4):
        quota.admit()
    with pytest.raises(RateLimitError):
        quota.admit()


def test_a_silent_max_tokens_may_want_more_than_the_bucket_holds():
    quota, _ = make(tokens_per_minute=100)
    quota.admit()
    quota.end(quota.take_tokens(10, 100_000), 150)
    assert b"remaining-tokens: 0\r\n" in quota.headers()
    quota.admit()
    with pytest.raises(RateLimitError, match="make it shorter"):
        quota.take_tokens(101, 1)


def test_headers_have_openais_form():
    quota, _ = make(requests_per_minute=60)
    quota.admit()
    assert quota.headers() == (
        b"x-ratelimit-limit-requests: 60\r\nx-ratelimit-remaining-requests: 59\r\n"
        b"x-ratelimit-reset-requests: 1s\r\n"
    )


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0ms"),
        (0.12, "120ms"),
        (8.64, "8.64s"),
        (0.9995, "1s"),
        (59.999, "1m0s"),
        (60, "1m0s"),
        (359.5, "6m0s"),
    ],
)
def test_durations(seconds, text):
    assert duration(seconds) == text
