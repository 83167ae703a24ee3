"""Estimates: memory, room, times and rates of a model in one layout on described devices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from firelane.errors import UsageError
from firelane.parallel.shares import Shares
from firelane.plan.devices import DeviceSpec
from firelane.plan.layout import ParallelLayout
from firelane.plan.model import PlannedModel
from firelane.plan.ranks import Memory, PlanSizes, Room, Stage, room, stage_weights
from firelane.plan.steps import (
    Clock,
    StepTime,
    decode_shape,
    make_stages,
    mixed_shape,
    prefill_shape,
    stage_times,
)

GIB = 1 << 30
BEST_FOR = ("throughput", "latency", "context")


@dataclass(frozen=True, kw_only=True)
class PlanWorkload:
    """`batch` sequences at a time, each `context` tokens long when it decodes; or, with an `output`, that
    come with prompts of `context` tokens and stay for so many more. Weights come from a drive of
    `drive_gbps`."""

    batch: int = 1
    context: int = 1024
    output: int = 0
    drive_gbps: float = 3.0


@dataclass(frozen=True, kw_only=True)
class PlanSetup:
    """Sizes that all layouts of a plan share. max_num_seqs, step_tokens, max_model_len: None for the engine's
    own; kept_back: bytes of each device for others."""

    model: PlannedModel
    device: DeviceSpec
    max_num_seqs: int | None = None
    step_tokens: int | None = None
    max_model_len: int | None = None
    kv_bytes: int | None = None
    kept_back: int = 0

    def sizes(self, max_model_len: int) -> PlanSizes:
        kernels = self.device.kernels
        seqs = self.max_num_seqs or 256
        return PlanSizes(
            max_num_seqs=seqs,
            step_tokens=self.step_tokens or max(kernels.step_tokens, seqs),
            block_size=kernels.block_size,
            max_model_len=max_model_len,
        )


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """One layout. ranks: memory of a rank of each stage; weights_bytes, kv_bytes: of all ranks together.

    sequences: of the workload's, those that run at a time: the others wait for room. decode_s: from one
    token of a sequence to its next; prefill_s: of a prompt of the workload's context; start_s: of the
    process, until the first token. times: of a decode step, by stage. bubble: the part of their time that
    stages wait, on average. serving_s: as decode_s, where each step also takes its part of the prompts of
    sequences that come; 0 without an output."""

    layout: ParallelLayout
    form: str
    kv_dtype: str
    workload: PlanWorkload
    ranks: tuple[Memory, ...]
    weights_bytes: int
    kv_bytes: int
    room: Room
    sequences: int
    decode_s: float
    prefill_s: float
    start_s: float
    times: tuple[StepTime, ...]
    bubble: float
    serving_s: float

    @property
    def tokens_per_s(self) -> float:
        """Decoded by all sequences together."""
        return self.sequences / self.decode_s

    @property
    def requests_per_s(self) -> float:
        """Answered by a server that always has as many under way as run at a time."""
        return self.sequences / (self.workload.output * self.serving_s) if self.serving_s else 0.0

    @property
    def prefill_tokens_per_s(self) -> float:
        """Tokens of prompts that all groups of sequences compute in a second."""
        slots = self.layout.dp * self.layout.pp
        return self.workload.context * slots / self.prefill_s

    @property
    def fullest(self) -> Memory:
        return min(self.ranks, key=lambda memory: memory.left)

    @property
    def problem(self) -> str:
        """Reason why it does not fit, or ""."""
        if self.fullest.left < 0:
            return f"{-self.fullest.left / GIB:.1f} GiB too little for the weights"
        if not self.room.sequences:
            return f"no room for a sequence of {self.workload.context} tokens"
        return ""


def estimate(setup: PlanSetup, layout: ParallelLayout, workload: PlanWorkload) -> Estimate:
    """Raises UsageError where the model cannot be divided so."""
    model = setup.model
    shares = Shares(program=model.program, tp=layout.tp, ep=layout.ep, cut=model.cut)
    clock = Clock(device=setup.device, model=model, layout=layout, shares=shares)
    stages = make_stages(clock)
    memory, left = _memory(setup, stages, workload)
    found = _room(setup, stages, left, workload)
    sequences = max(1, min(workload.batch, found.sequences))
    shape = decode_shape(sequences / min(sequences, layout.dp * layout.pp), _length(workload))
    times = tuple(stage_times(stages, clock, shape))
    decode, bubble = _pipelined(times, sequences, layout)
    mixed = mixed_shape(shape, workload.context, workload.output) if workload.output else None
    serving = _pipelined(stage_times(stages, clock, mixed), sequences, layout)[0] if mixed else 0.0
    kv = [max(0.0, budget) * layout.tp * layout.dp for budget in left]
    return Estimate(
        layout=layout,
        form=model.form.name,
        kv_dtype=model.kv_dtype,
        workload=workload,
        ranks=tuple(memory),
        weights_bytes=stage_weights(stages, layout),
        kv_bytes=int(sum(kv)),
        room=found,
        sequences=sequences,
        decode_s=decode,
        prefill_s=_prefill(setup, stages, clock, workload.context),
        start_s=_start(setup, stages, layout, workload),
        times=times,
        bubble=bubble,
        serving_s=serving,
    )


def _length(workload: PlanWorkload) -> int:
    """Tokens of a sequence that decodes, on average."""
    return workload.context + workload.output // 2


def _pipelined(times: Sequence[StepTime], sequences: int, layout: ParallelLayout) -> tuple[float, float]:
    """Seconds from one token of a sequence to its next, where its group of sequences goes through the stages
    behind others, and the part of that in which a stage waits, on average."""
    in_flight = max(1, min(sequences // layout.dp, layout.pp))
    every = sum(time.total for time in times)
    seconds = max(every, in_flight * max(time.total for time in times))
    return seconds, 1 - in_flight * every / len(times) / seconds


def _memory(
    setup: PlanSetup, stages: Sequence[Stage], workload: PlanWorkload
) -> tuple[list[Memory], list[float]]:
    """The memory of a rank of each stage, and what of it the rank's KV cache takes. The longest sequence,
    which tables are made for, is what has room where the model's own has not."""
    if setup.max_model_len is not None:
        return _memory_for(setup, stages, setup.max_model_len)
    shortest = min(setup.model.program.max_model_len, workload.context)
    _, left = _memory_for(setup, stages, shortest)
    return _memory_for(setup, stages, max(shortest, _room(setup, stages, left, workload).one))


