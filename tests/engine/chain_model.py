"""A model whose tokens depend on every token before them, as an executor that reads them through the block
tables, and computed without an engine."""

from __future__ import annotations

import functools

import numpy as np

from firelane.contract import (
    CAUSAL,
    EMBED,
    NO_SNAPSHOT,
    NOTHING,
    SAMPLE,
    ZERO_STATE,
    HostPages,
    SlotState,
    StepLimits,
    StepOutputs,
    kept_from,
    mask_row,
)
from firelane.wire.frames import NewRequest

VOCAB = 50
HIDDEN = 3
MASK = (1 << 62) - 1


def chain_hash(before: int, token: int) -> int:
    return ((before * 6364136223846793005) ^ (token * 1442695040888963407 + 11)) & MASK


def draw(history: int, seed: int) -> int:
    return ((history ^ (seed * 2654435761)) >> 7) % VOCAB


def hidden(history: int) -> np.ndarray:
    return np.array([history % 997, history % 1013, history % 2**30], np.float32) / np.float32(7)


def own_value(group: int, position: int, token: int) -> int:
    """Return what a group with a limited span stores of a token: nothing of the tokens before it."""
    return chain_hash(group + 1, token * 1000 + position)


def next_state(before: int, token: int) -> int:
    """The recurrent state after a token."""
    return chain_hash(before ^ 77, token)


class History:
    """The model's view of the tokens so far. A causal group and a recurrent state see all of them, another
    group sees those within its span."""

    def __init__(self, spans, has_state=False) -> None:
        self.spans = spans
        self.has_state = has_state
        self.state = 0
        self.causal = 0
        self.tokens: list[int] = []

    def add(self, token: int) -> None:
        self.causal = chain_hash(self.causal, token)
        self.state = next_state(self.state, token)
        self.tokens.append(token)

    def value(self) -> int:
        position = len(self.tokens) - 1
        values = [self._of(group, span, position) for group, span in enumerate(self.spans)]
        return combined([*values, *([self.state] if self.has_state else [])])

    def _of(self, group, span, position) -> int:
        if span == CAUSAL:
            return self.causal
        visible = range(span.first(position), position + 1)
        return functools.reduce(chain_hash, [own_value(group, p, self.tokens[p]) for p in visible], 0)


def combined(values: list[int]) -> int:
    return functools.reduce(chain_hash, values[1:], values[0])


def expected(
    request: NewRequest, max_model_len: int, seed: int | None = None, spans=(CAUSAL,), has_state=False
) -> tuple[list[int], str]:
    """Compute the model's answer to this request without an engine: its tokens and its finish reason."""
    sampling = request.sampling
    seed = sampling.seed if seed is None else seed
    prompt = np.frombuffer(request.prompt, np.int32).tolist()
    history, out = History(spans, has_state), []
    for token in prompt:
        history.add(token)
    while len(out) < min(sampling.max_tokens, max_model_len - len(prompt)):
        token = draw(history.value(), seed)
        while token in sampling.stop_token_ids and len(out) < sampling.min_tokens:
            token = (token + 1) % VOCAB
        out.append(token)
        if token in sampling.stop_token_ids:
            return out, "stop"
        history.add(token)
    return out, "length"


def embedded(request: NewRequest, spans=(CAUSAL,), has_state=False) -> bytes:
    """The embedding of this request, computed without an engine."""
    history, states = History(spans, has_state), []
    for token in np.frombuffer(request.prompt, np.int32).tolist():
        history.add(token)
        states.append(hidden(history.value()))
    if request.pooling == "last":
        return states[-1].tobytes()
    total = np.zeros(HIDDEN, np.float64)
    for state in states:
        total += state
    return (total / len(states)).astype(np.float32).tobytes()


