"""Tenants, the identities that requests are made under, and their quotas: requests and tokens a minute, by
buckets of at most a minute's worth; requests at a time.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, MutableSequence
from dataclasses import dataclass

from firelane.errors import RateLimitError
from firelane.gateway.tenants.counts import CountRecord, LocalRecord

OPEN_NAME = "open"
"""Name in metrics and logs of clients of a server that wants no keys."""
UNKNOWN_NAME = "unknown"
"""The same of those who gave no known key."""
OTHERS_NAME = "others"
"""Name in metrics of all tenants beyond those that they tell apart."""
RESERVED = frozenset({OPEN_NAME, UNKNOWN_NAME, OTHERS_NAME})


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """name: as metrics and logs show it, "" on an open server. salt: starts the hash chains of its KV blocks,
    which no other tenant shares. weight: its share under contention, relative to other tenants'.

    requests_per_minute, tokens_per_minute, max_concurrent: None is no limit. models: the names that it may
    ask for, None: all. admin: may read /metrics and the like.
    """

    name: str = ""
    salt: bytes = b""
    weight: float = 1.0
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    max_concurrent: int | None = None
    models: frozenset[str] | None = None
    admin: bool = False

    @property
    def identity(self) -> tuple[str, bytes]:
        """Tells tenants apart: on an open server all names are "", and keys do, as in the prefix cache."""
        return self.name, self.salt

    @property
    def label(self) -> str:
        """Its name in metrics and logs."""
        return self.name or OPEN_NAME

    def may_use(self, model: str) -> bool:
        return self.models is None or model in self.models


ANONYMOUS_ADMIN = Tenant(admin=True)
"""The tenant of requests without a key on a server that wants none."""
UNAUTHENTICATED = Tenant(name=UNKNOWN_NAME)
"""The tenant of requests that are not authenticated."""


def salt_of(identity: bytes) -> bytes:
    """A salt [16 bytes] that only this tenant has."""
    return hashlib.blake2b(identity, digest_size=16, person=b"firelane.tenant").digest()


Clock = Callable[[], float]
REQUESTS, TOKENS = 0, 2
"""Places of the buckets among a record's common figures."""
RUNNING, HELD_TOKENS = 0, 1
"""Figures of a process. HELD_TOKENS go back to the bucket of tokens where it is killed (see counts)."""


class Unlimited:
    """The quota of a tenant without limits."""

    def admit(self) -> None:
        pass

    def take_tokens(self, prompt: int, output: int) -> int:  # noqa: ARG002
        return 0

    def end(self, held_tokens: int, used_tokens: int = 0) -> None:
        pass

    def headers(self) -> bytes:
        return b""


UNLIMITED = Unlimited()


class Quota:
    """Limits of one tenant, over all its keys, as a Reservation uses them. Outlives a reload of the key file.

    record: of what is used, which other processes may use, too: buckets among its common figures, and of its
    own figures the requests that run and the tokens that they hold.
    """

    def __init__(self, tenant: Tenant, now_s: Clock, record: CountRecord | None = None) -> None:
        self._now_s = now_s
        self._name = tenant.label
        self._record = record or LocalRecord()
        self._max_concurrent: int | None = None
        self._requests: TokenBucket | None = None
        self._tokens: TokenBucket | None = None
        self.update(tenant)

    def update(self, tenant: Tenant) -> None:
        """Other limits from now on."""
        now_s = self._now_s()
        self._max_concurrent = tenant.max_concurrent
        common = self._record.common
        with self._record.turn():
            self._requests = _resized(self._requests, tenant.requests_per_minute, now_s, common, REQUESTS)
            self._tokens = _resized(self._tokens, tenant.tokens_per_minute, now_s, common, TOKENS)

    def admit(self) -> None:
        """Count one request, until its `end`. Raises RateLimitError."""
        most, record = self._max_concurrent, self._record
        with record.turn():
            if most is not None and record.total(RUNNING) >= most:
                raise RateLimitError(
                    f"tenant {self._name}: {most} requests are in flight, which is all it may have: wait for "
                    "one to end"
                )
            self._take(self._requests, 1, "requests")
            record.own[RUNNING] += 1

    def _take(self, bucket: TokenBucket | None, amount: int, what: str) -> None:
        if bucket is None or amount == 0:
            return
        now_s = self._now_s()
        wait_s = bucket.wait_s(amount, now_s)
        if wait_s > 0:
            raise RateLimitError(
                f"tenant {self._name}: the limit of {bucket.per_minute} {what} a minute is reached, and "
                f"this request wants {amount}: try again in {duration(wait_s)}",
                retry_after_s=math.ceil(wait_s),
            )
        bucket.add(-amount, now_s)

    def take_tokens(self, prompt: int, output: int) -> int:
        """Hold what the request may need at most; returns how much is held: no more than the bucket can hold,
        or a silent `max_tokens` could never pass. Raises RateLimitError.
        """
        bucket = self._tokens
        if bucket is None:
            return 0
        if prompt > bucket.per_minute:
            raise RateLimitError(
                f"tenant {self._name}: the prompt has {prompt} tokens, the limit is {bucket.per_minute} a "
                "minute: make it shorter",
                retry_after_s=60,
            )
        amount = min(prompt + output, bucket.per_minute)
        with self._record.turn():
            self._take(bucket, amount, "tokens")
            self._record.own[HELD_TOKENS] += amount
        return amount

    def end(self, held_tokens: int, used_tokens: int = 0) -> None:
        """An admitted request has ended, or did not start: what it held and did not use goes back."""
        own = self._record.own
        with self._record.turn():
            own[RUNNING] -= 1
            own[HELD_TOKENS] -= held_tokens
            if self._tokens is not None:
                self._tokens.add(held_tokens - used_tokens, self._now_s())

    def headers(self) -> bytes:
        """x-ratelimit lines, each ended by CRLF."""
        with self._record.turn():
            now_s = self._now_s()
            return _lines(b"requests", self._requests, now_s) + _lines(b"tokens", self._tokens, now_s)


