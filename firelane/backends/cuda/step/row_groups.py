"""RowGroups: a step's rows by the expert that each slot picked, for the products of a layer's experts."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from firelane.backends.cuda.device.device import Device

TILE_COLUMNS = 4


@dataclass(frozen=True, kw_only=True)
class RowGroups:
    """order: int32 [most entries], an entry being row * picks + slot, those of one expert beside each other,
    by increasing row. tiles: int32 [most tiles, TILE_COLUMNS]: expert, where in `order` its entries begin,
    how many; count: int32 [1], of tiles."""

    order: Tensor
    tiles: Tensor
    count: Tensor

    @classmethod
    def allocate(cls, entries: int, tiles: int, device: Device) -> RowGroups:
        return cls(
            order=device.empty(entries), tiles=device.empty(tiles, TILE_COLUMNS), count=device.zeros(1)
        )


def most_tiles(*, rows: int, picks: int, experts: int, row_tile: int) -> int:
    """Enough for any choice: each expert's last tile may be filled in part."""
    return min(rows * picks, experts) + rows * picks // row_tile
