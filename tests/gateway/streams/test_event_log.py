"""Logs of events: what they hold, what they forget, and who follows them."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from firelane.gateway.http.exchange import Request
from firelane.gateway.streams.event_log import EVENT_BYTES, PIECE_BYTES, EventLog


class Client:
    """An Exchange that gathers what it gets; `slow` ones wait to be let on."""

    def __init__(self, *, slow: bool = False) -> None:
        self.data = b""
        self.request = Request()
        self.started = self.gone = self.aborted = self.ended = False
        self.on_gone: Any = None
        self.room = asyncio.Event()
        if not slow:
            self.room.set()

    def start_stream(self) -> None:
        self.started = True

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


SIZE = len(event(0)) + EVENT_BYTES


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


def test_numbers_are_lines_of_their_events() -> None:
    log = EventLog(numbered=True)
    log.append(event(0) + event(1))
    log.append(b": waiting\n\n")
    log.append(event(2))

    async def run() -> bytes:
        client = Client()
        log.end()
        await log.follow(client, 1)
        return client.data

    assert asyncio.run(run()) == b"id: 1\n" + event(1) + b"id: 2\n" + event(2)


def test_comments_go_to_those_who_read_just_now() -> None:
    async def run() -> None:
        log, client, late = EventLog(), Client(), Client()
        log.append(event(0))
        task = asyncio.create_task(log.follow(client, 0))
        await settle()
        log.append(b": waiting\n\n")
        log.append(event(1))
        log.end()
        await asyncio.gather(task, log.follow(late, 0))
        assert client.data == event(0) + b": waiting\n\n" + event(1)
        assert late.data == event(0) + event(1)

    asyncio.run(run())


def test_readers_are_counted() -> None:
    async def run() -> None:
        log, counts, clients = EventLog(), [], [Client(), Client()]
        log.on_readers = counts.append
        tasks = [asyncio.create_task(log.follow(client, 0)) for client in clients]
        await settle()
        clients[0].gone = True
        clients[0].on_gone()
        await tasks[0]
        assert (counts, log.readers) == ([1, 2, 1], 1)
        log.end()
        await tasks[1]
        assert (counts, log.readers) == ([1, 2, 1], 0)  # after the end nobody asks

    asyncio.run(run())


def test_a_slow_reader_is_given_a_piece_at_a_time() -> None:
    async def run() -> None:
        log, client = EventLog(), Client(slow=True)
        count = 4 * PIECE_BYTES // len(event(0))
        log.append(b"".join(map(event, range(count))))
        log.end()
        task = asyncio.create_task(log.follow(client, 0))
        await settle()
        assert PIECE_BYTES <= len(client.data) < PIECE_BYTES + len(event(0))
        client.room.set()
        await task
        assert client.data == b"".join(map(event, range(count)))

    asyncio.run(run())


def test_who_is_near_the_end_of_a_log_that_is_given_up_gets_it() -> None:
    async def run() -> None:
        log, near, far = EventLog(), Client(slow=True), Client(slow=True)
        count = 4 * PIECE_BYTES // len(event(0))
        log.append(b"".join(map(event, range(count))))
        tasks = [asyncio.create_task(log.follow(near, count - 10))]
        tasks.append(asyncio.create_task(log.follow(far, 0)))
        await settle()
        log.give_up()
        near.room.set()
        far.room.set()
        await asyncio.gather(*tasks)
        assert near.data == b"".join(map(event, range(count - 10, count)))
        assert (near.ended, far.aborted) == (True, True)

    asyncio.run(run())


@given(
    texts=st.lists(st.binary(max_size=40), max_size=40),
    visits=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 200), st.booleans()), max_size=12),
)
def test_any_cuts_join_to_the_whole(texts: list[bytes], visits: list[tuple[int, int, bool]]) -> None:
    """A reader that is cut at any byte and comes back, while events come and old ones go. A visit: events
    that come during it, bytes that the reader has of it, and whether what it has had is forgotten then."""
    sent = [b"data: %b\n\n" % text.hex().encode() for text in texts]
    whole = b"".join(b"id: %d\n%b" % (number, one) for number, one in enumerate(sent))

    async def visit(log: EventLog, number: int, events: bytes) -> bytes:
        client = Client()
        task = asyncio.create_task(log.follow(client, number))
        await settle()
        log.append(events)
        await settle()
        if not client.ended:
            client.gone = True
            client.on_gone()
        await task
        return client.data

    async def run() -> bytes:
        log, got, number = EventLog(numbered=True), b"", 0
        for come, most, forgets in visits:
            data = await visit(log, number, b"".join(sent[:come]))
            del sent[:come]
            had = data[:most].rpartition(b"\n\n")
            got += had[0] + had[1]
            number += data[:most].count(b"\n\n")
            while forgets and log.first < number:
                log.drop_first()
        log.append(b"".join(sent))
        log.end()
        return got + await visit(log, number, b"")

    assert asyncio.run(run()) == whole
