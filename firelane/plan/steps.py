"""Time of a step on a described device: of each op what limits it, memory or arithmetic, and of each stage
what its ranks exchange."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from firelane.parallel.balance import cut
from firelane.parallel.shares import OpShare, Shares, spreads
from firelane.plan.devices import DeviceSpec
from firelane.plan.layout import ParallelLayout
from firelane.plan.model import PlannedModel
from firelane.plan.ranks import Stage, runs_on_all
from firelane.program.ops import (
    Attention,
    DeltaRule,
    ExpertGatedLinear,
    ExpertLinear,
    GatedLinear,
    HeadLinear,
    IndexTopK,
    Linear,
    Op,
    ShortConv,
    StateSpace,
)
from firelane.program.values import Cost, StepShape

GIGA, TERA, MICRO = 1e9, 1e12, 1e-6
BALANCED_FOR = (256, 1024)
"""Sequences and their length in the steps that stages are balanced for."""
SUM_BYTES = 4
"""Bytes of a number that ranks add up."""
Experts = ExpertGatedLinear | ExpertLinear
Products = Linear | GatedLinear | HeadLinear
Recurrent = DeltaRule | ShortConv | StateSpace


@dataclass(frozen=True, kw_only=True)
class StepTime:
    """Seconds of a step of one stage: of its ops, and of what its ranks exchange with each other and send to
    the next stage."""

    compute: float
    exchange: float

    @property
    def total(self) -> float:
        return self.compute + self.exchange


def decode_shape(sequences: float, context: int) -> StepShape:
    """A step that decodes one token of each sequence, which is then `context` tokens long."""
    count = max(1, round(sequences))
    seen = count * context
    return StepShape(tokens=count, outputs=count, attended=seen, context=seen, sequences=count)


def prefill_shape(first: int, last: int) -> StepShape:
    """A step that takes tokens first .. last - 1 of one prompt."""
    tokens = last - first
    attended = tokens * first + tokens * (tokens + 1) // 2
    return StepShape(tokens=tokens, outputs=1, attended=attended, context=last, sequences=1)


def mixed_shape(decode: StepShape, prompt: int, output: int) -> StepShape:
    """A step of a full server: it decodes, and takes as many tokens of prompts as make up for the sequences
    that end."""
    tokens = round(decode.sequences * prompt / output)
    return StepShape(
        tokens=decode.tokens + tokens,
        outputs=decode.outputs,
        attended=decode.attended + tokens * prompt // 2,
        context=decode.context + min(tokens, prompt),
        sequences=decode.sequences,
    )


def scaled(shape: StepShape, times: int) -> StepShape:
    """The step of so many groups of sequences together."""
    return StepShape(
        tokens=shape.tokens * times,
        outputs=shape.outputs * times,
        attended=shape.attended * times,
        context=shape.context * times,
        sequences=shape.sequences * times,
    )


@dataclass(frozen=True, kw_only=True)
class Clock:
    """Times of the ops of a model in one layout on one device, in steps of one group of sequences."""

    device: DeviceSpec
    model: PlannedModel
    layout: ParallelLayout
    shares: Shares

    def times(self, shape: StepShape) -> list[StepTime]:
        """Time of each op of the program, on one of the ranks that run it."""
        known: dict[int, StepTime] = {}
        for kind, op in zip(self.model.kinds, self.model.program.ops, strict=True):
            if kind not in known:
                known[kind] = self._time(op, shape)
        return [known[kind] for kind in self.model.kinds]

    def _time(self, op: Op, shape: StepShape) -> StepTime:
        share = self.shares.op(op)
        if runs_on_all(op, self.layout):
            shape = scaled(shape, self.layout.dp)
        return StepTime(compute=self._compute(op, share, shape), exchange=self._exchange(op, share, shape))

    def _compute(self, op: Op, share: OpShare, shape: StepShape) -> float:
        kernels = self.device.kernels
        cost = self._cost(op, share, shape)
        overhead = kernels.op_us * MICRO
        match op:
            case Linear() | GatedLinear() | HeadLinear() | ExpertGatedLinear() | ExpertLinear():
                part = self._product_share(op, shape)
                return overhead + max(self._stream(cost.weight_bytes), self._flops(cost.flops, part))
            case IndexTopK():
                read = cost.kv_bytes / (kernels.kv_stream * self._read)
                return overhead + max(read, self._flops(cost.flops, kernels.products))
            case Attention():
                return overhead + self._attention(op, cost)
            case DeltaRule() | ShortConv() | StateSpace():
                moved = cost.kv_bytes / (kernels.kv_stream * self._read)
                return overhead + max(moved, self._flops(cost.flops, kernels.recurrent))
            case _:
                return overhead + self._rows(op, share, shape)

    def _cost(self, op: Op, share: OpShare, shape: StepShape) -> Cost:
        """Cost of an op on a rank, with weights in their form."""
        cost, form = op.cost(shape), self.model.form
        plain = sum(weight.nbytes for weight in op.weights)
        coded = sum(form.nbytes(weight) for weight in op.weights) / plain if plain else 1.0
        return Cost(
            cost.flops * share.flops, cost.weight_bytes * share.weights * coded, cost.kv_bytes * share.kept
        )

    @property
    def _read(self) -> float:
        return self.device.read_gbps * GIGA

    def _stream(self, nbytes: float) -> float:
        return nbytes / (self.device.kernels.stream * self._read)

    def _flops(self, flops: float, part: float) -> float:
        return flops / (part * self.device.tflops * TERA)

    def _product_share(self, op: Op, shape: StepShape) -> float:
        kernels, rows = self.device.kernels, shape.rows(op.outputs[0].rows)
        if isinstance(op, Experts):
            rows = rows * op.picks.width / op.weight.matrices
        if rows <= kernels.few_rows:
            return kernels.products_few
        return kernels.experts if isinstance(op, Experts) else kernels.products

    def _attention(self, op: Attention, cost: Cost) -> float:
        """Reading, then arithmetic of scores, exponentials and sums, one after the other in a tile."""
        kernels, shape = self.device.kernels, op.shape
        scores = cost.flops / (2 * (shape.head_dim + shape.v_dim))
        beside = kernels.kv_byte_flops * cost.kv_bytes + kernels.score_flops * scores
        read = cost.kv_bytes / (kernels.kv_stream * self._read)
        products = self._flops(cost.flops, kernels.products) + self._flops(beside, 1.0)
        return max(read, products) if kernels.on_gpu else read + products

    def _rows(self, op: Op, share: OpShare, shape: StepShape) -> float:
        """Values in and out."""
        widths = [v.width * v.dtype.itemsize * shape.rows(v.rows) for v in (*op.inputs, *op.outputs)]
        return sum(widths) * share.flops / (self.device.kernels.rows_stream * self._read)

    def _exchange(self, op: Op, share: OpShare, shape: StepShape) -> float:
        """All ranks adding up numbers, or bringing them together, each sending and receiving at once."""
        ranks = self.layout.ep if spreads(op, self.layout.ep) else self.layout.tp
        numbers = share.reduced * 2 + share.gathered
        if ranks == 1 or not numbers:
            return 0.0
        sent = SUM_BYTES * shape.rows(op.outputs[0].rows) * numbers * (ranks - 1) / ranks
        return self.device.link_us * MICRO + sent / (self.device.link_gbps * GIGA)

    def send_seconds(self, width: int, shape: StepShape) -> float:
        """Rows of so many numbers from one stage to the next."""
        return self.device.link_us * MICRO + SUM_BYTES * width * shape.tokens / (
            self.layout.tp * self.device.link_gbps * GIGA
        )


def stage_times(stages: Sequence[Stage], clock: Clock, shape: StepShape) -> list[StepTime]:
    """Time of each stage in a step of one group of sequences."""
    every = clock.times(shape)
    return [_stage_time(stage, clock, shape, every[stage.run.start : stage.run.stop]) for stage in stages]


def _stage_time(stage: Stage, clock: Clock, shape: StepShape, ops: Sequence[StepTime]) -> StepTime:
    exchange = sum(time.exchange for time in ops)
    if stage.run.stop < len(stage.program.ops):
        exchange += clock.send_seconds(sum(v.width for v in stage.model.live[stage.run.stop]), shape)
    compute = sum(time.compute for time in ops) + clock.device.kernels.step_us * MICRO
    return StepTime(compute=compute, exchange=exchange)


def make_stages(clock: Clock) -> list[Stage]:
    """The stages of a layout, cut where steps of many sequences make the slowest one fastest. Raises
    UsageError where there are not so many."""
    model, layout = clock.model, clock.layout
    runs = model.units if layout.pp > 1 else (range(len(model.program.ops)),)
    every = clock.times(decode_shape(*BALANCED_FOR)) if layout.pp > 1 else []
    costs = [sum(time.total for time in every[run.start : run.stop]) for run in runs]
    return [
        Stage(
            model=model,
            layout=layout,
            shares=clock.shares,
            run=range(runs[part.start].start, runs[part.stop - 1].stop),
        )
        for part in cut(costs, layout.pp)
    ]
