"""Steps of trials, timed: what each form of each product takes at each number of rows."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from firelane.backends.contract import SAMPLE, StepInputs, StepLimits
from firelane.backends.cpu.executor import CpuExecutor
from firelane.backends.cpu.layout import Layout
from firelane.backends.cpu.native import Library
from firelane.backends.cpu.tuning.projections import Projection
from firelane.backends.cpu.tuning.synthetic import SyntheticWeights
from firelane.backends.cpu.tuning.table import NEVER, ROW_WEIGHTS, Cell
from firelane.backends.cpu.tuning.trial import Trial
from firelane.errors import MachineError
from firelane.program.values import Rows
from firelane.weights.formats import Format

CONTEXT_TOKENS = 64
MOST_SEQUENCES = 64
"""Steps of more rows are one chunk of a prompt, others decode one token of each sequence."""
TILE_ROWS = {"avx512bf16": 12, "avx512": 12, "avx2": 3}
OTHER_TILE_ROWS = 2


class TooSlowError(MachineError):
    """The time allowed is over, and too few steps were run to tell."""


@dataclass(frozen=True, kw_only=True)
class MeasureConfig:
    """Of one kind of step: between least_repeats and most_repeats, the more while slice_s seconds are not
    over. budget_s: of all steps of a tuning."""

    least_repeats: int = 4
    most_repeats: int = 25
    slice_s: float = 0.4
    budget_s: float = 20.0


def tiles(rows: int, isa: str) -> int:
    """Into how many tiles the kernels part so many rows (csrc/vec.h)."""
    return -(-rows // TILE_ROWS.get(isa, OTHER_TILE_ROWS))


def tile_heights(isa: str) -> list[int]:
    """Rows of all tiles that the steps here have."""
    heights: set[int] = set()
    for rows in ROW_WEIGHTS:
        parts = tiles(rows, isa)
        heights |= {rows * (i + 1) // parts - rows * i // parts for i in range(parts)}
    return sorted(heights)


def trial_limits(block_size: int) -> StepLimits:
    """Sizes that hold each kind of step."""
    longest = max(*ROW_WEIGHTS, 2 * CONTEXT_TOKENS)
    decoding = max(rows for rows in ROW_WEIGHTS if rows <= MOST_SEQUENCES)
    blocks = max(-(-longest // block_size), decoding * -(-CONTEXT_TOKENS // block_size))
    return StepLimits(
        max_num_seqs=decoding,
        max_num_batched_tokens=max(ROW_WEIGHTS),
        max_output_rows=decoding,
        max_model_len=longest,
        block_size=block_size,
        num_blocks=blocks,
    )


def step_of(executor: CpuExecutor, rows: int) -> StepInputs:
    """Inputs of a step of so many rows, and the slots that it needs."""
    limits, state = executor.limits, executor.state
    sequences, length = (rows, 1) if rows <= MOST_SEQUENCES else (1, rows)
    start = CONTEXT_TOKENS - 1 if length == 1 else 0
    blocks = -(-(start + length) // limits.block_size)
    inputs = StepInputs.allocate(limits)
    inputs.num_chunks, inputs.num_tokens, inputs.num_rows = sequences, rows, sequences
    numbers = np.arange(sequences, dtype=np.int32)
    inputs.chunk_slot[:sequences] = inputs.row_slot[:sequences] = numbers
    inputs.chunk_start[:sequences], inputs.chunk_len[:sequences] = start, length
    inputs.row_token[:sequences] = (numbers + 1) * length - 1
    inputs.row_position[:sequences] = start + length - 1
    inputs.row_kind[:sequences] = SAMPLE
    state.tokens[:] = 1
    state.block_tables[:sequences, :blocks] = np.arange(sequences * blocks).reshape(sequences, blocks)
    state.sampling[:sequences] = np.zeros(1, state.sampling.dtype)
    return inputs


def ways_of(rows: int, isa: str) -> tuple[bool, ...]:
    """Whether panels are decoded once: both are tried where there is more than one tile."""
    return (False, True) if tiles(rows, isa) > 1 else (False,)


class Bench:
    """A compiled trial: two executors on the same weights, one that decodes a panel once for all tiles of
    rows and one that decodes it for each."""

    def __init__(self, trial: Trial, layout: Layout, library: Path, threads: int) -> None:
        """Raises OutOfMemoryError, OSError."""
        self._trial, self._isa = trial, layout.isa
        weights = SyntheticWeights(trial.program, trial.forms)
        self._ways = {
            once: CpuExecutor(
                library=Library(library),
                layout=layout,
                weights=weights,
                threads=threads,
                decode_once_from=dict.fromkeys(trial.forms, 2 if once else NEVER),
            )
            for once in (False, True)
        }

    def run(self, rows: int, config: MeasureConfig, deadline_s: float) -> list[Cell]:
        """The cells of one number of rows. Raises TooSlowError when time.monotonic() passes the deadline."""
        parts = tiles(rows, self._isa)
        cells: list[Cell] = []
        for once in ways_of(rows, self._isa):
            taken = _timed_steps(self._ways[once], rows, config, deadline_s)
            cells += cells_of(self._trial, rows, parts, once, taken)
        return cells

    def close(self) -> None:
        for executor in self._ways.values():
            executor.release()


def _timed_steps(
    executor: CpuExecutor, rows: int, config: MeasureConfig, deadline_s: float
) -> NDArray[np.float64]:
    """Seconds of each op in each step: [steps, ops]. A step before them warms up."""
    inputs = step_of(executor, rows)
    _timed(executor, inputs)
    taken: list[NDArray[np.float64]] = []
    end_s = time.monotonic() + config.slice_s
    while len(taken) < config.least_repeats or (
        len(taken) < config.most_repeats and time.monotonic() < end_s
    ):
        if time.monotonic() > deadline_s:
            raise TooSlowError(f"steps of {rows} rows take too long")
        taken.append(_timed(executor, inputs))
    return np.array(taken)


def _timed(executor: CpuExecutor, inputs: StepInputs) -> NDArray[np.float64]:
    """Seconds of each op in one step."""
    executor.op_seconds[:] = 0
    executor.submit(inputs)
    executor.wait()
    return executor.op_seconds[:-1].copy()


def cells_of(trial: Trial, rows: int, parts: int, once: bool, seconds: NDArray[np.float64]) -> Iterator[Cell]:
    """One cell for each window form of each product; seconds: [steps, ops]. A product on output rows has
    none at the rows of a prompt, of which one alone is an output."""
    for projection in dict.fromkeys(projection for projection, _ in trial.timed.values()):
        ops = {
            form: [i for i, t in trial.timed.items() if t == (projection, form)] for form in projection.forms
        }
        plain = ops.pop(Format.PANEL_BF16)
        if not has_cells(trial, projection, rows):
            continue
        for form, mine in ops.items():
            even, odd = (_gain(seconds[half::2], plain, mine) for half in (0, 1))
            yield Cell(
                projection=str(projection),
                form=form.value,
                rows=rows,
                tiles=parts,
                once=once,
                seconds=_best(seconds, mine),
                gain=_gain(seconds, plain, mine),
                error=abs(math.log(even / odd)) / 2,
            )


def _best(seconds: NDArray[np.float64], ops: list[int]) -> float:
    """The least time of each of the ops, on average: what disturbs a step only ever adds."""
    return float(seconds[:, ops].min(axis=0).mean())


def _gain(seconds: NDArray[np.float64], plain: list[int], mine: list[int]) -> float:
    return _best(seconds, plain) / _best(seconds, mine)


def has_cells(trial: Trial, projection: Projection, rows: int) -> bool:
    """Products on output rows are not timed in a prompt's step: one of its rows alone is an output."""
    ops = (trial.program.ops[i] for i, (p, _) in trial.timed.items() if p == projection)
    return rows <= MOST_SEQUENCES or any(op.outputs[0].rows is Rows.TOKEN for op in ops)


def expected_cells(trials: Sequence[Trial], isa: str) -> set[tuple[str, str, int, bool]]:
    """The identities (store.identity) of all cells that a measurement of `trials` gives."""
    return {
        (str(projection), form.value, rows, once)
        for trial in trials
        for projection, form in trial.timed.values()
        for rows in ROW_WEIGHTS
        for once in ways_of(rows, isa)
        if form.is_window and has_cells(trial, projection, rows)
    }
