"""The Program as text: one line an op, with its shapes and what it costs in a step."""

from __future__ import annotations

from firelane.contract.span import CAUSAL
from firelane.program.ops import Attention, Op
from firelane.program.program import Program
from firelane.program.values import Cost, StepShape

ONE_TOKEN = StepShape(tokens=1, outputs=1, attended=1, context=1, sequences=1)
HEADER = ("#", "op", "output", "shape", "weight", "FLOPs", "weight bytes", "KV bytes", "moved")


def format_program(program: Program, shape: StepShape = ONE_TOKEN) -> str:
    """A table of all ops with their costs in a step of `shape` (default: one token), and the totals. Of a
    rank they say what it moves from or to others."""
    rows = [
        HEADER,
        *(_row(i, op, program.op_cost(op, shape)) for i, op in enumerate(program.ops)),
        _totals(program.cost(shape)),
    ]
    if not program.cost(shape).link_bytes:
        rows = [row[:-1] for row in rows]
    widths = [max(len(row[c]) for row in rows) for c in range(len(rows[0]))]
    lines = ["  ".join(_aligned(cell, c, widths[c]) for c, cell in enumerate(row)).rstrip() for row in rows]
    return "\n".join([_title(program, shape), *lines])


def _title(program: Program, shape: StepShape) -> str:
    parameters = sum(w.nbytes // w.dtype.itemsize for w in program.weights)
    groups = f" in {len(program.cache_groups)} groups" if len(program.cache_groups) > 1 else ""
    state = f", state {_bytes(program.state_bytes)} a sequence" if program.state_bytes else ""
    return (
        f"{program.name}: {parameters / 1e6:.1f} M parameters, {_bytes(program.weights_bytes)}; "
        f"vocabulary {program.vocab_size}, at most {program.max_model_len} tokens, "
        f"KV cache {_bytes(sum(layer.bytes_per_token for layer in program.cache_layers))} a token{groups}"
        f"{state}; "
        f"costs of a step of {shape.tokens} token{'s' if shape.tokens > 1 else ''}, context {shape.context}"
    )


def _row(index: int, op: Op, cost: Cost) -> tuple[str, ...]:
    out = op.outputs[0] if op.outputs else None
    weight = " x ".join(str(n) for n in op.weights[0].shape) if op.weights else ""
    name = out.name if out else ""
    value = f"[{out.rows.value}, {out.width}] {out.dtype.value}" if out else ""
    return (str(index), _kind(op), name, value, weight, *_costs(cost))


def _kind(op: Op) -> str:
    if isinstance(op, Attention) and op.span != CAUSAL:
        return f"Attention, {op.span}"
    return type(op).__name__


def _totals(cost: Cost) -> tuple[str, ...]:
    return ("", "total", "", "", "", *_costs(cost))


def _costs(cost: Cost) -> tuple[str, str, str, str]:
    moved = _bytes(cost.link_bytes)
    return _scaled(cost.flops, ""), _bytes(cost.weight_bytes), _bytes(cost.kv_bytes), moved


def _bytes(n: float) -> str:
    return _scaled(n, "B")


def _scaled(n: float, unit: str) -> str:
    for prefix, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if n >= size:
            return f"{n / size:.2f} {prefix}{unit}"
    return f"{n:.0f} {unit}".rstrip() if n else ""


def _aligned(cell: str, column: int, width: int) -> str:
    return cell.ljust(width) if 1 <= column <= 4 else cell.rjust(width)
