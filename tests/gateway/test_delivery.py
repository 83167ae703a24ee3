"""Frames that come together are delivered as if each had come by itself, with fewer calls."""

from __future__ import annotations

from itertools import groupby

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firelane.gateway.engines.in_flight import InFlight
from firelane.gateway.engines.link.connection import MOST_TOGETHER, Connection
from firelane.gateway.engines.link.delivery import Delivery
from firelane.link.framing import encode
from firelane.wire.frames import (
    Beat,
    EngineStats,
    Finished,
    NewRequest,
    PagesAt,
    Sampling,
    Started,
    StepFrame,
    TokenLogprobs,
)

IDS = (1, 2, 3)
LIMIT = 6


class Heard:
    """A sink that keeps what it is told. runs: tokens, by call."""

    def __init__(self):
        self.calls, self.runs = [], []

    def __getattr__(self, name):
        return lambda *values: self.calls.append((name, *values[:1]))

    def on_tokens(self, tokens, _):
        self.runs.append(tuple(tokens))
        self.calls += [("token", token) for token in tokens]

    def on_pages(self, pages):
        self.calls.append(("pages", pages))


def frame(ids, tokens, *, started=(), finished=(), logprobs=(), counts=()):
    return StepFrame(
        *(1, list(ids), list(tokens), list(started), list(finished), list(logprobs), EngineStats()),
        counts=list(counts),
    )


class Engine:
    """Draws frames of a few requests: some tell log-probabilities, any may have several tokens in a step."""

    def __init__(self, draw):
        self.draw = draw
        self.drawn = dict.fromkeys(IDS, 0)
        self.reports = {one: draw(st.booleans()) for one in IDS}

    def step(self):
        ids, tokens, counts, started, finished, logprobs = [], [], [], [], [], []
        is_ragged = self.draw(st.booleans())
        for one in IDS:
            before = self.drawn[one]
            if before >= LIMIT or not self.draw(st.booleans()):
                continue
            count = min(self.draw(st.integers(0, 3)) if is_ragged else 1, LIMIT - before)
            if not before and count:
                started.append(Started(one, 0))
            run = [100 * one + before + i for i in range(count)]
            if self.reports[one]:
                logprobs += [
                    TokenLogprobs(one, before + i + 1, t, -1.0, [], []) for i, t in enumerate(run, 1)
                ]
            ids.append(one)
            tokens += run
            counts.append(count)
            self.drawn[one] = before + count
            if self.drawn[one] == LIMIT and count:
                finished.append(Finished(one, "length", "", PagesAt("e", "a", [one])))
        return frame(
            *(ids, tokens),
            started=started,
            finished=finished,
            logprobs=logprobs,
            counts=counts if is_ragged else (),
        )


def play(frames, reports, together):
    """The sinks of all requests after these frames; `together` says which came with their next one."""
    delivery, sinks = Delivery(lambda _: None), {one: Heard() for one in IDS}
    for one in IDS:
        sampling = Sampling(max_tokens=LIMIT, logprobs=0 if reports[one] else -1)
        delivery.add(InFlight(NewRequest(id=one, prompt=bytes(4), sampling=sampling), sinks[one]))
    for now, (one, more) in enumerate(zip(frames, together, strict=True)):
        delivery.deliver(one, float(now), more=more)
        delivery.end(one.finished)
    return sinks, delivery


@given(st.data())
def test_each_sink_hears_the_same_however_frames_come(data):
    engine = Engine(data.draw)
    frames = [engine.step() for _ in range(data.draw(st.integers(1, 12)))]
    together = [*data.draw(st.lists(st.booleans(), min_size=len(frames), max_size=len(frames)))]
    together[-1] = False
    apart, _ = play(frames, engine.reports, [False] * len(frames))
    joined, delivery = play(frames, engine.reports, together)
    for one in IDS:
        assert joined[one].calls == apart[one].calls
        assert [token for run in joined[one].runs for token in run] == [
            100 * one + i for i in range(engine.drawn[one])
        ]
        if one in delivery.flights:
            assert len(delivery.flights[one].tokens) == engine.drawn[one]


def test_tokens_of_frames_that_come_together_are_one_call():
    frames = [frame(IDS, [100 * one + i for one in IDS]) for i in range(4)]
    sinks, _ = play(frames, dict.fromkeys(IDS, False), [True, True, False, False])
    assert sinks[2].runs == [(200, 201, 202), (203,)]


def test_a_request_that_ends_does_not_wait_for_others():
    ended = Finished(1, "length")
    frames = [
        frame((1, 2), (100, 200)),
        frame((1, 2), (101, 201), finished=[ended]),
        frame((2,), (202,)),
    ]
    sinks, _ = play(frames, dict.fromkeys(IDS, False), [True, True, False])
    assert sinks[1].calls == [("token", 100), ("ending", ended), ("token", 101), ("on_end",)]
    assert sinks[2].runs == [(200, 201, 202)]


def test_tokens_that_waited_when_the_engine_was_lost_are_drawn_again():
    """The next engine goes on from the tokens that the sink has."""
    sinks, delivery = play(
        [frame((1,), (100,)), frame((1,), (101,))], dict.fromkeys(IDS, False), [False, True]
    )
    (lost,) = [flight for flight in delivery.clear() if flight.id == 1]
    assert (list(lost.tokens), sinks[1].runs) == ([100], [(100,)])
    delivery.deliver(frame((), ()), 9.0)
    assert sinks[1].runs == [(100,)]


def test_ids_without_their_tokens_are_no_frame():
    delivery = Delivery(lambda _: None)
    for more in (True, False):
        with pytest.raises(ValueError, match="zip"):
            delivery.deliver(frame((1, 2), (100,)), 0.0, more=more)


def heard_together(frames):
    """Frames in one read of a connection: which are said to have the next one behind them."""
    heard = []
    connection = Connection(lambda _, more: heard.append(more), lambda *_: None)
    connection.data_received(b"".join(map(encode, frames)))
    return heard


def test_frames_of_one_read_come_together():
    step = frame((1,), (100,))
    assert heard_together([step]) == [False]
    assert heard_together([step] * 3) == [True, True, False]
    assert heard_together([step, Beat(0.0), step, step]) == [False, True, True, False]


def test_tokens_wait_for_a_few_frames_at_most():
    heard = heard_together([frame((1,), (100,))] * (3 * MOST_TOGETHER))
    waits = [len(list(group)) for more, group in groupby(heard) if more]
    assert waits == [MOST_TOGETHER - 1] * 3
