"""An executor whose tokens depend on every token before them, as read through the block tables; and a
driver."""

from __future__ import annotations

import time

import numpy as np
import pytest

from firelane.backends.contract import EMBED, SAMPLE, SlotState, StepLimits, StepOutputs
from firelane.engine.core import EngineCore
from firelane.wire.frames import NewRequest, Rejected, Sampling, StepFrame

VOCAB = 50
HIDDEN = 3
MASK = (1 << 62) - 1


def chain_hash(before: int, token: int) -> int:
    return ((before * 6364136223846793005) ^ (token * 1442695040888963407 + 11)) & MASK


def draw(history: int, seed: int) -> int:
    return ((history ^ (seed * 2654435761)) >> 7) % VOCAB


def hidden(history: int) -> np.ndarray:
    return np.array([history % 997, history % 1013, history % 2**30], np.float32) / np.float32(7)


def embedded(request: NewRequest) -> bytes:
    """The embedding of this request, computed without an engine."""
    history, states = 0, []
    for token in np.frombuffer(request.prompt, np.int32).tolist():
        history = chain_hash(history, token)
        states.append(hidden(history))
    if request.pooling == "last":
        return states[-1].tobytes()
    total = np.zeros(HIDDEN, np.float64)
    for state in states:
        total += state
    return (total / len(states)).astype(np.float32).tobytes()


def expected(request: NewRequest, max_model_len: int, seed: int | None = None) -> tuple[list[int], str]:
    """What the model says to this request, computed without an engine."""
    sampling = request.sampling
    seed = sampling.seed if seed is None else seed
    prompt = np.frombuffer(request.prompt, np.int32).tolist()
    history, out = 0, []
    for token in prompt:
        history = chain_hash(history, token)
    while len(out) < min(sampling.max_tokens, max_model_len - len(prompt)):
        token = draw(history, seed)
        while token in sampling.stop_token_ids and len(out) < sampling.min_tokens:
            token = (token + 1) % VOCAB
        out.append(token)
        if token in sampling.stop_token_ids:
            return out, "stop"
        history = chain_hash(history, token)
    return out, "length"


