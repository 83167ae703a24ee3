"""Logs of events: what they hold, what they forget, and who follows them."""

from __future__ import annotations

import asyncio
from typing import Any

from firelane.gateway.conversations.event_log import EVENT_BYTES, EventLog, EventLogs


class Client:
    """An Exchange that gathers what it gets; `slow` ones wait to be let on."""

    def __init__(self, *, slow: bool = False) -> None:
        self.data = b""
        self.gone = self.aborted = self.ended = False
        self.on_gone: Any = None
        self.room = asyncio.Event()
        if not slow:
            self.room.set()

    def start_stream(self) -> None:
        pass

    def send(self, data: bytes) -> None:
        self.data += data

    async def drained(self) -> None:
        await self.room.wait()

    def end(self) -> None:
        self.gone = self.ended = True

    def abort(self) -> None:
        self.gone = self.aborted = True


def event(number: int) -> bytes:
    return b"event: e\ndata: %04d\n\n" % number


SIZE = len(event(0)) - 2 + EVENT_BYTES


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_events_are_kept_apart_and_comments_left_out() -> None:
    log = EventLog()
    log.append(event(0) + event(1) + b": waiting\n\n")
    log.append(b"")
    assert (log.first, log.next, log.size_bytes) == (0, 2, 2 * SIZE)
    log.drop_first()
    assert (log.first, log.next, log.size_bytes) == (1, 2, SIZE)


def test_followers_get_what_was_and_what_comes() -> None:
    async def run() -> None:
        log, early, late, gone = EventLog(), Client(), Client(), Client()
        tasks = [asyncio.create_task(log.follow(early, 0)), asyncio.create_task(log.follow(gone, 0))]
        await settle()
        log.append(event(0))
        await settle()
        gone.gone = True
        gone.on_gone()
        await tasks[1]
        tasks.append(asyncio.create_task(log.follow(late, 1)))
        log.append(event(1) + event(2))
        log.end()
        await asyncio.gather(*tasks)
        assert early.data == event(0) + event(1) + event(2)
        assert late.data == event(1) + event(2)
        assert (early.ended, late.ended, gone.data) == (True, True, event(0))

    asyncio.run(run())


def test_a_client_that_falls_behind_is_cut_off() -> None:
    async def run() -> None:
        log, client = EventLog(), Client(slow=True)
        log.append(event(0))
        task = asyncio.create_task(log.follow(client, 0))
        await settle()
        for number in (1, 2):
            log.append(event(number))
            log.drop_first()
        client.room.set()
        await task
        assert client.aborted
        assert client.data == event(0)

    asyncio.run(run())


def test_the_oldest_that_have_ended_are_forgotten_first() -> None:
    logs = EventLogs(max_bytes=5 * SIZE)
    first, second, third = (logs.begin(name) for name in "abc")
    for log in (first, second):
        logs.append(log, event(0) + event(1))
        log.end()
    logs.append(third, event(0) + event(1))
    assert (logs.get("a"), logs.get("b"), logs.bytes_held) == (None, second, 4 * SIZE)
    logs.append(third, event(2) + event(3) + event(4) + event(5))
    assert logs.get("b") is None
    assert (third.first, third.next, logs.bytes_held) == (1, 6, 5 * SIZE)


def test_forgetting_gives_room_back() -> None:
    logs = EventLogs()
    log = logs.begin("a")
    logs.append(log, event(0))
    logs.forget("a")
    logs.forget("a")
    assert (logs.get("a"), logs.bytes_held, log.ended) == (None, 0, True)


def test_a_forgotten_log_that_still_grows_counts_no_more() -> None:
    logs = EventLogs()
    log = logs.begin("a")
    logs.forget("a")
    logs.append(log, event(0))
    assert logs.bytes_held == 0
