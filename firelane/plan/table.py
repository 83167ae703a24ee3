"""Plans as text: a table of layouts, what was assumed, and the command that serves one of them."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from firelane.plan.estimate import GIB, Estimate, PlanSetup
from firelane.program.program import Program

HEADER = (
    "layout",
    "weights",
    "buffers",
    "KV left",
    "one sequence",
    "sequences",
    "ms a token",
    "tok/s",
    "prompt s",
    "start s",
)
SERVED = ("requests/s", "output tok/s")


def title(setup: PlanSetup, count: int, estimates: Sequence[Estimate]) -> str:
    """The model, the devices and the workloads."""
    program, device = setup.model.program, setup.device
    asked = ", ".join(dict.fromkeys(_loaded(e) for e in estimates))
    each = f" of {device.memory_bytes / GIB:.1f} GiB" + (" each" if count > 1 else "")
    return (
        f"{program.name}: {_count(parameters(program))} parameters, "
        f"at most {program.max_model_len} tokens\n"
        f"{count} x {device.title},{each}\n"
        f"decoding {asked}; GiB are of the fullest device"
    )


def _loaded(e: Estimate) -> str:
    answers = f" + {e.workload.output}" if e.workload.output else ""
    return f"{e.workload.batch} x {e.workload.context}{answers} tokens"


def parameters(program: Program) -> int:
    return sum(prod(weight.shape) for weight in program.weights)


def _count(count: int) -> str:
    """In the largest unit of which there is one, at least in millions."""
    return f"{count / 1e9:.2f} B" if count >= 10**9 else f"{count / 1e6:.2f} M"


def format_estimates(estimates: Sequence[Estimate]) -> str:
    """A row for each estimate."""
    swept = _swept(estimates)
    header = (*swept, *HEADER, *(SERVED if any(e.workload.output for e in estimates) else ()))
    rows = [header, *((*_names(e, swept), *_row(e)) for e in estimates)]
    whole = [row for row in rows if len(row) == len(header)]
    first = len(swept) + 1
    widths = [max(len(row[i]) for row in (whole if i >= first else rows)) for i in range(len(header))]
    lines = [
        "  ".join(
            cell.ljust(w) if i < first else cell.rjust(w) for i, (cell, w) in enumerate(_zip(row, widths))
        )
        for row in rows
    ]
    return "\n".join(line.rstrip() for line in lines)


def _zip(row: Sequence[str], widths: Sequence[int]) -> list[tuple[str, int]]:
    return list(zip(row, widths, strict=False))


def _swept(estimates: Sequence[Estimate]) -> list[str]:
    """Columns in which the estimates differ, beside their layout."""
    values = {
        "weights": {e.form for e in estimates},
        "KV": {e.kv_dtype for e in estimates},
        "batch": {str(e.workload.batch) for e in estimates},
        "context": {str(e.workload.context) for e in estimates},
        "output": {str(e.workload.output) for e in estimates},
    }
    return [name for name, found in values.items() if len(found) > 1]


def _names(e: Estimate, swept: Sequence[str]) -> list[str]:
    values = {
        "weights": e.form,
        "KV": e.kv_dtype,
        "batch": str(e.workload.batch),
        "context": str(e.workload.context),
        "output": str(e.workload.output),
    }
    return [values[name] for name in swept]


def _row(e: Estimate) -> tuple[str, ...]:
    memory = e.fullest
    buffers = memory.taken - memory.weights
    sizes = (str(e.layout), f"{memory.weights / GIB:.1f}", f"{buffers / GIB:.1f}")
    if e.problem:
        return (*sizes, f"  {e.problem}")
    return (
        *sizes,
        f"{memory.left / GIB:.1f}",
        f"{e.room.one:,}",
        f"{e.room.sequences:,}",
        f"{e.decode_s * 1e3:.2f}",
        f"{e.tokens_per_s:,.0f}",
        f"{e.prefill_s:.2f}",
        f"{e.start_s:.0f}" if e.start_s >= 10 else f"{e.start_s:.1f}",
        *_served(e),
    )


def _served(e: Estimate) -> tuple[str, ...]:
    if not e.workload.output:
        return ()
    return f"{e.requests_per_s:.1f}", f"{e.requests_per_s * e.workload.output:,.0f}"


def serve_command(model: str, e: Estimate, *, on_gpu: bool) -> str:
    """The command that serves a model so."""
    served = f"{model}-{e.form}" if e.form in ("fp8", "mxfp4") else model
    command = f"firelane serve {served} {' '.join(serve_options(e, on_gpu=on_gpu))}"
    if served != model:
        return f"firelane quantize {model} {served} --format {e.form}\n{command}"
    return command


def serve_options(e: Estimate, *, on_gpu: bool) -> list[str]:
    """Options of `firelane serve` for an estimate; this version may not have all of them."""
    options = list(e.layout.options)
    if e.form in ("bf16", "int8", "int4"):
        options.append(f"--weights {e.form}")
    if e.kv_dtype != "auto":
        options.append(f"--kv-cache-dtype {e.kv_dtype}")
    options.append(f"--backend {'cuda' if on_gpu else 'cpu'}")
    return options + [f"--max-num-seqs {max(1, e.workload.batch)}"] * (e.workload.batch != 1)
