"""Options of ops that there are no CUDA kernels for yet: refused by name when a program is loaded."""

from __future__ import annotations

from collections.abc import Iterator

from firelane.errors import UnsupportedModelError
from firelane.program.ops import (
    Attention,
    Cast,
    Embed,
    ExpertGatedLinear,
    ExpertLinear,
    GatedLinear,
    Linear,
    Op,
    RMSNorm,
    RopeAndCache,
    Route,
)
from firelane.program.program import Program


def check_supported(program: Program) -> None:
    """Raises UnsupportedModelError that names the first option without a kernel."""
    for op in program.ops:
        for option in _missing(op):
            raise UnsupportedModelError(
                f"{program.name}: no CUDA kernel for {option} yet: serve it with --backend cpu"
            )


def _missing(op: Op) -> Iterator[str]:
    match op:
        case Cast():
            yield "blocks without a norm before them"
        case Route() | ExpertGatedLinear() | ExpertLinear():
            yield "experts"
        case Embed():
            yield from ["scaled embeddings"] * (op.scale != 1.0)
        case RMSNorm():
            yield from ["norms after a block"] * (op.residual is not None or op.scalar is not None)
            yield from ["norms without weights"] * (op.weight is None)
        case Linear():
            yield from ["scaled or capped products"] * (op.scale != 1.0 or bool(op.softcap))
        case GatedLinear():
            yield from [f"the gate {op.gate}"] * (op.gate.kind != "silu" or not op.gate.is_plain)
        case Attention():
            yield from ["capped scores or sinks"] * (bool(op.softcap) or op.sinks is not None)
        case RopeAndCache():
            plain = op.norm is None or (op.norm.q is not None and not op.norm.whole and not op.norm.values)
            yield from ["these norms of heads"] * (not plain)
            yield from ["queries without positions or with a temperature"] * (
                op.rotary is None or op.temperature is not None
            )
        case _:
            return
