"""Two steps in flight: the bytes of one at a time, on a device that runs them as late as it may; and what
happens when a step never ends, or the executor is released."""

from __future__ import annotations

import gc
import weakref
from collections import deque
from collections.abc import Sequence

import numpy as np
import pytest
from cuda_harness import Machine, RandomWeights, limits

from firelane.backends.cuda.assembly import assemble
from firelane.contract import EMBED, StepInputs
from firelane.errors import MachineError
from firelane.program.ops import HeadShape
from tests.backends.cpu_harness import Chunk, fill, small_spec
from tests.backends.cuda.host_device import HostDevice
from tests.backends.cuda.late_device import LateDevice
from tests.backends.cuda.lean import lean
from tests.models.dense import dense_program

SPEC = small_spec(
    vocab_size=200,
    hidden_size=128,
    mlp_size=256,
    heads=HeadShape(heads=4, kv_heads=2, head_dim=32),
    windows=(0,),
)
STEPS = [
    [Chunk(0, 0, 21), Chunk(2, 0, 4)],
    [Chunk(2, 4, 1), Chunk(0, 21, 6, score=True), Chunk(3, 0, 2)],
    [Chunk(0, 27, 1), Chunk(2, 5, 1), Chunk(3, 2, 1)],
    [Chunk(0, 28, 1), Chunk(3, 3, 1)],
    [Chunk(2, 6, 1), Chunk(0, 29, 1)],
]


@pytest.fixture(autouse=True, scope="module")
def _lean():
    with lean():
        yield


def machine_on(device: HostDevice, **settings: float) -> Machine:
    weights = RandomWeights(dense_program(SPEC))
    sizes = limits(spans=weights.program.spans)
    executor = assemble(weights.program, limits=sizes, device=device, weights=weights.on_device, **settings)
    machine = Machine(executor, weights)
    rng = np.random.default_rng(7)
    for slot in range(4):
        machine.greedy(slot, rng.integers(0, 200, 30).tolist())
    return machine


def drive(m: Machine, steps: Sequence[Sequence[Chunk]], *, depth: int) -> list[bytes]:
    """The outputs of each step, with `depth` of them in flight; the last row of each is an embedding."""
    found: list[bytes] = []
    in_flight: deque[int] = deque()
    sets = [StepInputs.allocate(m.executor.limits) for _ in range(depth + 1)]

    def wait() -> None:
        rows, outputs = in_flight.popleft(), m.executor.wait()
        parts = (outputs.tokens, outputs.logprobs, outputs.top_ids)
        found.append(b"".join(a[: rows - 1].tobytes() for a in parts) + outputs.hidden[rows - 1].tobytes())

    for number, chunks in enumerate(steps):
        inputs = fill(sets[number % len(sets)], chunks)
        inputs.row_kind[inputs.num_rows - 1] = EMBED
        m.executor.submit(inputs)
        in_flight.append(inputs.num_rows)
        poison_inputs(sets[(number + 1) % len(sets)])
        if len(in_flight) == depth:
            wait()
    while in_flight:
        wait()
    return found


def poison_inputs(inputs: StepInputs) -> None:
    """Overwrite what a step was started with: it is free again when the step's wait() has returned."""
    for array in (inputs.chunk_slot, inputs.chunk_start, inputs.chunk_len, inputs.row_slot, inputs.row_kind):
        array[:] = 0x7F7F7F


def test_two_in_flight_give_the_bytes_of_one() -> None:
    one = machine_on(HostDevice(warm=False))
    two = machine_on(LateDevice())
    assert two.executor.max_in_flight == 2
    assert drive(one, STEPS, depth=1) == drive(two, STEPS, depth=2)
    assert (one.executor.state.tokens == two.executor.state.tokens).all()


def test_a_third_step_has_no_room() -> None:
    m = machine_on(LateDevice())
    for position in (0, 1):
        m.executor.submit(m.fill([Chunk(0, position, 1)]))
    with pytest.raises(AssertionError, match="in flight"):
        m.executor.submit(m.fill([Chunk(0, 2, 1)]))


def test_outputs_stay_until_the_second_next_wait_with_another_in_flight() -> None:
    m = machine_on(LateDevice())
    for position in (0, 1):
        m.executor.submit(m.fill([Chunk(0, position, 1)]))
    first = m.executor.wait()
    kept = first.tokens[:1].copy(), first.logprobs[:1].copy()
    m.executor.submit(m.fill([Chunk(0, 2, 1)]))
    m.executor.wait()
    assert (first.tokens[:1], first.logprobs[:1]) == kept


def test_a_step_that_never_ends_is_an_error_and_can_be_released() -> None:
    device = LateDevice()
    m = machine_on(device, step_limit_s=0.25)
    weights = weakref.ref(m.executor.memory)
    m.executor.submit(m.fill([Chunk(0, 0, 3)]))
    device.stream.hangs = True
    with pytest.raises(MachineError, match=r"within 0\.25 s"):
        m.executor.wait()
    m.executor.release()
    m.executor.release()
    assert weights() is not None  # the device may still write there


def test_release_after_a_failed_step_drops_them_where_the_device_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    device = LateDevice()
    m = machine_on(device)
    executor = m.executor
    alive = [weakref.ref(thing) for thing in (executor.memory, executor.memory.pages.pool)]
    inputs = m.fill([Chunk(0, 0, 1)])

    def fail(_: object) -> None:
        raise RuntimeError("CUDA error: invalid argument")

    monkeypatch.setattr(device.stream, "start", fail)
    with pytest.raises(MachineError, match="running a step of 1 tokens"):
        executor.submit(inputs)
    executor.release()
    del m
    gc.collect()
    assert [thing for ref in alive if (thing := ref()) is not None] == []


@pytest.mark.parametrize("in_flight", [0, 1, 2])
def test_release_drops_weights_buffers_and_the_kv_cache(in_flight: int) -> None:
    m = machine_on(LateDevice())
    executor, memory = m.executor, m.executor.memory
    owned = [memory, *memory.values.values(), memory.pages.pool]
    owned += [matrix for matrix in m.weights.matrices.values()]
    for position in range(in_flight):
        executor.submit(m.fill([Chunk(0, position, 1)]))
    alive = [weakref.ref(thing) for thing in owned]
    sizes = executor.kv_bytes, executor.weights_bytes
    executor.release()
    del m, memory, owned
    gc.collect()
    assert [thing for ref in alive if (thing := ref()) is not None] == []
    assert sizes == (executor.kv_bytes, executor.weights_bytes)
