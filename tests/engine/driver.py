"""An engine that is stepped by hand."""

from __future__ import annotations

import itertools
import time

import numpy as np

from firelane.contract import StepLimits
from firelane.engine.core import NO_PREREQUISITES, EngineCore
from firelane.wire.frames import Abort, NewRequest, Rejected, Sampling, StepFrame, Submit
from tests.engine.chain_model import ChainExecutor


class ListChannel:
    """Hands over what has arrived at each call, and keeps all frames."""

    def __init__(self):
        self.arrived = []
        self.frames = []

    def receive(self, wait_s):
        if wait_s and not self.arrived:
            time.sleep(wait_s)  # a grammar is being compiled
        arrived, self.arrived = self.arrived, []
        return arrived

    def send(self, frame):
        self.frames.append(frame)


class Driver:
    """An engine on the chain executor, stepped by hand; collects what each request got."""

    def __init__(
        self,
        executor=None,
        prefix_cache=True,
        prerequisites=NO_PREREQUISITES,
        policy=None,
        max_in_flight=1,
        is_pipelined=False,
        proposer=None,
        snapshots=None,
        clock=time.monotonic,
        **sizes,
    ):
        given = {
            "max_num_seqs": 4,
            "max_num_batched_tokens": 16,
            "max_output_rows": 4,
            "max_model_len": 64,
            "block_size": 4,
            "num_blocks": 32,
        } | sizes
        self.limits = executor.limits if executor else StepLimits(**given)
        self.executor = executor or ChainExecutor(self.limits, max_in_flight, is_pipelined)
        self.channel = ListChannel()
        self.core = EngineCore(
            self.executor,
            self.channel,
            prefix_cache=prefix_cache,
            prerequisites=prerequisites,
            policy=policy,
            proposer=proposer,
            snapshots=snapshots,
            clock=clock,
        )
        self.tokens: dict[int, list[int]] = {}
        self.reasons: dict[int, str] = {}
        self.cached: dict[int, int] = {}
        self.rejected: dict[int, str] = {}
        self.logprobs: dict[int, list] = {}
        self.embeddings: dict[int, bytes] = {}
        self.frames: list[StepFrame] = []

    def submit(self, *requests):
        self.channel.arrived.append(Submit(list(requests)))

    def abort(self, request_id):
        self.channel.arrived.append(Abort([request_id]))

    def step(self):
        self.core.step()
        self.core.check_integrity()
        frames, self.channel.frames = self.channel.frames, []
        for frame in frames:
            if isinstance(frame, Rejected):
                self.rejected[frame.id] = frame.message
            else:
                self._take(frame)

    def _take(self, frame):
        self.frames.append(frame)
        assert len(set(frame.ids)) == len(frame.ids)
        for started in frame.started:
            assert started.id not in self.cached
            self.cached[started.id] = started.cached_tokens
        tokens = iter(frame.tokens)
        for request_id, count in zip(frame.ids, frame.counts or [1] * len(frame.ids), strict=True):
            assert request_id not in self.reasons, "a token after the end"
            assert request_id in self.cached, "a token before the start"
            self.tokens.setdefault(request_id, []).extend(itertools.islice(tokens, count))
        assert not list(tokens), "tokens of nobody"
        for entry in frame.logprobs:
            self.logprobs.setdefault(entry.id, []).append(entry)
        for embedding in frame.embeddings:
            assert embedding.id not in self.embeddings
            assert (embedding.id, "stop") in [(f.id, f.reason) for f in frame.finished]
            self.embeddings[embedding.id] = embedding.values
        for finished in frame.finished:
            assert finished.id not in self.reasons
            self.reasons[finished.id] = finished.reason

    def run(self, max_steps=2000):
        """Until nothing is left; then nothing may have leaked."""
        for _ in range(max_steps):
            self.step()
            if self.core.is_idle:
                break
        else:
            raise AssertionError("the engine does not come to an end")
        assert self.core.kv.num_used_pages == 0
        assert self.core.kv.states.num_free == self.core.kv.states.count
        assert self.core.table.num_free_slots == self.limits.max_num_seqs
        return self


def make_request(  # limits: exempt (fields of a request)
    request_id,
    prompt,
    *,
    salt=b"",
    grammar=None,
    pooling=None,
    tenant="",
    weight=1.0,
    background=False,
    chunk_tokens=0,
    priority=0,
    deadline_ms=0,
    due_tokens=1,
    **sampling,
):
    sampling = {"seed": request_id, "max_tokens": 8} | sampling
    return NewRequest(
        id=request_id,
        prompt=np.array(prompt, np.int32).tobytes(),
        sampling=Sampling(**sampling),
        salt=salt,
        grammar=grammar,
        pooling=pooling,
        tenant=tenant,
        weight=weight,
        background=background,
        chunk_tokens=chunk_tokens,
        priority=priority,
        deadline_ms=deadline_ms,
        due_tokens=due_tokens,
    )
