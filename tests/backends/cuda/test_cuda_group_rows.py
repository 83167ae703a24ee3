"""Rows grouped by expert, in Triton's interpreter: every entry once, with its expert, in tiles that are full
but for each expert's last."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from firelane.backends.cuda.kernels.matmul import group_rows as module
from firelane.backends.cuda.kernels.matmul.group_rows import group_rows
from firelane.backends.cuda.step.row_groups import RowGroups, most_tiles
from firelane.backends.cuda.step.tables import NUM_COUNTS, TOKENS
from tests.backends.cuda.host_device import HostDevice, poison
from tests.backends.cuda.rows_harness import rows_of


def grouped(picks: np.ndarray, *, experts: int, row_tile: int, max_rows: int) -> RowGroups:
    """picks: [rows, width]."""
    rows, width = picks.shape
    on_device = rows_of(max_rows, width, torch.int32)
    on_device[:rows, :width] = torch.from_numpy(picks)
    counts = torch.full((NUM_COUNTS,), 77, dtype=torch.int32)
    counts[TOKENS] = rows
    tiles = most_tiles(rows=max_rows, picks=width, experts=experts, row_tile=row_tile)
    groups = RowGroups.allocate(max_rows * width, tiles, HostDevice())
    for tensor in (groups.order, groups.tiles, groups.count):
        poison(tensor)
    group_rows(
        on_device,
        groups,
        experts=experts,
        width=width,
        row_tile=row_tile,
        counts=counts,
        count=TOKENS,
        max_rows=max_rows,
    ).run()
    return groups


def random_picks(rows: int, width: int, experts: int) -> np.ndarray:
    """Ascending, as Route gives them."""
    rng = np.random.default_rng(rows)
    picks = [np.sort(rng.choice(experts, width, replace=False)) for _ in range(rows)]
    return np.array(picks, np.int32).reshape(rows, width)


def assert_grouped(groups: RowGroups, picks: np.ndarray, row_tile: int) -> None:
    wanted_order: list[int] = []
    wanted_tiles: list[list[int]] = []
    for expert in np.unique(picks).tolist():
        mine = np.nonzero(picks.reshape(-1) == expert)[0]
        for first in range(0, len(mine), row_tile):
            some = mine[first : first + row_tile]
            wanted_tiles.append([expert, len(wanted_order), len(some)])
            wanted_order += some.tolist()
    assert groups.count.tolist() == [len(wanted_tiles)]
    assert groups.tiles[: len(wanted_tiles), :3].tolist() == wanted_tiles
    assert groups.order[: len(wanted_order)].tolist() == wanted_order


@pytest.mark.parametrize(
    ("rows", "width", "experts"), [(1, 1, 1), (1, 3, 7), (20, 2, 5), (33, 4, 40), (9, 1, 64)]
)
@pytest.mark.parametrize("row_tile", [16, 2])
def test_every_entry_stands_with_its_expert(rows: int, width: int, experts: int, row_tile: int) -> None:
    picks = random_picks(rows, width, experts)
    assert_grouped(grouped(picks, experts=experts, row_tile=row_tile, max_rows=rows + 3), picks, row_tile)


def test_more_entries_than_are_looked_at_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_AT_ONCE", 32)
    picks = random_picks(40, 2, 6)
    assert_grouped(grouped(picks, experts=6, row_tile=16, max_rows=50), picks, 16)


def test_all_rows_at_one_expert() -> None:
    picks = np.full((35, 1), 3, np.int32)
    assert_grouped(grouped(picks, experts=5, row_tile=16, max_rows=40), picks, 16)


def test_no_rows_have_no_tiles() -> None:
    assert grouped(np.zeros((0, 2), np.int32), experts=5, row_tile=16, max_rows=4).count.tolist() == [0]


def test_tiles_of_the_worst_choice_have_room() -> None:
    """Each expert has one row more than fills its tiles."""
    for experts, row_tile in ((3, 16), (8, 2)):
        rows = experts * (row_tile + 1)
        most = most_tiles(rows=rows, picks=1, experts=experts, row_tile=row_tile)
        assert most >= 2 * experts
    assert most_tiles(rows=1, picks=8, experts=128, row_tile=16) == 8
