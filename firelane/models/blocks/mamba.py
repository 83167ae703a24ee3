"""Block of recurrent layers of Mamba-2 (Dao and Gu, "Transformers are SSMs", 2024)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from firelane.models.blocks.blocks import Layer
from firelane.models.blocks.delta import MIDDLE, project, taps_of
from firelane.models.config.reader import ConfigReader
from firelane.program.ops import Gated, RMSNorm, ShortConv, StateShape, StateSpace
from firelane.program.recipes import Piece
from firelane.program.values import DType, Value, Weight


@dataclass(frozen=True, kw_only=True)
class MambaTensors:
    """Names of the tensors below the layer: of the block, and of the norm before it."""

    block: str = "mamba"
    norm: str = "input_layernorm"


TENSORS = MambaTensors()


def mamba(
    layer: Layer,
    x: Value,
    s: StateShape,
    *,
    taps: int,
    bias: bool,
    limits: tuple[float, float],
    tensors: MambaTensors = TENSORS,
) -> Value:
    """x + out(norm(state_space(silu(convolution(xbc))) * silu(gate))), all three of norm(x); `bias`: whether
    the convolution has one; `limits`: of the steps."""
    add, normed = layer.decoder.add, layer.read(x, "mamba", tensors.norm)
    block = tensors.block
    rows = project(layer, normed, "projections", _projections(layer, block, s, x.width))
    conv = ShortConv(
        x=rows,
        taps=taps,
        weight=taps_of(layer, "conv", ((f"{block}.conv1d", s.xbc_width),), taps),
        bias=_vector(layer, block, "conv1d.bias", s.xbc_width) if bias else None,
        act="silu",
        out=layer.value("convolved", s.xbc_width, DType.F32),
    )
    op = StateSpace(
        xbc=add(conv),
        dt=rows,
        column=s.xbc_width + s.width,
        a_log=_vector(layer, block, "A_log", s.heads),
        dt_bias=_vector(layer, block, "dt_bias", s.heads),
        skip=_vector(layer, block, "D", s.heads),
        shape=s,
        limits=limits,
        out=layer.value("remembered", s.width, DType.F32),
    )
    out = layer.value("let_through", s.width, DType.F32)
    passed = add(Gated(x=add(op), gate=rows, act="silu", column=s.xbc_width, out=out))
    norm = RMSNorm(
        x=passed,
        weight=_vector(layer, block, "norm.weight", s.width),
        eps=layer.decoder.eps,
        groups=s.groups,
        out=layer.value("recalled", s.width, layer.decoder.dtype),
    )
    last = [(layer.tensor(f"{block}.out_proj"), x.width)]
    return layer.linear(add(norm), "output", last, layer.stream(MIDDLE), bias=False, add=x)


def read_state_shape(config: ConfigReader) -> StateShape:
    """Raises UnsupportedModelError for sizes that do not divide."""
    heads, groups = config.integer("mamba_n_heads", 128), config.integer("mamba_n_groups", 1)
    width = config.integer("mamba_expand", 2) * config.integer("hidden_size")
    head_dim = width // heads
    if config.value("mamba_d_head") != "auto":
        head_dim = config.integer("mamba_d_head", head_dim)
    config.ignore("mamba_d_head", "mamba_chunk_size")
    if heads * head_dim != width:
        raise config.refusal("mamba_n_heads", heads, f"heads of {head_dim} have to make up {width}")
    if heads % groups:
        raise config.refusal("mamba_n_groups", groups, f"it has to divide mamba_n_heads = {heads}")
    state_dim = config.integer("mamba_d_state", 256)
    return StateShape(heads=heads, groups=groups, head_dim=head_dim, state_dim=state_dim)


def read_step_limits(config: ConfigReader) -> tuple[float, float]:
    """The least and the most of a step."""
    key, given = "time_step_limit", config.value("time_step_limit")
    config.ignore(key)
    if given is None:
        return 0.0, math.inf
    match given:
        case [int() | float() as least, int() | float() as most] if 0 <= least <= most:
            return float(least), float(most)
        case _:
            raise config.refusal(key, given, "two numbers are needed, the least and the most")


def _projections(layer: Layer, block: str, s: StateShape, inputs: int) -> tuple[Piece, ...]:
    """Inputs of the convolution, the gate, and the steps; stored with the gate first."""
    tensor, total = f"{layer.tensor(block)}.in_proj.weight", s.width + s.xbc_width + s.heads
    behind = s.width + s.xbc_width
    spans = range(s.width, behind), range(s.width), range(behind, total)
    return tuple(Piece(tensor=tensor, shape=(total, inputs), rows=rows) for rows in spans)


def _vector(layer: Layer, block: str, tensor: str, size: int) -> Weight:
    name = layer.name(f"mamba.{tensor}")
    return Weight.stored(name, (size,), DType.F32, layer.tensor(f"{block}.{tensor}"))
