"""The interface between the engine and every backend. Imports no other package of Firelane."""

from firelane.contract.adapters import (
    NO_ADAPTER,
    AdapterLimits,
    AdapterMemory,
    AdapterTensors,
    LowRank,
    check_adapter,
)
from firelane.contract.executor import Executor, ProgressCallback
from firelane.contract.limits import EMBED, SAMPLE, SCORE, StepLimits
from firelane.contract.pages import HostPages, PageMemory
from firelane.contract.resolve import BackendDefaults, resolve_limits, smallest_limits
from firelane.contract.slots import DRAFT_MASKS, SAMPLING_DTYPE, SlotState, shared_memory
from firelane.contract.span import (
    CAUSAL,
    KEY_TILE,
    Bidirectional,
    Causal,
    Chunk,
    Span,
    Window,
    kept_from,
    last_seen,
    reach,
)
from firelane.contract.standby import NOTHING, GivenBack, private_bytes
from firelane.contract.step import NO_SNAPSHOT, ZERO_STATE, StepInputs, StepOutputs, mask_row
from firelane.request_limits import MAX_BIAS, MAX_LOGPROBS, MAX_STOP_IDS

__all__ = [
    "CAUSAL",
    "DRAFT_MASKS",
    "EMBED",
    "KEY_TILE",
    "MAX_BIAS",
    "MAX_LOGPROBS",
    "MAX_STOP_IDS",
    "NOTHING",
    "NO_ADAPTER",
    "NO_SNAPSHOT",
    "SAMPLE",
    "SAMPLING_DTYPE",
    "SCORE",
    "ZERO_STATE",
    "AdapterLimits",
    "AdapterMemory",
    "AdapterTensors",
    "BackendDefaults",
    "Bidirectional",
    "Causal",
    "Chunk",
    "Executor",
    "GivenBack",
    "HostPages",
    "LowRank",
    "PageMemory",
    "ProgressCallback",
    "SlotState",
    "Span",
    "StepInputs",
    "StepLimits",
    "StepOutputs",
    "Window",
    "check_adapter",
    "kept_from",
    "last_seen",
    "mask_row",
    "private_bytes",
    "reach",
    "resolve_limits",
    "shared_memory",
    "smallest_limits",
]