def _memory_for(
    setup: PlanSetup, stages: Sequence[Stage], max_model_len: int
) -> tuple[list[Memory], list[float]]:
    sizes = setup.sizes(max_model_len)
    memory = [stage.memory(setup.device, sizes, setup.kept_back) for stage in stages]
    return memory, [_budget(setup, m) for m in memory]


def _budget(setup: PlanSetup, memory: Memory) -> float:
    left = max(0, memory.left)
    if setup.kv_bytes is not None:
        return min(left, setup.kv_bytes)
    return left * setup.device.kernels.kv_part


def _room(setup: PlanSetup, stages: Sequence[Stage], left: list[float], workload: PlanWorkload) -> Room:
    return room(list(stages), left, setup.sizes(workload.context), workload.context + workload.output)


def _prefill(setup: PlanSetup, stages: Sequence[Stage], clock: Clock, prompt: int) -> float:
    """Chunks of a prompt follow each other through the stages."""
    chunk = setup.sizes(prompt).step_tokens
    total = 0.0
    for first in range(0, prompt, chunk):
        shape = prefill_shape(first, min(prompt, first + chunk))
        times = [time.total for time in stage_times(stages, clock, shape)]
        total += max(times) if first else sum(times)
    return total


def _start(
    setup: PlanSetup, stages: Sequence[Stage], layout: ParallelLayout, workload: PlanWorkload
) -> float:
    """One copy of the weights comes from the drive; each rank's part goes on to its device meanwhile."""
    device = setup.device
    read = sum(stage.weights_bytes for stage in stages) * layout.tp / (workload.drive_gbps * 1e9)
    upload = max(stage.weights_bytes for stage in stages) / (device.host_gbps * 1e9)
    return device.kernels.start_s + max(read, upload if device.kernels.on_gpu else 0.0)


def estimate_all(
    setup: PlanSetup, layouts: Sequence[ParallelLayout], workloads: Sequence[PlanWorkload]
) -> list[Estimate]:
    """Estimates of every layout that the model can be divided for, in the order given. Raises UsageError
    where there is none."""
    found: list[Estimate] = []
    refusal: UsageError | None = None
    for layout in layouts:
        try:
            found += [estimate(setup, layout, workload) for workload in workloads]
        except UsageError as error:
            refusal = refusal or error
    if not found and refusal is not None:
        raise refusal
    return found


def best(estimates: Sequence[Estimate], wanted: str) -> Estimate:
    """The best estimate that fits: the one with the most tokens a second, the least time to the next token,
    or room for the most tokens; of equal ones that with the fewest exchanges. There has to be one."""
    fitting = [e for e in estimates if not e.problem]
    assert fitting, "nothing fits"

    def rating(e: Estimate) -> tuple[float, int, int]:
        rate = {"throughput": e.tokens_per_s, "latency": -e.decode_s, "context": e.room.one}[wanted]
        return rate, -e.layout.tp, -e.layout.pp

    return max(fitting, key=rating)
