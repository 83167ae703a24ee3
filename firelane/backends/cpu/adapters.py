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

U32 = NDArray[np.uint32]
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
        self.factors = zeroed(limits.max_adapters * layout.place_bytes)

    @property
    def modules(self) -> Mapping[str, tuple[int, int]]:
        return {p.module: p.shape for place in self._layout.places.values() for p in place.adapted.parts}

    def put(self, place: int, tensors: AdapterTensors) -> None:
        check_adapter(self, place, tensors)
        self.clear(place)
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
            mine = weight.parts == number
            packed = second_factor(factors, part, weight)[weight.blocks[mine]]
            seconds[mine, : packed.shape[1]] = packed
            self.heads[place, weight.head + number] = (factors.rank, factors.scale)


def first_factor(factors: LowRank, weight: AdaptedPlace) -> U32:
    """[vectors of ranks, words of k, LANES]: bf16 pairs, or floats."""
    vectors = -(-factors.rank // LANES)
    a = np.zeros((vectors * LANES, weight.adapted.k), np.uint32)
    a[: factors.rank] = factors.a
    words = a[:, ::2] | a[:, 1::2] << 16 if weight.per_word == 2 else a << 16
    return words.astype(np.uint32).reshape(vectors, LANES, -1).transpose(0, 2, 1)


def second_factor(factors: LowRank, part: LowRankPart, weight: AdaptedPlace) -> U32:
    """[blocks, pairs of ranks, LANES]: bf16 pairs; zeros for rows of other modules."""
    rows = np.full(weight.num_blocks * LANES, -1)
    rows[: weight.adapted.n] = part.rows(weight.adapted.n)
    b = np.zeros((len(rows), factors.rank + factors.rank % 2), np.uint32)
    b[rows >= 0, : factors.rank] = factors.b[rows[rows >= 0]]
    words = b[:, ::2] | b[:, 1::2] << 16
    return words.astype(np.uint32).reshape(weight.num_blocks, LANES, -1).transpose(0, 2, 1)
