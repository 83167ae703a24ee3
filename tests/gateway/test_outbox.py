"""Requests and aborts on their way to an engine."""

from __future__ import annotations

import asyncio

from firelane.gateway.engines.link.outbox import Outbox
from firelane.wire.frames import Abort, NewRequest, Sampling, Submit
from firelane.wire.submissions import SUBMIT_BYTES


def request(number, prompt=b"\0\0\0\0"):
    return NewRequest(id=number, prompt=prompt, sampling=Sampling())


def sent_in_turns(*turns):
    """Frames that are sent while each turn of an event loop does one of these."""

    async def run():
        frames = []
        outbox = Outbox(frames.append)
        for turn in turns:
            turn(outbox)
            await asyncio.sleep(0)
        return frames

    return asyncio.run(run())


def test_of_one_turn_travels_together_requests_before_aborts():
    def turn(outbox):
        outbox.abort(7)
        outbox.submit(request(1))
        outbox.submit(request(2, b"\1\0\0\0"))
        outbox.abort(8)

    assert sent_in_turns(turn, lambda outbox: outbox.submit(request(3))) == [
        Submit([request(1), request(2, b"\1\0\0\0")]),
        Abort([7, 8]),
        Submit([request(3)]),
    ]


def test_a_request_that_comes_back_is_not_ended_by_the_abort_of_its_time_before():
    """The engine would end the new one, and its gateway would take that for the end of the engine."""

    def turn(outbox):
        outbox.submit(request(1))
        outbox.abort(7)
        outbox.submit(request(7))
        outbox.abort(8)

    assert sent_in_turns(turn) == [Submit([request(1)]), Abort([7]), Submit([request(7)]), Abort([8])]


def test_what_was_flushed_is_sent_once():
    def turn(outbox):
        outbox.submit(request(1))
        outbox.flush()

    assert sent_in_turns(turn, lambda _: None) == [Submit([request(1)])]


def test_what_is_cleared_is_not_sent():
    def turn(outbox):
        outbox.submit(request(1))
        outbox.abort(2)
        outbox.clear()

    assert sent_in_turns(turn, lambda outbox: outbox.abort(3)) == [Abort([3])]


def test_long_prompts_have_frames_of_their_own():
    long = [request(i, bytes([i]) * SUBMIT_BYTES) for i in (1, 2)]

    def turn(outbox):
        for one in long:
            outbox.submit(one)

    assert [len(frame.requests) for frame in sent_in_turns(turn)] == [1, 1]
