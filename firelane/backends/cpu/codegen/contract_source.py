"""The contract in C++: constants and struct layouts that generated sources begin with."""

from __future__ import annotations

import ctypes as ct
from itertools import groupby

import numpy as np

from firelane.backends.cpu.native import (
    LINK_BYTES,
    LINK_COUNTS_AT,
    LINK_ENDED_AT,
    LINK_STAGES_AT,
    MOST_IN_FLIGHT,
    MOST_LANES,
    STAGE_BUSY_AT,
    STAGE_BYTES,
    CreateStruct,
    LimitsStruct,
    PeerStruct,
    StepStruct,
)
from firelane.contract import (
    EMBED,
    KEY_TILE,
    MAX_BIAS,
    MAX_LOGPROBS,
    MAX_STOP_IDS,
    SAMPLE,
    SAMPLING_DTYPE,
    SCORE,
)

C_TYPES = {"float32": "float", "int32": "std::int32_t", "uint64": "std::uint64_t"}

TEMPLATE = """\
#include <cstddef>
#include <cstdint>

namespace firelane {{

constexpr int kMaxLogprobs = {max_logprobs}, kMaxBias = {max_bias}, kMaxStopIds = {max_stop_ids};
constexpr std::int32_t kSample = {sample}, kScore = {score}, kEmbed = {embed};
constexpr int kKeyTile = {key_tile};
constexpr int kMostInFlight = {in_flight}, kMostLanes = {lanes};
constexpr std::size_t kLinkEndedAt = {ended_at}, kLinkStagesAt = {stages_at}, kLinkCountsAt = {counts_at};
constexpr std::size_t kLinkBytes = {link_bytes}, kStageBusyAt = {busy_at}, kStageBytes = {stage_bytes};
constexpr std::size_t kLimitsBytes = {limits_bytes}, kCreateBytes = {create_bytes}, kStepBytes = {step_bytes};
constexpr std::size_t kPeerBytes = {peer_bytes};

struct SamplingParams {{
{fields}
}};
{checks}

}}  // namespace firelane
"""


def contract_source() -> str:
    """C++ declarations; the kernels of csrc/ are compiled behind them."""
    fields = dict(SAMPLING_DTYPE.fields or {})
    types = {name: C_TYPES[np.dtype(field[0]).name] for name, field in fields.items()}
    lines = [f"  {kind} {', '.join(names)};" for kind, names in groupby(types, key=types.__getitem__)]
    offsets = [f"offsetof(SamplingParams, {name}) == {field[1]}" for name, field in fields.items()]
    checks = [f"sizeof(SamplingParams) == {SAMPLING_DTYPE.itemsize}", *offsets]
    return TEMPLATE.format(
        max_logprobs=MAX_LOGPROBS,
        max_bias=MAX_BIAS,
        max_stop_ids=MAX_STOP_IDS,
        sample=SAMPLE,
        score=SCORE,
        embed=EMBED,
        key_tile=KEY_TILE,
        in_flight=MOST_IN_FLIGHT,
        lanes=MOST_LANES,
        ended_at=LINK_ENDED_AT,
        stages_at=LINK_STAGES_AT,
        counts_at=LINK_COUNTS_AT,
        link_bytes=LINK_BYTES,
        busy_at=STAGE_BUSY_AT,
        stage_bytes=STAGE_BYTES,
        limits_bytes=ct.sizeof(LimitsStruct),
        create_bytes=ct.sizeof(CreateStruct),
        step_bytes=ct.sizeof(StepStruct),
        peer_bytes=ct.sizeof(PeerStruct),
        fields="\n".join(lines),
        checks="\n".join(f"static_assert({check});" for check in checks),
    )
