"""Trials compiled and timed on this machine."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import count, repeat
from pathlib import Path

from firelane.backends.cpu.compile import KernelCompiler
from firelane.backends.cpu.layout import Layout
from firelane.backends.cpu.memory import available_bytes
from firelane.backends.cpu.tuning import store
from firelane.backends.cpu.tuning.measure import Bench, MeasureConfig, has_cells, tile_heights, trial_limits
from firelane.backends.cpu.tuning.table import ROW_WEIGHTS, Cell
from firelane.backends.cpu.tuning.trial import Trial
from firelane.backends.request import ProgressCallback
from firelane.errors import MachineError, OutOfMemoryError

STAGE = "tune"


class BusyError(MachineError):
    """Other work on this machine changes the times from step to step."""


@dataclass(frozen=True, kw_only=True)
class Site:
    """Where a program will run."""

    compiler: KernelCompiler
    isa: str
    threads: int
    block_size: int


@dataclass(frozen=True, kw_only=True)
class RunnerConfig:
    """Steps are timed again until the mean error of their cells is below good_error, `tries` times at most
    and as long as retry_s seconds are not over. That of all cells must be below most_error in the end."""

    good_error: float = 0.02
    most_error: float = 0.1
    tries: int = 3
    retry_s: float = 8.0
    measure: MeasureConfig = field(default_factory=MeasureConfig)


class TrialRunner:
    """Runs trials on `site`; compiled for it with no more tile heights than they use."""

    def __init__(self, site: Site, config: RunnerConfig | None = None) -> None:
        self._site, self._config = site, config or RunnerConfig()
        heights = ",".join(map(str, tile_heights(site.isa)))
        self._compiler = replace(site.compiler, flags=(f"-DFIRELANE_TILE_HEIGHTS={heights}",))

    def library_keys(self, trials: list[Trial]) -> list[str]:
        """Change with all that the trials' kernels depend on."""
        return [self._compiler.key(self._layout(trial)) for trial in trials]

    def run(self, trials: list[Trial], progress: ProgressCallback) -> list[Cell]:
        """All their cells. Raises TooSlowError, BusyError, OutOfMemoryError, CompilerError, CacheError,
        OSError."""
        needed = max(trial.program.weights_bytes for trial in trials)
        if needed > available_bytes() // 2:
            raise OutOfMemoryError(f"{needed / 1e9:.1f} GB of memory are needed for a while")
        total, ticks = len(trials) * (1 + len(ROW_WEIGHTS)), count()

        def tick() -> None:
            progress(STAGE, next(ticks), total, "part")

        tick()
        with ThreadPoolExecutor(self._site.threads, thread_name_prefix="tune") as pool:
            libraries = list(pool.map(self._build, trials, repeat(tick)))
        began_s = time.monotonic()
        cells: list[Cell] = []
        for trial, library in zip(trials, libraries, strict=True):
            cells += self._time(trial, library, began_s, tick)
        error = mean_error(cells)
        if error > self._config.most_error:
            raise BusyError(f"the machine is busy: times differ by {error:.0%} from step to step")
        return cells

    def _layout(self, trial: Trial) -> Layout:
        limits = trial_limits(self._site.block_size)
        return Layout(program=trial.program, limits=limits, isa=self._site.isa, forms=trial.forms)

    def _build(self, trial: Trial, tick: Callable[[], None]) -> Path:
        path = self._compiler.build(self._layout(trial))
        tick()
        return path

    def _time(self, trial: Trial, library: Path, began_s: float, tick: Callable[[], None]) -> list[Cell]:
        bench = Bench(trial, self._layout(trial), library, self._site.threads)
        cells: list[Cell] = []
        try:
            for rows in ROW_WEIGHTS:
                if any(has_cells(trial, projection, rows) for projection, _ in trial.timed.values()):
                    cells += self._surest(bench, rows, began_s)
                tick()
        finally:
            bench.close()
        return cells

    def _surest(self, bench: Bench, rows: int, began_s: float) -> list[Cell]:
        """Of several tries, of each cell the one with the least error."""
        config = self._config
        best: dict[tuple[str, str, int, bool], Cell] = {}
        for _ in range(config.tries):
            tried = bench.run(rows, config.measure, began_s + config.measure.budget_s)
            for cell in tried:
                i = store.identity(cell)
                best[i] = min(cell, best.get(i, cell), key=lambda c: c.error)
            if mean_error(best.values()) <= config.good_error or time.monotonic() > began_s + config.retry_s:
                break
        return list(best.values())


def mean_error(cells: Collection[Cell]) -> float:
    return sum(cell.error for cell in cells) / len(cells)
