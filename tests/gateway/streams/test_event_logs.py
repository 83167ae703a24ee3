"""The event logs of a server: whose they are, their bounds, and their times."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firelane.errors import RateLimitError
from firelane.gateway.streams.event_log import EVENT_BYTES, PIECE_BYTES
from firelane.gateway.streams.event_logs import LOG_BYTES, EventLogs
from firelane.gateway.tenants.tenant import Tenant
from tests.gateway.streams.test_event_log import Client, event, settle

ONE, TWO = Tenant(name="one"), Tenant(name="two")
SIZE = len(event(0)) + EVENT_BYTES


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def events(count: int) -> bytes:
    return b"".join(map(event, range(count)))


def test_the_oldest_of_the_tenant_that_have_ended_go_first() -> None:
    logs = EventLogs(tenant_bytes=2 * LOG_BYTES + 5 * SIZE, least_bytes=1)
    foreign = logs.begin(TWO, "x")
    logs.append(foreign, events(4))
    logs.end(foreign)
    first, second, third = (logs.begin(ONE, name) for name in "abc")
    assert all(log is not None for log in (first, second, third))
    for log in (first, second):
        logs.append(log, events(2))
        logs.end(log)
    logs.append(third, events(2))
    assert (logs.get(ONE, "a"), logs.get(ONE, "b")) == (None, second)
    logs.append(third, events(4))
    assert logs.get(ONE, "b") is None
    assert (third.first, third.next) == (0, 6)
    assert logs.get(TWO, "x") is foreign
    logs.check_integrity()


def test_one_that_grows_beyond_all_loses_its_oldest_events() -> None:
    logs = EventLogs(tenant_bytes=LOG_BYTES + 3 * SIZE)
    log = logs.begin(ONE, "a")
    logs.append(log, events(10))
    assert (log.first, log.next, logs.bytes_held) == (7, 10, LOG_BYTES + 3 * SIZE)
    logs.check_integrity()


def test_a_long_one_makes_room_for_a_short_one() -> None:
    """A reader of the short one gets all of it as it comes."""
    logs = EventLogs(tenant_bytes=4 * PIECE_BYTES)
    long, short = logs.begin(ONE, "long"), logs.begin(ONE, "short")
    logs.append(long, events(10 * PIECE_BYTES // SIZE))
    assert long.first > 0
    for number in range(PIECE_BYTES // SIZE - 10):
        logs.append(short, event(number))
        logs.append(long, event(number))
        assert short.first == 0
        assert logs.bytes_held <= 4 * PIECE_BYTES
    assert long.size_bytes >= 2 * PIECE_BYTES
    logs.check_integrity()


@pytest.mark.parametrize(("of_all", "of_one"), [(3, 100), (100, 3)])
def test_no_further_one_begins_where_each_could_not_hold_enough(of_all: int, of_one: int) -> None:
    logs = EventLogs(max_bytes=of_all * PIECE_BYTES, tenant_bytes=of_one * PIECE_BYTES)
    made = [logs.begin(ONE, name) for name in "abc"]
    with pytest.raises(RateLimitError, match="try again later"):
        logs.begin(ONE, "d")
    if of_all > 3:
        logs.begin(TWO, "d")
    for turn in range(3):  # all grow, and none is cut within what it may always hold
        for log in made:
            logs.append(log, events(2 * PIECE_BYTES // SIZE))
            assert all(one.size_bytes >= PIECE_BYTES - LOG_BYTES - SIZE for one in made[: 3 if turn else 1])
    logs.end(made[0])
    assert logs.get(ONE, "d") is None
    assert logs.begin(ONE, "d").next == 0
    logs.check_integrity()


def test_the_bound_of_all_tenants() -> None:
    logs = EventLogs(max_bytes=3 * LOG_BYTES + 6 * SIZE, least_bytes=1)
    old = logs.begin(ONE, "a")
    logs.append(old, events(3))
    logs.end(old)
    kept = logs.begin(TWO, "b")
    logs.append(kept, events(2))
    logs.end(kept)
    growing = logs.begin(TWO, "c")
    logs.append(growing, events(2))
    assert (logs.get(ONE, "a"), logs.get(TWO, "b")) == (None, kept)
    logs.append(growing, events(20))
    assert logs.bytes_held <= 3 * LOG_BYTES + 6 * SIZE
    assert len(logs) == 1
    logs.check_integrity()


def test_thousands_of_short_ones_stay_within_the_bound() -> None:
    bound = 40 * LOG_BYTES
    logs = EventLogs(tenant_bytes=bound)
    for number in range(3000):
        log = logs.begin(ONE, f"a{number}")
        logs.append(log, event(number))
        logs.end(log)
    assert logs.bytes_held <= bound
    assert logs.get(ONE, "a2999") is not None
    logs.check_integrity()


def test_nobody_finds_anothers() -> None:
    logs = EventLogs()
    log = logs.begin(ONE, "a")
    logs.forget(TWO, "a")
    assert (logs.get(TWO, "a"), logs.get(ONE, "a")) == (None, log)
    assert logs.get(Tenant(name="one", salt=b"another key"), "a") is None


def test_time_passes() -> None:
    clock = Clock()
    logs = EventLogs(keep_s=10.0, now_s=clock)
    running = logs.begin(ONE, "running")
    for name in ("first", "second"):
        logs.end(logs.begin(ONE, name))
        clock.now_s += 4.0
    clock.now_s = 11.0
    logs.sweep()
    assert (logs.get(ONE, "first"), logs.get(ONE, "second") is None) == (None, False)
    clock.now_s = 1e6
    logs.sweep()
    assert (logs.get(ONE, "second"), logs.get(ONE, "running")) == (None, running)
    logs.check_integrity()


def test_one_that_is_being_read_is_kept() -> None:
    async def run() -> None:
        clock = Clock()
        logs = EventLogs(keep_s=10.0, now_s=clock)
        log, client = logs.begin(ONE, "a"), Client(slow=True)
        logs.append(log, event(0))
        logs.end(log)
        task = asyncio.create_task(log.follow(client, 0))
        await settle()
        clock.now_s = 11.0
        logs.sweep()
        assert logs.get(ONE, "a") is log
        client.room.set()
        await task
        clock.now_s = 20.0
        logs.sweep()
        assert logs.get(ONE, "a") is log
        clock.now_s = 22.0
        logs.sweep()
        assert (logs.get(ONE, "a"), client.data) == (None, event(0))
        logs.check_integrity()

    asyncio.run(run())


def test_forgetting_gives_room_back() -> None:
    logs = EventLogs()
    log = logs.begin(ONE, "a")
    logs.append(log, event(0))
    logs.forget(ONE, "a")
    logs.forget(ONE, "a")
    assert (logs.get(ONE, "a"), logs.bytes_held, log.ended) == (None, 0, True)
    logs.append(log, event(1))
    logs.end(log)
    assert (logs.bytes_held, log.next) == (0, 1)
    logs.check_integrity()


@given(
    acts=st.lists(
        st.tuples(
            st.sampled_from(["begin", "append", "end", "forget", "sweep"]),
            st.sampled_from([ONE, TWO]),
            st.sampled_from("abcd"),
            st.integers(1, 9),
        ),
        max_size=80,
    )
)
def test_counts_and_bounds_hold_whatever_comes(acts: list[tuple[str, Tenant, str, int]]) -> None:
    clock = Clock()
    most, tenants = 6 * LOG_BYTES + 20 * SIZE, 4 * LOG_BYTES + 8 * SIZE
    logs = EventLogs(max_bytes=most, tenant_bytes=tenants, keep_s=3.0, now_s=clock, least_bytes=1)
    for act, tenant, name, count in acts:
        clock.now_s += 1.0
        log = logs.get(tenant, name)
        if act == "begin" and log is None:
            logs.begin(tenant, name)
        elif act == "append" and log is not None:
            logs.append(log, events(count))
        elif act == "end" and log is not None:
            logs.end(log)
        elif act == "forget":
            logs.forget(tenant, name)
        elif act == "sweep":
            logs.sweep()
        logs.check_integrity()
        assert logs.bytes_held <= most + len(logs) * LOG_BYTES
