"""Time of a step on a described device: of each op what limits it, memory or arithmetic, and of each stage
what its ranks exchange."""

from __future__ import annotations

from dataclasses import dataclass

from firelane.parallel.balance import cut, live_values, units
from firelane.parallel.shares import OpShare, Shares
from firelane.plan.devices import Device
from firelane.plan.forms import WeightForm
from firelane.plan.layout import Layout
from firelane.plan.ranks import Stage, runs_on_all
from firelane.program.ops import (
    Attention,
    DeltaRule,
    ExpertGatedLinear,
    ExpertLinear,
    GatedLinear,
    HeadLinear,
    Linear,
    Op,
    ShortConv,
    StateSpace,
)
from firelane.program.program import Program
from firelane.program.values import Cost, StepShape

GIGA, TERA, MICRO = 1e9, 1e12, 1e-6
SUM_BYTES = 4
"""Of a number that ranks add up."""
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
    """Times of ops of one layout on one device, in steps of one group of sequences."""

    device: Device
    layout: Layout
    form: WeightForm

    def op_seconds(self, op: Op, share: OpShare, shape: StepShape, kv_ratio: float = 1.0) -> float:
        """kv_ratio: bytes of what the op keeps of tokens, to those in the program's dtype."""
        kernels = self.device.kernels
        if runs_on_all(op, self.layout):
            shape = scaled(shape, self.layout.dp)
        cost = _cost(op, share, shape, self.form, kv_ratio)
        overhead = kernels.op_us * MICRO
        match op:
            case Linear() | GatedLinear() | HeadLinear() | ExpertGatedLinear() | ExpertLinear():
                part = self._product_share(op, shape)
                return overhead + max(self._stream(cost.weight_bytes), self._flops(cost.flops, part))
            case Attention():
                return overhead + self._attention(op, cost)
            case DeltaRule() | ShortConv() | StateSpace():
                moved = cost.kv_bytes / (kernels.kv_stream * self._read)
                return overhead + max(moved, self._flops(cost.flops, kernels.recurrent))
            case _:
                return overhead + self._rows(op, share, shape)

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

    def exchange_seconds(self, op: Op, share: OpShare, shape: StepShape) -> float:
        """All ranks adding up numbers, or bringing them together, each sending and receiving at once."""
        everywhere = runs_on_all(op, self.layout)
        ranks = self.layout.ep if everywhere else self.layout.tp
        numbers = share.reduced * 2 + share.gathered
        if ranks == 1 or not numbers:
            return 0.0
        rows = (scaled(shape, self.layout.dp) if everywhere else shape).rows(op.outputs[0].rows)
        sent = SUM_BYTES * rows * numbers * (ranks - 1) / ranks
        return self.device.link_us * MICRO + sent / (self.device.link_gbps * GIGA)

    def send_seconds(self, width: int, shape: StepShape) -> float:
        """Rows of so many numbers from one stage to the next."""
        return self.device.link_us * MICRO + SUM_BYTES * width * shape.tokens / (
            self.layout.tp * self.device.link_gbps * GIGA
        )


def stage_time(stage: Stage, clock: Clock, shape: StepShape) -> StepTime:
    """Of a step of one group of sequences."""
    shares = [(op, stage.shares.op(op)) for op in stage.ops]
    compute = sum(clock.op_seconds(op, share, shape, stage.kv_ratio(op)) for op, share in shares)
    exchange = sum(clock.exchange_seconds(op, share, shape) for op, share in shares)
    if stage.run.stop < len(stage.program.ops):
        crossing = live_values(stage.program)[stage.run.stop]
        exchange += clock.send_seconds(sum(value.width for value in crossing), shape)
    return StepTime(compute=compute + clock.device.kernels.step_us * MICRO, exchange=exchange)


def make_stages(
    program: Program, layout: Layout, form: WeightForm, kv_dtype: str, device: Device, shape: StepShape
) -> list[Stage]:
    """The stages of a layout, cut where steps of `shape` make the slowest one fastest. Raises UsageError
    where the model cannot be divided so."""
    shares = Shares(program, layout.tp, layout.ep)
    clock = Clock(device=device, layout=layout, form=form)
    runs = units(program) if layout.pp > 1 else (range(len(program.ops)),)
    costs = [
        sum(clock.op_seconds(op, shares.op(op), shape) for op in program.ops[run.start : run.stop])
        for run in runs
    ]
    return [
        Stage(
            program=program,
            layout=layout,
            shares=shares,
            run=range(runs[part.start].start, runs[part.stop - 1].stop),
            form=form,
            kv_dtype=kv_dtype,
        )
        for part in cut(costs, layout.pp)
    ]


def _cost(op: Op, share: OpShare, shape: StepShape, form: WeightForm, kv_ratio: float) -> Cost:
    """Of a rank, with weights in their form."""
    cost = op.cost(shape)
    plain = sum(weight.nbytes for weight in op.weights)
    coded = sum(form.nbytes(weight) for weight in op.weights) / plain if plain else 1.0
    return Cost(
        flops=cost.flops * share.flops,
        weight_bytes=cost.weight_bytes * share.weights * coded,
        kv_bytes=cost.kv_bytes * share.kept * kv_ratio,
    )
