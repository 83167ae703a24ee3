"""Weights of a trial: random, packed for real, each in memory of its own."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Mapping
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from firelane.program.program import Program
from firelane.weights import window
from firelane.weights.formats import PANEL_ROWS, Format
from firelane.weights.plan import PackedWeight, plan

SAMPLE_PANELS = 8


def random_panels(k: int, scale: float) -> NDArray[np.uint16]:
    """A few panels of normally distributed weights, as PANEL_BF16: the bits of their float32's upper half."""
    rng = np.random.default_rng(k)
    values = rng.standard_normal((SAMPLE_PANELS, -(-k // 2), PANEL_ROWS, 2), np.float32) * np.float32(scale)
    return (values.view(np.uint32) >> 16).astype(np.uint16)


class SyntheticWeights:
    """As executor.Weights. A matrix repeats a few random panels: kernels take the same time for any."""

    def __init__(self, program: Program, forms: Mapping[str, Format]) -> None:
        """Raises OSError where the memory cannot be had."""
        self._memory: dict[str, NDArray[np.uint8]] = {}
        self._tables: dict[str, NDArray[np.uint64]] = {}
        self._samples: dict[tuple[int, Format], list[NDArray[np.uint8]]] = {}
        for placed in plan(program):
            form = forms.get(placed.weight.name, placed.format)
            if form in (Format.VECTOR_F32, Format.PANEL_F32):
                self._fill(placed)
            else:
                self._repeat(placed, form)
        self._samples.clear()

    @property
    def nbytes(self) -> int:
        return sum(memory.nbytes for memory in self._memory.values())

    def address(self, name: str) -> int:
        return self._memory[name].ctypes.data

    def panel_table(self, name: str) -> NDArray[np.uint64]:
        return self._tables[name]

    def close(self) -> None:
        """Nothing to do: the memory goes with its last array."""

    def _fill(self, placed: PackedWeight) -> None:
        memory = _allocate(prod(placed.shape) * 4)
        memory.view(np.float32)[:] = 1.0 if len(placed.weight.shape) == 1 else placed.weight.shape[1] ** -0.5
        self._memory[placed.weight.name] = memory

    def _repeat(self, placed: PackedWeight, form: Format) -> None:
        sample = self._sample(placed.weight.shape[1], form)
        panels = placed.shape[0]
        sizes = np.array([len(panel) for panel in sample], np.uint64)
        table = np.concatenate([np.zeros(1, np.uint64), np.cumsum(np.resize(sizes, panels))])
        memory = _allocate(int(table[-1]))
        together = np.concatenate(sample)
        for at in range(0, int(table[-1]), len(together)):
            here = memory[at : min(at + len(together), int(table[-1]))]
            here[:] = together[: len(here)]
        self._memory[placed.weight.name], self._tables[placed.weight.name] = memory, table.astype(np.uint64)

    def _sample(self, k: int, form: Format) -> list[NDArray[np.uint8]]:
        if (k, form) not in self._samples:
            panels = random_panels(k, k**-0.5)
            encode: Callable[[NDArray[Any]], NDArray[np.uint8]] = (
                (lambda panel: window.encode_panel(panel, form))
                if form.is_window
                else (lambda panel: panel.reshape(-1).view(np.uint8))
            )
            self._samples[k, form] = [encode(panel) for panel in panels]
        return self._samples[k, form]


def _allocate(nbytes: int) -> NDArray[np.uint8]:
    """Zeros at a page's start, with a page behind that kernels may read. Shared memory, so in small pages as
    the mapped file of real weights is."""
    return np.frombuffer(mmap.mmap(-1, nbytes + mmap.PAGESIZE), np.uint8)[:nbytes]
