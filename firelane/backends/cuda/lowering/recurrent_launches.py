"""Launches of ops that have a state for each sequence: short convolutions, delta rules, state spaces."""

from __future__ import annotations

from firelane.backends.cuda.device.launch import Work
from firelane.backends.cuda.kernels.recurrent.delta_rule import delta_rule
from firelane.backends.cuda.kernels.recurrent.short_conv import short_conv
from firelane.backends.cuda.kernels.recurrent.state_space import state_space
from firelane.backends.cuda.lowering.lowering import Lowering
from firelane.program.ops import DeltaRule, ShortConv, StateSpace


def convolve(op: ShortConv, to: Lowering) -> list[Work]:
    """A convolution over a few tokens, those before the chunk from the state."""
    (state,) = op.states
    launches = short_conv(
        to.at(op.x),
        to.at(op.out),
        op=op,
        weight=to.weights.vector(op.weight.name),
        bias=to.optional(op.bias),
        states=to.memory.states.layer(state),
        tables=to.memory.tables,
        max_tokens=to.bucket.tokens,
        max_chunks=to.bucket.chunks,
    )
    return [*launches]


def apply_delta_rule(op: DeltaRule, to: Lowering) -> list[Work]:
    """A delta rule over the chunk, which goes on from the state."""
    (state,) = op.states
    launch = delta_rule(
        to.at(op.qkv),
        to.at(op.decay),
        to.at(op.beta),
        to.at(op.out),
        op=op,
        a_log=to.weights.vector(op.a_log.name),
        dt_bias=to.weights.vector(op.dt_bias.name),
        states=to.memory.states.layer(state),
        tables=to.memory.tables,
        max_chunks=to.bucket.chunks,
    )
    return [launch]


def scan_state_space(op: StateSpace, to: Lowering) -> list[Work]:
    """A state space over the chunk, which goes on from the state."""
    (state,) = op.states
    launch = state_space(
        to.at(op.xbc),
        to.at(op.dt),
        to.at(op.out),
        op=op,
        a_log=to.weights.vector(op.a_log.name),
        dt_bias=to.weights.vector(op.dt_bias.name),
        skip=to.weights.vector(op.skip.name),
        states=to.memory.states.layer(state),
        tables=to.memory.tables,
        max_chunks=to.bucket.chunks,
    )
    return [launch]
