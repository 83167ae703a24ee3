"""A Program run by the NumPy reference, as an executor: keys and values are read and written through the
block tables, states through the pool."""

from __future__ import annotations

import numpy as np

from firelane.contract import CAUSAL, Chunk, SlotState, Span, StepInputs, StepLimits, StepOutputs, Window
from firelane.program.ops import Attention, Embed, HeadShape, Linear, RopeAndCache, Sample, SelectRows
from firelane.program.program import Program
from firelane.program.reference import ReferenceExecutor
from firelane.program.values import DType, Rows, Value, Weight
from tests.program.running_sum import RunningSum

VOCAB = 50
WIDTH = 16
SHAPE = HeadShape(heads=2, kv_heads=1, head_dim=8)
SPANS = (CAUSAL, Window(8), Chunk(8))


def value(name: str, width: int = WIDTH, rows: Rows = Rows.TOKEN) -> Value:
    return Value(name, rows, width, DType.F32)


def weight(name: str, *shape: int) -> Weight:
    return Weight.stored(name, shape, DType.F32)


def toy_program(spans: tuple[Span, ...] = SPANS, states: int = 2) -> Program:
    """An attention layer of each span, a running sum behind each of the first ones; no norms."""
    x = value("embedded")
    ops: list = [Embed(table=weight("table", VOCAB, WIDTH), out=x)]
    for layer, span in enumerate(spans):
        qkv, q, attended = (
            value(f"{layer}.{name}", width) for name, width in (("qkv", 32), ("q", 16), ("a", 16))
        )
        ops += [
            Linear(x=x, weight=weight(f"{layer}.qkv", 32, WIDTH), out=qkv),
            RopeAndCache(qkv=qkv, layer=layer, shape=SHAPE, rotary=None, out=q),
            Attention(q=q, layer=layer, shape=SHAPE, scale=0.35, span=span, out=attended),
            Linear(x=attended, weight=weight(f"{layer}.o", WIDTH, 16), residual=x, out=value(f"{layer}.x")),
        ]
        x = value(f"{layer}.x")
        if layer < states:
            summed = value(f"{layer}.sum")
            ops += [
                RunningSum(x=x, layer=f"{layer}.sum", decay=0.5, out=summed),
                Linear(
                    x=summed, weight=weight(f"{layer}.s", WIDTH, WIDTH), residual=x, out=value(f"{layer}.y")
                ),
            ]
            x = value(f"{layer}.y")
    last, logits = value("last", rows=Rows.OUTPUT), value("logits", VOCAB, Rows.OUTPUT)
    head = Linear(x=last, weight=weight("head", VOCAB, WIDTH), out=logits)
    ops += [SelectRows(x=x, out=last), head, Sample(logits=logits)]
    return Program(name="toy", vocab_size=VOCAB, max_model_len=96, ops=tuple(ops), head=head)


def random_weights(program: Program) -> dict[str, np.ndarray]:
    random = np.random.default_rng(5)
    return {w.name: random.standard_normal(w.shape).astype(np.float32) * 0.3 for w in program.weights}


class PagedReference:
    """An Executor. All of a step runs inside wait(). Pages and states that nothing was written to are NaN,
    and of a slot's keys and values a step sees those alone that its block tables and spans lead to."""

    weights_bytes = 0
    kv_bytes = 0
    is_pipelined = False
    vocab_size = VOCAB
    features_in = features_out = 0
    can_generate = True
    activation_dtype = "bf16"
    hidden_width = WIDTH

    def __init__(self, program: Program, *, max_in_flight: int = 1, **sizes) -> None:
        self.limits = StepLimits(**sizes, spans=program.spans, state_bytes=program.state_bytes)
        self.max_in_flight = max_in_flight
        self.state = SlotState.allocate(self.limits, VOCAB)
        limits = self.limits
        self.reference = ReferenceExecutor(
            program,
            random_weights(program),
            slots=limits.max_num_seqs,
            max_len=limits.max_model_len,
            snapshots=limits.num_snapshots,
        )
        shape = (limits.num_blocks, limits.block_size, SHAPE.kv_heads, SHAPE.head_dim)
        self.pages = {
            layer.layer: (group, group_of.span, np.full((2, *shape), np.nan, np.float32))
            for group, group_of in enumerate(program.cache_groups)
            for layer in group_of.layers
        }
        self.outputs = [StepOutputs.allocate(self.limits, WIDTH) for _ in range(max_in_flight + 1)]
        self.queue: list[StepInputs] = []
        self.turn = 0

    def submit(self, inputs: StepInputs) -> None:
        assert len(self.queue) < self.max_in_flight
        self.queue.append(inputs)

    def wait(self) -> StepOutputs:
        inputs = self.queue.pop(0)
        for i in range(inputs.num_chunks):
            self._load(int(inputs.chunk_slot[i]), int(inputs.chunk_start[i]))
        step = self.reference.step(inputs, self.state)
        for i in range(inputs.num_chunks):
            start = int(inputs.chunk_start[i])
            self._store(int(inputs.chunk_slot[i]), np.arange(start, start + inputs.chunk_len[i]))
        self.turn += 1
        outputs = self.outputs[self.turn % len(self.outputs)]
        for name in ("tokens", "logprobs", "top_ids", "top_logprobs", "hidden"):
            getattr(outputs, name)[: inputs.num_rows] = getattr(step.outputs, name)
        return outputs

    def _load(self, slot: int, start: int) -> None:
        for layer, (group, span, pages) in self.pages.items():
            seen = np.arange(span.first(start), start)
            for cache, paged in zip(self._caches(layer), pages, strict=True):
                cache[slot] = np.nan
                cache[slot, seen] = paged[self._place(group, slot, seen)]

    def _store(self, slot: int, positions: np.ndarray) -> None:
        for layer, (group, _, pages) in self.pages.items():
            for cache, paged in zip(self._caches(layer), pages, strict=True):
                paged[self._place(group, slot, positions)] = cache[slot, positions]

    def _caches(self, layer: int) -> tuple[np.ndarray, np.ndarray]:
        cache = self.reference.cache
        return cache.keys[layer], cache.values[layer]

    def _place(self, group: int, slot: int, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        size = self.limits.block_size
        return self.state.block_tables[group, slot, positions // size], positions % size

    def release(self) -> None:
        pass