TenantQuota = Unlimited | Quota


def _resized(
    bucket: TokenBucket | None,
    per_minute: int | None,
    now_s: float,
    common: MutableSequence[float],
    at: int,
) -> TokenBucket | None:
    if per_minute is None:
        return None
    if bucket is None:
        return TokenBucket(per_minute, now_s, common, at)
    bucket.resize(per_minute, now_s)
    return bucket


def _lines(what: bytes, bucket: TokenBucket | None, now_s: float) -> bytes:
    """The three header lines of one limit, in OpenAI's form."""
    if bucket is None:
        return b""
    remaining = max(0, math.floor(bucket.level(now_s)))
    reset = duration(bucket.wait_s(bucket.per_minute, now_s)).encode()
    return b"x-ratelimit-limit-%b: %d\r\nx-ratelimit-remaining-%b: %d\r\nx-ratelimit-reset-%b: %b\r\n" % (
        what,
        bucket.per_minute,
        what,
        remaining,
        what,
        reset,
    )


def duration(seconds: float) -> str:
    """A duration as OpenAI writes it: 120ms, 8.64s, 6m0s."""
    if seconds <= 0.999:
        return f"{math.ceil(seconds * 1000)}ms"
    if seconds <= 59.99:
        return f"{math.ceil(seconds * 100) / 100:g}s"
    whole = math.ceil(seconds)
    return f"{whole // 60}m{whole % 60}s"


class TokenBucket:
    """Holds at most `per_minute` and is filled evenly. What was used beyond a promise may overdraw it.

    Times are seconds of one clock, given by the caller. (Turner, "New directions in communications", 1986.)
    What it keeps are two figures of `cell`, from `at` on, 0 at first: how much is used and not filled again,
    and when that was so. Whoever shares them, shares the bucket.
    """

    __slots__ = ("_at", "_cell", "per_minute")

    def __init__(
        self, per_minute: int, now_s: float, cell: MutableSequence[float] | None = None, at: int = 0
    ) -> None:
        self.per_minute = per_minute
        self._cell: MutableSequence[float] = [0.0, now_s] if cell is None else cell
        self._at = at

    def level(self, now_s: float) -> float:
        """The amount that it holds; below 0 when overdrawn."""
        cell, at = self._cell, self._at
        used = max(0.0, cell[at] - (now_s - cell[at + 1]) * self.per_minute / 60)
        cell[at], cell[at + 1] = used, now_s
        return self.per_minute - used

    def wait_s(self, amount: float, now_s: float) -> float:
        """Seconds until it holds `amount` (of at most `per_minute`); 0 when it does now."""
        return max(0.0, (amount - self.level(now_s)) * 60 / self.per_minute)

    def add(self, amount: float, now_s: float) -> None:
        """Put back `amount`, or take it where negative."""
        self._cell[self._at] = max(0.0, self.per_minute - self.level(now_s) - amount)

    def resize(self, per_minute: int, now_s: float) -> None:
        """Another rate from now on; what has been used stays used."""
        self.level(now_s)
        self.per_minute = per_minute
