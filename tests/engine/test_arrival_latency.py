"""Time to the first token beside a flood, on a clock that only steps move: within twice that of an empty
engine."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest

from firelane.backends.null import NullExecutor
from firelane.contract import StepLimits
from firelane.engine.core import EngineCore
from firelane.wire.frames import NewRequest, Sampling, Submit

VISITOR = 1 << 40
LIMITS = StepLimits(
    max_num_seqs=64,
    max_num_batched_tokens=256,
    max_output_rows=96,
    max_model_len=1024,
    block_size=16,
    num_blocks=4096,
)


def cpu_step_s(tokens):
    """A model of 2 GB on two cores."""
    return max(40e-3, 2.5e-3 * tokens)


def gpu_step_s(tokens):
    return 8e-3 + 30e-6 * tokens


class World:
    """A flood of `streams` requests, and one visitor at a time, on a clock of its own."""

    def __init__(self, step_s, streams, prompt, **flood):
        self.step_s, self.streams, self.prompt, self.flood = step_s, streams, prompt, flood
        self.random = np.random.default_rng(1)
        self.executor = NullExecutor(LIMITS, 1000)
        self.core = EngineCore(self.executor, self, prefix_cache=False)
        self.core.policy.accounts._clock = lambda: self.now_s
        note = self.core.policy.times.note
        self.core.policy.times.note = lambda tokens, _: note(tokens, self.step_s(tokens))
        submit, wait = self.executor.submit, self.executor.wait
        self.executor.submit = lambda inputs: (self.submitted(inputs), submit(inputs))[1]
        self.executor.wait = lambda: (self.pass_time(), wait())[1]
        self.now_s, self.due_s, self.sent_s, self.next_id = 0.0, math.inf, math.inf, 0
        self.ttft_s, self.served = [], 0

    def submitted(self, inputs):
        self.step_tokens = inputs.num_tokens

    def pass_time(self):
        self.now_s += self.step_s(self.step_tokens)

    def receive(self, wait_s):
        new = [self.request(0, 100, 100, **self.flood) for _ in range(self.streams)]
        self.streams = 0
        if wait_s is None and self.due_s < math.inf:
            self.now_s = max(self.now_s, self.due_s)
        if self.now_s >= self.due_s:
            self.sent_s, self.due_s = self.due_s, math.inf
            new.append(self.request(VISITOR, self.prompt, 3, tenant="visitor"))
        return [Submit(new)]

    def send(self, frame):
        self.served += sum(i < VISITOR for i in frame.ids)
        if self.sent_s < math.inf and any(i >= VISITOR for i in frame.ids):
            self.ttft_s.append(self.now_s - self.sent_s)
            self.sent_s = math.inf
        for finished in frame.finished:
            self.streams += finished.id < VISITOR
            if finished.id >= VISITOR:
                self.due_s = self.now_s + self.random.uniform(0, 20 * self.step_s(1))

    def request(self, first_id, prompt, output, **claim):
        self.next_id += 1
        tokens = self.random.integers(0, 1000, prompt, dtype=np.int32)
        output = int(self.random.integers(1, 2 * output))
        return NewRequest(
            id=first_id + self.next_id, prompt=tokens.tobytes(), sampling=Sampling(max_tokens=output), **claim
        )

    def median_ttft_s(self, visits):
        for _ in range(50):
            if self.streams or not self.core.is_idle:
                self.core.step()
        self.due_s = self.now_s
        while len(self.ttft_s) < visits:
            self.core.step()
        return statistics.median(self.ttft_s)


@pytest.mark.parametrize("prompt", [8, 64, 256])
@pytest.mark.parametrize("flood", [{"tenant": "flood"}, {"tenant": "visitor", "background": True}])
@pytest.mark.parametrize("step_s", [cpu_step_s, gpu_step_s])
def test_first_tokens_come_within_twice_the_time_of_an_empty_engine(step_s, flood, prompt):
    empty_s = World(step_s, 0, prompt).median_ttft_s(3)
    world = World(step_s, 100, prompt, **flood)
    assert world.median_ttft_s(60) <= 2.0 * empty_s


@pytest.mark.parametrize(("step_s", "least"), [(cpu_step_s, 0.9), (gpu_step_s, 0.45)])
def test_the_flood_keeps_most_of_its_speed(step_s, least):
    """A CPU's short steps are as good as long ones; a GPU pays for the latency of arriving requests."""
    rates = []
    for prompt in (None, 8):
        world = World(step_s, 100, prompt, tenant="flood")
        if prompt:
            world.median_ttft_s(15)
        began_s, served = world.now_s, world.served
        while world.now_s < began_s + 9.0:
            world.core.step()
        rates.append((world.served - served) / (world.now_s - began_s))
    assert rates[1] >= least * rates[0]
