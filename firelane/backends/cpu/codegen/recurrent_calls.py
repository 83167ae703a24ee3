"""The C++ statements of ops that recurrent layers are made of."""

from __future__ import annotations

import math

from firelane.backends.cpu.codegen.layout import Layout
from firelane.backends.cpu.codegen.operands import at, flag, number, rows, tag, truth, vector
from firelane.program.ops import DeltaRule, Gated, Op, ShortConv, StateSpace

MOST = 3e38
"""In place of infinity, which C++ has no literal of."""
# The C++ types of functions of a gate.
ACTIVATIONS = {
    "sigmoid": "Sigmoid",
    "silu": "Silu",
    "gelu": "Gelu",
    "gelu_tanh": "GeluTanh",
    "normal": "NormalShare",
    "normal_tanh": "NormalTanh",
    "relu": "Relu",
    "none": "Factor",
}


def gated(op: Gated, layout: Layout) -> str:
    strides = ", ".join(str(layout.stride(value)) for value in (op.x, op.gate, op.out))
    tags = f"{tag(op.x.dtype)}, {tag(op.out.dtype)}"
    shape = f"{tags}, {op.out.width}, {op.column}, {strides}, {ACTIVATIONS[op.act]}"
    values = ", ".join(at(value, layout) for value in (op.x, op.gate, op.out))
    return f"gated<{shape}>(c, thread, {rows(op.x)}, {values});"


def short_conv(op: ShortConv, layout: Layout) -> str:
    strides = f"{layout.stride(op.x)}, {layout.stride(op.out)}"
    shape = f"{op.taps}, {op.out.width}, {strides}, {flag(op.bias)}, {ACTIVATIONS[op.act]}"
    vectors = f"{vector(op.weight, layout)}, {vector(op.bias, layout)}"
    fields = f"{at(op.x, layout)}, {vectors}, {_state(op, layout)}, {at(op.out, layout)}"
    return f"ShortConv<{shape}>{{{fields}}}.run(c, thread, op);"


def delta_rule(op: DeltaRule, layout: Layout) -> str:
    fields = [
        at(op.qkv, layout),
        *(f"{at(v, layout)} + {column}" for v, column in zip((op.decay, op.beta), op.columns, strict=True)),
        vector(op.a_log, layout),
        vector(op.dt_bias, layout),
        number(op.floor or 0.0),
    ]
    return _recurrence(op, fields, layout)


def state_space(op: StateSpace, layout: Layout) -> str:
    least, most = (limit if math.isfinite(limit) else MOST for limit in op.limits)
    fields = [
        at(op.xbc, layout),
        f"{at(op.dt, layout)} + {op.column}",
        *(vector(weight, layout) for weight in (op.a_log, op.dt_bias, op.skip)),
        number(least),
        number(most),
    ]
    return _recurrence(op, fields, layout)


def _recurrence(op: DeltaRule | StateSpace, fields: list[str], layout: Layout) -> str:
    rest = f"{_state(op, layout)}, {at(op.out, layout)}"
    return f"{recurrence_type(op, layout)}{{{{{', '.join(fields)}}}, {rest}}}.run(c, thread, op);"


def recurrence_type(op: DeltaRule | StateSpace, layout: Layout) -> str:
    """The kernel's C++ type."""
    match op:
        case DeltaRule(shape=s):
            strides = ", ".join(str(layout.stride(value)) for value in (op.qkv, op.decay, op.beta, op.out))
            flags = f"{truth(s.by_channel)}, {flag(op.floor)}"
            sizes = f"{s.key_heads}, {s.heads}, {s.key_dim}, {s.value_dim}"
            return f"Recurrence<DeltaRule<{sizes}, {flags}, {strides}>>"
        case StateSpace(shape=s):
            strides = ", ".join(str(layout.stride(value)) for value in (op.xbc, op.dt, op.out))
            sizes = f"{s.heads}, {s.groups}, {s.state_dim}, {s.head_dim}"
            return f"Recurrence<StateSpace<{sizes}, {strides}>>"


def _state(op: Op, layout: Layout) -> str:
    """The place of its recurrent state."""
    (state,) = op.states
    return f"StatePlace{{{layout.state_offsets[state.name]}, {layout.program.state_bytes}}}"