class ChainExecutor:
    """The K/V of a position is the hash of all tokens up to it, stored in its block and read from there.

    A wrong block table, a block given out too early or shared wrongly, or a wrong token changes what is
    drawn. All of a step runs inside wait(), so that what the engine touches too early is seen.
    """

    weights_bytes = 0
    kv_bytes = 0
    vocab_size = VOCAB
    hidden_width = HIDDEN

    def __init__(self, limits: StepLimits) -> None:
        self.limits = limits
        self.state = SlotState.allocate(limits, VOCAB)
        self.kv = np.full((limits.num_blocks, limits.block_size), -1, np.int64)
        self.outputs = [StepOutputs.allocate(limits, HIDDEN) for _ in range(2)]
        self.pending = None
        self.steps = 0
        self.computed_tokens = 0

    def submit(self, inputs):
        assert self.pending is None
        assert 0 < inputs.num_tokens <= self.limits.max_num_batched_tokens
        assert inputs.num_rows <= self.limits.max_output_rows
        chunks = inputs.chunk_slot[: inputs.num_chunks]
        assert len(set(chunks.tolist())) == inputs.num_chunks, "a slot has two chunks"
        assert inputs.chunk_len[: inputs.num_chunks].sum() == inputs.num_tokens
        self.pending = inputs
        self.frozen = {
            int(s): tuple(
                a[s].copy() for a in (self.state.block_tables, self.state.sampling, self.state.masks)
            )
            for s in chunks
        }

    def wait(self):
        inputs, self.pending = self.pending, None
        for slot, (blocks, sampling, mask) in self.frozen.items():
            assert (self.state.block_tables[slot] == blocks).all(), "a slot was rewritten in flight"
            assert self.state.sampling[slot] == sampling, "a slot was rewritten in flight"
            assert (self.state.masks[slot] == mask).all(), "a slot was rewritten in flight"
        token_rows = []
        for i in range(inputs.num_chunks):
            token_rows += self._chunk(
                int(inputs.chunk_slot[i]), int(inputs.chunk_start[i]), int(inputs.chunk_len[i])
            )
        self.steps += 1
        outputs = self.outputs[self.steps % 2]
        outputs.tokens.fill(-7)
        outputs.hidden.fill(np.nan)
        for r in range(inputs.num_rows):
            self._row(inputs, outputs, r, token_rows)
        self.computed_tokens += inputs.num_tokens
        return outputs

    def _chunk(self, slot, start, length):
        rows = []
        size = self.limits.block_size
        for position in range(start, start + length):
            assert position < self.limits.max_model_len
            table = self.state.block_tables[slot]
            before = int(self.kv[table[(position - 1) // size], (position - 1) % size]) if position else 0
            assert before >= 0, "reads K/V that was never computed"
            value = chain_hash(before, int(self.state.tokens[slot, position]))
            self.kv[table[position // size], position % size] = value
            rows.append((slot, position, value))
        return rows

    def _row(self, inputs, outputs, r, token_rows):
        slot, position, history = token_rows[inputs.row_token[r]]
        assert (slot, position) == (inputs.row_slot[r], inputs.row_position[r])
        sampling = self.state.sampling[slot]
        if inputs.row_kind[r] == EMBED:
            outputs.hidden[r] = hidden(history)
            return
        if inputs.row_kind[r] == SAMPLE:
            token = draw(history, int(sampling["seed"]))
            stops = self.state.stop_ids[slot, : sampling["num_stop_ids"]].tolist()
            while token in stops and position + 1 < sampling["stop_from"]:
                token = (token + 1) % VOCAB
            if sampling["masked"]:
                token = self._allowed(slot, token, stops if position + 1 < sampling["stop_from"] else ())
            self.state.tokens[slot, position + 1] = token
        else:
            token = int(self.state.tokens[slot, position + 1])
        outputs.tokens[r] = token
        outputs.logprobs[r] = -(history % 1000) / 100
        outputs.top_ids[r] = (history + np.arange(20)) % VOCAB
        outputs.top_logprobs[r] = -np.arange(20)

    def _allowed(self, slot, token, banned):
        """The first token from this one on that the slot's mask allows, if need be a banned one; or 0."""
        mask = self.state.masks[slot]
        onward = [(token + i) % VOCAB for i in range(VOCAB)]
        allowed = [t for t in onward if mask[t // 32] >> np.uint32(t % 32) & 1]
        return next((t for t in allowed if t not in banned), allowed[0] if allowed else 0)

    def release(self):
        pass


class ListPort:
    """Hands over one batch of actions at each call, and keeps all frames."""

    def __init__(self):
        self.actions = []
        self.frames = []

    def receive(self, core, *, wait_s):
        if wait_s and not self.actions:
            time.sleep(wait_s)  # a grammar is being compiled
        actions, self.actions = self.actions, []
        for action in actions:
            action(core)

    def send(self, frame):
        self.frames.append(frame)


class Driver:
    """An engine on the chain executor, stepped by hand; collects what each request got."""

    def __init__(self, executor=None, prefix_cache=True, grammars=None, **sizes):
        given = {
            "max_num_seqs": 4,
            "max_num_batched_tokens": 16,
            "max_output_rows": 4,
            "max_model_len": 64,
            "block_size": 4,
            "num_blocks": 32,
        } | sizes
        self.limits = executor.limits if executor else StepLimits(**given)
        self.executor = executor or ChainExecutor(self.limits)
        self.port = ListPort()
        self.core = EngineCore(self.executor, self.port, prefix_cache=prefix_cache, grammars=grammars)
        self.tokens: dict[int, list[int]] = {}
        self.reasons: dict[int, str] = {}
        self.cached: dict[int, int] = {}
        self.rejected: dict[int, str] = {}
        self.logprobs: dict[int, list] = {}
        self.embeddings: dict[int, bytes] = {}
        self.frames: list[StepFrame] = []

    def submit(self, *requests):
        for request in requests:
            self.port.actions.append(lambda core, request=request: core.submit(request))

    def abort(self, request_id):
        self.port.actions.append(lambda core: core.abort(request_id))

    def step(self):
        self.core.step()
        self.core.check_integrity()
        frames, self.port.frames = self.port.frames, []
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
        for request_id, token in zip(frame.ids, frame.tokens, strict=True):
            assert request_id not in self.reasons, "a token after the end"
            assert request_id in self.cached, "a token before the start"
            self.tokens.setdefault(request_id, []).append(token)
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
        assert self.core.kv.num_used_blocks == 0
        assert self.core.table.num_free_slots == self.limits.max_num_seqs
        return self


def make_request(
    request_id,
    prompt,
    *,
    salt=b"",
    grammar=None,
    pooling=None,
    tenant="",
    weight=1.0,
    background=False,
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
    )


@pytest.fixture(scope="session")
def driver():
    return Driver


@pytest.fixture(scope="session")
def request_of():
    return make_request


@pytest.fixture(scope="session")
def alone():
    return expected


@pytest.fixture(scope="session")
def embedding_of():
    return embedded
