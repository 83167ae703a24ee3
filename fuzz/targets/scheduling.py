"""Requests of several tenants at an engine without a model, in any order: each of them ends, its policy's
books stay whole after each step, and nothing is left behind."""

from __future__ import annotations

import numpy as np

from firelane.backends.null import NullExecutor
from firelane.contract import StepLimits
from firelane.engine.core import EngineCore
from firelane.engine.policies import make_policy
from firelane.wire.cache_events import PageChanges
from firelane.wire.frames import Abort, NewRequest, Rejected, Sampling, StepFrame, Submit
from fuzz.draw import Draw
from fuzz.target import Target

VOCABULARY, LONGEST = 64, 64
WEIGHTS = (1.0, 0.25, 8.0, 1e-6, 1e6)
TENANTS = ("", "a", "b", "c")
MOST_REQUESTS, MOST_STEPS = 60, 4000


class ListChannel:
    """Has what arrives next, and keeps how requests ended."""

    def __init__(self) -> None:
        self.arriving: list[Submit | Abort] = []
        self.ended: set[int] = set()

    def receive(self, wait_s: float | None) -> list[Submit | Abort]:
        del wait_s
        arrived, self.arriving = self.arriving, []
        return arrived

    def send(self, frame: StepFrame | Rejected | PageChanges) -> None:
        if isinstance(frame, PageChanges):
            return
        ended = [frame.id] if isinstance(frame, Rejected) else [one.id for one in frame.finished]
        assert not self.ended & set(ended), "a request that ends twice"
        self.ended.update(ended)


def run(data: bytes) -> None:
    draw, channel = Draw(data), ListChannel()
    core = _engine(draw, channel)
    asked: list[int] = []
    while not draw.is_over and len(asked) < MOST_REQUESTS:
        kind = draw.below(4)
        if kind == 0 and asked:
            channel.arriving.append(Abort([draw.choice(asked)]))
        elif kind < 3:
            asked.append(len(asked) + 1)
            channel.arriving.append(Submit([_request(asked[-1], draw)]))
        if kind:
            _step(core)
    _step(core)
    steps = 0
    while not core.is_idle:
        steps += 1
        assert steps < MOST_STEPS, "the engine does not come to an end"
        _step(core)
    assert channel.ended == set(asked)
    assert core.kv.num_used_pages == 0


def _engine(draw: Draw, channel: ListChannel) -> EngineCore:
    limits = StepLimits(
        max_num_seqs=draw.between(1, 4),
        max_num_batched_tokens=draw.between(4, 24),
        max_output_rows=4,
        max_model_len=LONGEST,
        block_size=4,
        num_blocks=draw.between(LONGEST // 4, 40),
    )
    policy = make_policy(draw.choice(["fair", "fcfs"]), limits.max_num_batched_tokens)
    return EngineCore(NullExecutor(limits, VOCABULARY), channel, policy=policy)


def _request(number: int, draw: Draw) -> NewRequest:
    prompt = np.arange(draw.between(1, 40), dtype=np.int32) % draw.between(1, 8)
    return NewRequest(
        id=number,
        prompt=prompt.tobytes(),
        sampling=Sampling(seed=number, max_tokens=draw.between(1, 24)),
        tenant=draw.choice(TENANTS),
        weight=draw.choice(WEIGHTS),
        background=draw.below(4) == 1,
        chunk_tokens=draw.choice([0, 1, 5]),
    )


def _step(core: EngineCore) -> None:
    core.step()
    core.check_integrity()


TARGET = Target(run=run)
