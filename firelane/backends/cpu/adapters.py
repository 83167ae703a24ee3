"""Adapters in the memory of a CPU executor: packed for csrc/products/lora.h, at fixed places that cost
nothing until they are written."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from firelane.backends.cpu.codegen.adapter_layout import LANES, AdaptedPlace, AdapterLayout
from firelane.backends.cpu.memory import zeroed
from firelane.contract import AdapterLimits, AdapterTensors, LowRank, check_adapter
from firelane.native.pages import give_back
from firelane.program.ops import LowRankPart

U32, I64 = NDArray[np.uint32], NDArray[np.int64]
HEAD_DTYPE = np.dtype([("rank", np.int32), ("scale", np.float32)])


class CpuAdapters:
    """A contract.AdapterMemory. heads: HEAD_DTYPE [places + 1, parts]; factors: uint8, place 1 first; tiles:
    AdapterLayout.tiles."""

    def __init__(self, layout: AdapterLayout, limits: AdapterLimits) -> None:
        """Raises OutOfMemoryError."""
        self.limits, self._layout = limits, layout
        self.heads = np.zeros((limits.max_adapters + 1, max(1, layout.parts)), HEAD_DTYPE)
        self.tiles = layout.tiles
        self._place_bytes = layout.place_bytes
        self._tiles: dict[int, tuple[slice | I64, I64 | None]] = {}
        self.factors = zeroed(limits.max_adapters * layout.place_bytes)
        parts = [part for place in layout.places.values() for part in place.adapted.parts]
        self.modules: Mapping[str, tuple[int, int]] = {part.module: part.shape for part in parts}

    def put(self, place: int, tensors: AdapterTensors) -> None:
        """Factors of what was there stay where nothing takes their place: no head names them."""
        check_adapter(self, place, tensors)
        self.heads[place] = np.zeros((), HEAD_DTYPE)
        for weight in self._layout.places.values():
            self._put_weight(place, weight, tensors)

    def clear(self, place: int) -> None:
        """Have nothing there, and its memory back with the system."""
        assert 0 < place <= self.limits.max_adapters, f"{place} is no place of {self.limits}"
        self.heads[place] = np.zeros((), HEAD_DTYPE)
        begin = (place - 1) * self._place_bytes
        give_back(self.factors[begin : begin + self._place_bytes])

    def _put_weight(self, place: int, weight: AdaptedPlace, tensors: AdapterTensors) -> None:
        begin = (place - 1) * self._place_bytes + weight.begin
        words = self.factors[begin : begin + weight.nbytes].view(np.uint32)
        firsts, seconds = words[: weight.a_words], words[weight.a_words :]
        firsts = firsts.reshape(len(weight.adapted.parts), -1, weight.adapted.k // weight.per_word, LANES)
        seconds = seconds.reshape(len(weight.blocks), -1, LANES)
        for number, part in enumerate(weight.adapted.parts):
            factors = tensors.get(part.module)
            if factors is None:
                continue
            packed = first_factor(factors, weight)
            firsts[number, : len(packed)] = packed
            tiles, rows = self._tiles_of(weight, number, part)
            packed = second_factor(factors, rows)
            seconds[tiles, : packed.shape[1]] = packed
            self.heads[place, weight.head + number] = (factors.rank, factors.scale)

    def _tiles_of(
        self, weight: AdaptedPlace, number: int, part: LowRankPart
    ) -> tuple[slice | I64, I64 | None]:
        """The tiles of a part, and the module's row of each output there, -1 for none; None: they are the
        module's rows, in their order. Made once: loads are waited for."""
        key = weight.head + number
        if key not in self._tiles:
            rows = np.full(weight.num_blocks * LANES, -1)
            rows[: weight.adapted.n] = part.rows(weight.adapted.n)
            tiles = np.flatnonzero(weight.parts == number)
            rows = rows.reshape(-1, LANES)[weight.blocks[tiles]].ravel()
            run = slice(int(tiles[0]), int(tiles[-1]) + 1)
            is_whole = np.array_equal(rows, np.arange(part.shape[0]))
            is_run = len(tiles) == run.stop - run.start
            self._tiles[key] = (run if is_run else tiles, None if is_whole else rows)
        return self._tiles[key]


def first_factor(factors: LowRank, weight: AdaptedPlace) -> U32:
    """[vectors of ranks, words of k, LANES]: bf16 pairs, or floats."""
    vectors, k = -(-factors.rank // LANES), weight.adapted.k
    a = factors.a
    if factors.rank % LANES:
        a = np.zeros((vectors * LANES, k), np.uint16)
        a[: factors.rank] = factors.a
    words = _pairs(a) if weight.per_word == 2 else a.astype(np.uint32) << np.uint32(16)
    return words.reshape(vectors, LANES, -1).transpose(0, 2, 1)


def second_factor(factors: LowRank, rows: I64 | None) -> U32:
    """[tiles, pairs of ranks, LANES]: bf16 pairs; zeros for rows of other modules. rows: as CpuAdapters makes
    them."""
    b = factors.b
    if factors.rank % 2:
        b = np.zeros((len(factors.b), factors.rank + 1), np.uint16)
        b[:, :-1] = factors.b
    words = _pairs(b)
    if rows is not None:
        words = words[rows]
        words[rows < 0] = 0
    return words.reshape(-1, LANES, words.shape[1]).transpose(0, 2, 1)


def _pairs(values: NDArray[np.uint16]) -> U32:
    """[rows, columns / 2]: the first of two numbers in the lower half of a word, as CPUs here have them."""
    return np.ascontiguousarray(values).view(np.uint32)