class ChainExecutor:
    """The K/V of a position is the hash of all tokens up to it, stored in its page and read from there; in a
    group with a limited span that of its own token, and all positions that a kernel may read are read. Where
    the limits have states, a hash of all tokens is carried from token to token, too.

    A wrong block table, a block given out too early or shared wrongly, or a wrong token changes what is
    drawn. All of a step runs inside wait(), so that what the engine touches too early is seen.
    """

    arithmetic = ""
    activation_dtype = "bf16"
    weights_bytes = 0
    kv_bytes = 0
    vocab_size = VOCAB
    hidden_width = HIDDEN
    can_generate = True
    features_in = features_out = 0
    adapters = None

    def __init__(self, limits: StepLimits, max_in_flight: int = 1, is_pipelined: bool = False) -> None:
        self.limits = limits
        self.max_in_flight = max_in_flight
        self.is_pipelined = is_pipelined
        self.state = SlotState.allocate(limits, VOCAB)
        self.kv = np.full((limits.num_blocks, limits.block_size), -1, np.int64)
        self.states = np.full(limits.num_states, -1, np.int64)
        self.outputs = [StepOutputs.allocate(limits, HIDDEN) for _ in range(max_in_flight + 1)]
        self.queue = []
        self.steps = 0
        self.most_in_flight = 0
        self.computed_tokens = 0

    @property
    def page_memory(self):
        return HostPages(pages=self.kv.view(np.uint8), layout_id="chain")

    @property
    def state_memory(self):
        states = self.states[:, None].view(np.uint8)
        return HostPages(pages=states, layout_id="chain") if self.limits.state_bytes else None

    @property
    def pending(self):
        """The step submitted last, while it is in flight."""
        return self.queue[-1][0] if self.queue else None

    def submit(self, inputs):
        assert len(self.queue) < self.max_in_flight
        assert all(inputs is not other for other, _ in self.queue), "inputs were filled in flight"
        assert 0 < inputs.num_tokens <= self.limits.max_num_batched_tokens
        assert inputs.num_rows <= self.limits.max_output_rows
        chunks = inputs.chunk_slot[: inputs.num_chunks]
        assert len(set(chunks.tolist())) == inputs.num_chunks, "a slot has two chunks"
        assert inputs.chunk_len[: inputs.num_chunks].sum() == inputs.num_tokens
        if self.limits.state_bytes:
            self._check_states(inputs, chunks.tolist())
        stops = (inputs.chunk_start + inputs.chunk_len)[: inputs.num_chunks]
        blocks = -(-stops // self.limits.block_size)
        frozen = {s: self._row(s, n) for s, n in zip(chunks.tolist(), blocks.tolist(), strict=True)}
        if self.is_pipelined:
            self._check_tokens_are_there(inputs)
        self.queue.append((inputs, frozen))
        self.most_in_flight = max(self.most_in_flight, len(self.queue))

    def _check_tokens_are_there(self, inputs):
        """Steps in flight are computed at the same time: none reads a token that another one draws."""
        count = inputs.num_chunks
        starts, lengths = inputs.chunk_start[:count].tolist(), inputs.chunk_len[:count].tolist()
        read = dict(zip(inputs.chunk_slot[:count].tolist(), zip(starts, lengths, strict=True), strict=True))
        for before, _ in self.queue:
            rows = np.flatnonzero(before.row_kind[: before.num_rows] == SAMPLE).tolist()
            for slot, position in zip(before.row_slot[rows].tolist(), before.row_position[rows], strict=True):
                start, length = read.get(slot, (0, 0))
                assert not start <= position + 1 < start + length, "reads a token that is not drawn yet"

    def _check_states(self, inputs, slots):
        count = inputs.num_chunks
        read = inputs.chunk_from[:count].tolist()
        saved = [s for s in inputs.chunk_save[:count].tolist() if s != NO_SNAPSHOT]
        snapshots = [s for s, slot in zip(read, slots, strict=True) if s not in (slot, ZERO_STATE)]
        assert all(self.limits.max_num_seqs <= s < self.limits.num_states for s in [*saved, *snapshots])
        assert all(s < self.limits.first_spare for s in saved)
        assert len(set(saved)) == len(saved), "two chunks write one snapshot"
        assert not set(saved) & set(snapshots), "a snapshot is written and read in one step"
        starts = inputs.chunk_start[:count].tolist()
        assert all((s == ZERO_STATE) == (start == 0) for s, start in zip(read, starts, strict=True))
        stops = (inputs.chunk_start + inputs.chunk_len - inputs.chunk_drafted)[:count]
        assert not (stops[inputs.chunk_save[:count] != NO_SNAPSHOT] % self.limits.block_size).any(), (
            "a snapshot within a block"
        )
        self._check_spares(inputs, read)

    def _check_spares(self, inputs, read):
        count = inputs.num_chunks
        drafted, spares = inputs.chunk_drafted[:count].tolist(), inputs.chunk_spare[:count].tolist()
        written = [s for s, n in zip(spares, drafted, strict=True) if n]
        assert all(self.limits.first_spare <= s < self.limits.num_states for s in written)
        assert len(set(written)) == len(written), "two chunks write one spare state"
        others = [s for i, s in enumerate(read) if not drafted[i] or s != spares[i]]
        assert not set(written) & set(others), "a spare state is written and read by others in one step"
        assert all(0 <= n < m for n, m in zip(drafted, inputs.chunk_len[:count].tolist(), strict=True))

    def _row(self, slot, blocks):
        """Copy what a step with so many blocks reads of a slot."""
        state = self.state
        return blocks, (
            state.block_tables[:, slot, :blocks].tolist(),
            state.sampling[slot].tolist(),
            state.masks[slot].tolist(),
        )

    def wait(self):
        inputs, frozen = self.queue.pop(0)
        for slot, (blocks, row) in frozen.items():
            assert self._row(slot, blocks)[1] == row, "a slot was rewritten in flight"
        token_rows = []
        for i in range(inputs.num_chunks):
            slot, start = int(inputs.chunk_slot[i]), int(inputs.chunk_start[i])
            rows = self._chunk(slot, start, int(inputs.chunk_len[i]))
            if self.limits.state_bytes:
                rows = self._recur(rows, inputs, i)
            token_rows += rows
        self.steps += 1
        outputs = self.outputs[self.steps % len(self.outputs)]
        outputs.tokens.fill(-7)
        outputs.hidden.fill(np.nan)
        for r in range(inputs.num_rows):
            self._draw(inputs, outputs, r, token_rows)
        self.computed_tokens += inputs.num_tokens
        return outputs

    def _chunk(self, slot, start, length):
        rows = []
        for position in range(start, start + length):
            assert position < self.limits.max_model_len
            values = [
                self._attend(group, span, slot, position) for group, span in enumerate(self.limits.spans)
            ]
            rows.append((slot, position, combined(values)))
        return rows

    def _recur(self, rows, inputs, chunk):
        state_from, save = int(inputs.chunk_from[chunk]), int(inputs.chunk_save[chunk])
        known = len(rows) - int(inputs.chunk_drafted[chunk])
        state, out = 0 if state_from == ZERO_STATE else int(self.states[state_from]), []
        assert state >= 0, "reads a state that was never written"
        for number, (slot, position, value) in enumerate(rows, 1):
            state = next_state(state, int(self.state.tokens[slot, position]))
            out.append((slot, position, combined([value, state])))
            if number == known:
                self.states[slot] = state
                self.states[save if save != NO_SNAPSHOT else slot] = state
        if known < len(rows):
            self.states[int(inputs.chunk_spare[chunk])] = state
        return out

    def _attend(self, group, span, slot, position):
        table, token = self.state.block_tables[group, slot], int(self.state.tokens[slot, position])
        if span == CAUSAL:
            before = self._read(table, position - 1) if position else 0
            assert before >= 0, "reads K/V that was never computed"
            self._write(table, position, chain_hash(before, token))
            return self._read(table, position)
        self._write(table, position, own_value(group, position, token))
        read = range(kept_from(span, position), position + 1)
        values = [self._read(table, p) for p in read]
        tokens = self.state.tokens[slot].tolist()
        assert values == [own_value(group, p, tokens[p]) for p in read], "reads the K/V of others"
        return functools.reduce(chain_hash, values[span.first(position) - read[0] :], 0)

    def _read(self, table, position):
        size = self.limits.block_size
        return int(self.kv[table[position // size], position % size])

    def _write(self, table, position, value):
        size = self.limits.block_size
        self.kv[table[position // size], position % size] = value

    def _draw(self, inputs, outputs, r, token_rows):
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
                token = self._allowed(
                    mask_row(inputs, r, self.limits.max_num_seqs),
                    token,
                    stops if position + 1 < sampling["stop_from"] else (),
                )
            self.state.tokens[slot, position + 1] = token
        else:
            token = int(self.state.tokens[slot, position + 1])
        outputs.tokens[r] = token
        outputs.logprobs[r] = -(history % 1000) / 100
        outputs.top_ids[r] = (history + np.arange(20)) % VOCAB
        outputs.top_logprobs[r] = -np.arange(20)

    def _allowed(self, mask_row, token, banned):
        """The first token from this one on that the mask allows, if need be a banned one; or 0."""
        mask = self.state.masks[mask_row]
        onward = [(token + i) % VOCAB for i in range(VOCAB)]
        allowed = [t for t in onward if mask[t // 32] >> np.uint32(t % 32) & 1]
        return next((t for t in allowed if t not in banned), allowed[0] if allowed else 0)

    can_sleep = True

    def standby(self):
        self.sleeps = True
        return NOTHING

    def wake(self):
        self.sleeps = False

    def release(self):
        pass
