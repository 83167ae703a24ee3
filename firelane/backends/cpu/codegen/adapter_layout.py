"""The place of each factor of an adapter in memory: csrc/products/lora.h tells what lies there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from firelane.program.adapters import adapted_products
from firelane.program.ops import Adapted, LoraShrink
from firelane.program.program import Program
from firelane.program.values import DType

LANES, WORD_BYTES = 16, 4
PLACE_UNIT = 1 << 16
"""Bytes: places are whole pages, so that the memory of each can be given back."""
I32 = NDArray[np.int32]


@dataclass(frozen=True, kw_only=True, eq=False)
class AdaptedPlace:
    """The factors of one weight. head: number of its first part among all; begin: byte of a place where its
    first factors lie; tiles_at: where its entries begin in AdapterLayout.tiles.

    Tiles: int32 [tiles], the block of 16 outputs of each, and its part; a block has one for each part that
    has some of its rows."""

    adapted: Adapted
    dtype: DType
    head: int
    begin: int
    tiles_at: int
    blocks: I32
    parts: I32

    @property
    def per_word(self) -> int:
        """Inputs in a word of the first factors."""
        return 2 if self.dtype is DType.BF16 else 1

    @property
    def a_words(self) -> int:
        return self.adapted.width * (self.adapted.k // self.per_word)

    @property
    def b_words(self) -> int:
        return len(self.blocks) * (self.adapted.rank // 2) * LANES

    @property
    def nbytes(self) -> int:
        return (self.a_words + self.b_words) * WORD_BYTES

    @property
    def num_blocks(self) -> int:
        return -(-self.adapted.n // LANES)

    @property
    def entries(self) -> I32:
        """By block its first tile, and one more; then by tile its part."""
        firsts = np.searchsorted(self.blocks, np.arange(self.num_blocks + 1)).astype(np.int32)
        return np.concatenate([firsts, self.parts])


@dataclass(frozen=True, kw_only=True, eq=False)
class AdapterLayout:
    """A place for one adapter; adapters: number of places. parts: of all weights."""

    places: Mapping[str, AdaptedPlace]
    adapters: int
    parts: int
    place_bytes: int

    @classmethod
    def of(cls, program: Program) -> AdapterLayout:
        """Without any weight where the program is not one with adapters."""
        dtypes = {op.adapted.weight: op.x.dtype for op in program.ops if isinstance(op, LoraShrink)}
        places: dict[str, AdaptedPlace] = {}
        head = begin = tiles_at = adapters = 0
        for name, adapted in adapted_products(program).items():
            blocks, parts = _tiles(adapted)
            place = AdaptedPlace(
                adapted=adapted,
                dtype=dtypes[name],
                head=head,
                begin=begin,
                tiles_at=tiles_at,
                blocks=blocks,
                parts=parts,
            )
            places[name], adapters = place, adapted.adapters
            head, begin = head + len(adapted.parts), begin + place.nbytes
            tiles_at += len(place.entries)
        nbytes = -(-begin // PLACE_UNIT) * PLACE_UNIT
        return cls(places=places, adapters=adapters, parts=head, place_bytes=nbytes)

    @property
    def tiles(self) -> I32:
        return np.concatenate([np.zeros(0, np.int32), *(place.entries for place in self.places.values())])

    @property
    def nbytes(self) -> int:
        """Bytes of all places."""
        return self.adapters * self.place_bytes


def _tiles(adapted: Adapted) -> tuple[I32, I32]:
    """Blocks and parts of the tiles."""
    found = {
        (row // LANES, number)
        for number, part in enumerate(adapted.parts)
        for row in np.flatnonzero(part.rows(adapted.n) >= 0).tolist()
    }
    pairs = np.array(sorted(found), np.int32).reshape(-1, 2)
    return pairs[:, 0], pairs[:, 1]
