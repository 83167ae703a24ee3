"""The whole way to a Tuning: a table kept from before, or trials timed now, or the default rule."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from firelane.backends.cpu.tuning import store
from firelane.backends.cpu.tuning.measure import expected_cells
from firelane.backends.cpu.tuning.projections import Projection, projections
from firelane.backends.cpu.tuning.runner import Site, TrialRunner
from firelane.backends.cpu.tuning.table import ROW_WEIGHTS, Cell, Tuning, describe, tuning_of
from firelane.backends.cpu.tuning.trial import Trial, trials_of
from firelane.backends.request import ProgressCallback
from firelane.errors import MachineError
from firelane.native import machine
from firelane.program.program import Program
from firelane.weights.formats import Format

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class TunerConfig:
    """least_bytes: programs whose bf16 matrices are smaller take the default rule unmeasured, and start fast.
    cache_factor: bytes of a trial's weights, in sizes of the last-level cache, where the model fills it as
    often: nothing is still there when its turn comes again."""

    least_bytes: int = 64 << 20
    cache_factor: int = 4


class Runner(Protocol):
    """What times trials (TrialRunner)."""

    def library_keys(self, trials: list[Trial]) -> list[str]: ...

    def run(self, trials: list[Trial], progress: ProgressCallback) -> list[Cell]: ...


class Tuner:
    """Finds the Tuning of programs at one Site."""

    def __init__(self, site: Site, config: TunerConfig | None = None, runner: Runner | None = None) -> None:
        self._site, self._config = site, config or TunerConfig()
        self._runner = runner or TrialRunner(site)

    def tune(self, program: Program, progress: ProgressCallback, *, force: bool = False) -> Tuning:
        """The best that can be had: without time, memory or quiet for a measurement the default rule. force:
        measure whatever the program's size, and even if that was done before."""
        matrices = projections(program)
        nbytes = sum(weight.nbytes for weight in matrices)
        found = tuple(dict.fromkeys(matrices.values()))
        if not found or (nbytes < self._config.least_bytes and not force):
            return self._default(found, f"{nbytes >> 20} MiB of bf16 matrices are not measured")
        trials = trials_of(program, least_bytes=self._trial_bytes(program))
        key = self._key(trials)
        path = store.path_of(self._site.compiler.cache_dir, key)
        with store.locked(path):
            kept = None if force else store.read(path, key, expected_cells(trials, self._site.isa))
            if kept is not None:
                return self._tuning(found, kept.cells, f"measured before in {kept.seconds:.1f} s, {path}")
            return self._measure(found, trials, path, progress)

    def _measure(
        self, found: Sequence[Projection], trials: list[Trial], path: Path, progress: ProgressCallback
    ) -> Tuning:
        began_s = time.monotonic()
        log.info("tuning projections=%d: the forms of their weights are timed, once a machine", len(found))
        try:
            cells = self._runner.run(trials, progress)
        except (MachineError, OSError) as error:
            log.warning("not tuned: %s; the default rule is taken, the next start tries again", error)
            return self._default(found, f"{error}")
        seconds = time.monotonic() - began_s
        tuning = self._tuning(found, cells, f"measured in {seconds:.1f} s, kept in {path}")
        try:
            store.write(path, path.stem, cells, seconds)
        except OSError as error:
            log.warning("the tuning cannot be kept in %s: %s", path, error.strerror)
        log.info(
            "tuned %d projection shapes in %.1f s: %s; kept in %s",
            len(found),
            seconds,
            describe(tuning),
            path,
        )
        return tuning

    def _tuning(self, found: Sequence[Projection], cells: Sequence[Cell], source: str) -> Tuning:
        return tuning_of(found, cells, tables=self._in_registers, source=source)

    def _default(self, found: Sequence[Projection], why: str) -> Tuning:
        """Without a measurement: 12 bits where they are decoded in registers, else bf16."""
        ranking = {p: (*(f for f in self._in_registers if f in p.forms), Format.PANEL_BF16) for p in found}
        return Tuning(ranking=ranking, tables=self._in_registers, source=f"the default rule: {why}")

    @property
    def _in_registers(self) -> tuple[Format, ...]:
        """The form that kernels decode in registers at little cost (csrc/window.h): where they are compiled
        for all that the CPU has, and it has VBMI2."""
        isa, cpu = self._site.isa, self._site.compiler.cpu
        best = isa == machine.best_isa(cpu) and isa in ("avx512bf16", "avx512")
        able = best and cpu.features.issuperset(("avx512vbmi", "avx512_vbmi2"))
        return (Format.PANEL_WINDOW4,) if able else ()

    def _trial_bytes(self, program: Program) -> int:
        return min(self._config.cache_factor * machine.last_level_cache_bytes(), program.weights_bytes)

    def _key(self, trials: list[Trial]) -> str:
        rows = dict(ROW_WEIGHTS)
        parts = [*self._runner.library_keys(trials), f"{store.VERSION} {self._site.threads} {rows}"]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]
