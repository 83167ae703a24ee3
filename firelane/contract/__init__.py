"""The interface between the engine and every backend. Imports no other package of Firelane."""

from firelane.contract.executor import Executor, ProgressCallback
from firelane.contract.limits import EMBED, SAMPLE, SCORE, StepLimits
from firelane.contract.pages import HostPages, PageMemory
from firelane.contract.resolve import BackendDefaults, resolve_limits, smallest_limits
from firelane.contract.slots import SAMPLING_DTYPE, SlotState, shared_memory
from firelane.contract.span import CAUSAL, KEY_TILE, Causal, Chunk, Span, Window, kept_from, reach
from firelane.contract.standby import NOTHING, GivenBack, private_bytes
from firelane.contract.step import NO_SNAPSHOT, ZERO_STATE, StepInputs, StepOutputs
from firelane.request_limits import MAX_BIAS, MAX_LOGPROBS, MAX_STOP_IDS

__all__ = [
    "CAUSAL",
    "EMBED",
    "KEY_TILE",
    "MAX_BIAS",
    "MAX_LOGPROBS",
    "MAX_STOP_IDS",
    "NOTHING",
    "NO_SNAPSHOT",
    "SAMPLE",
    "SAMPLING_DTYPE",
    "SCORE",
    "ZERO_STATE",
    "BackendDefaults",
    "Causal",
    "Chunk",
    "Executor",
    "GivenBack",
    "HostPages",
    "PageMemory",
    "ProgressCallback",
    "SlotState",
    "Span",
    "StepInputs",
    "StepLimits",
    "StepOutputs",
    "Window",
    "kept_from",
    "private_bytes",
    "reach",
    "resolve_limits",
    "shared_memory",
    "smallest_limits",
]
