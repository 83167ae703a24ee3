"""The executor interface: arrays in, arrays out, one native call or one graph launch per step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from firelane.contract.adapters import AdapterMemory
from firelane.contract.limits import StepLimits
from firelane.contract.pages import PageMemory
from firelane.contract.slots import SlotState
from firelane.contract.standby import GivenBack
from firelane.contract.step import StepInputs, StepOutputs

ProgressCallback = Callable[[str, float, float, str], None]
"""progress(stage, done, total, unit) of a load, as in wire.Progress."""


class Executor(Protocol):
    """Steps of one program on one device. At most `max_in_flight` of them have been submitted and not yet
    waited for; they run, and are waited for, in the order of their submission.
    """

    @property
    def limits(self) -> StepLimits: ...

    @property
    def max_in_flight(self) -> int:
        """Number of steps that may be submitted before the first of them is waited for: at least 1."""
        ...

    @property
    def is_pipelined(self) -> bool:
        """Whether steps in flight are computed at the same time, in stages: a sequence's token may then be
        drawn only in a step that is submitted when its last one is there. Prompts may go on from a step in
        flight."""
        ...

    @property
    def state(self) -> SlotState: ...

    @property
    def vocab_size(self) -> int: ...

    @property
    def hidden_width(self) -> int: ...

    @property
    def features_in(self) -> int:
        """Width of StepInputs.features; 0 where the program reads none."""
        ...

    @property
    def features_out(self) -> int:
        """Width of StepOutputs.features; 0 where the program tells none."""
        ...

    @property
    def can_generate(self) -> bool:
        """Whether tokens may be drawn. False: the model has no head, only hidden states mean something."""
        ...

    @property
    def arithmetic(self) -> str:
        """The kind of rounding, beside the program: executors that differ here give other bits. "" where all
        give the same."""
        ...

    @property
    def activation_dtype(self) -> str:
        """The inputs of products with matrices of integer codes: "bf16" or "int8"."""
        ...

    @property
    def weights_bytes(self) -> int: ...

    @property
    def kv_bytes(self) -> int: ...

    @property
    def page_memory(self) -> PageMemory | None:
        """The KV cache as bytes; None where this process does not reach all of it."""
        ...

    @property
    def state_memory(self) -> PageMemory | None:
        """All recurrent states as bytes, each a page; None where the program keeps none, and as
        page_memory."""
        ...

    @property
    def adapters(self) -> AdapterMemory | None:
        """Memory for low-rank adapters; None where none was asked for."""
        ...

    def settle(self) -> None:
        """Return when nothing works beside the steps, from any thread: no more weights are read or checked.
        May raise what the next step will."""
        ...

    def submit(self, inputs: StepInputs) -> None:
        """Start a step, behind those in flight; returns at once. `inputs` and its slots are the backend's
        until the wait() of this step returns."""
        ...

    def wait(self) -> StepOutputs:
        """Block until the oldest step in flight has ended (the GIL is released); returns its outputs."""
        ...

    @property
    def can_sleep(self) -> bool:
        """Whether `standby` and `wake` are there."""
        ...

    def standby(self) -> GivenBack:
        """Give back the memory of KV cache, states and buffers, whose content is lost, and let go of the
        weights' pages. No step is in flight, and none is submitted before `wake`. Idempotent. Returns what
        processes beside this one gave back, and a device. Raises MachineError where one of them is gone,
        OutOfMemoryError where the host has no room for what a device gives back."""
        ...

    def wake(self) -> None:
        """Have memory again, zeroed as it was at the start. Raises OutOfMemoryError. Idempotent."""
        ...

    def release(self) -> None:
        """Free threads and memory; idempotent."""
        ...
