"""Placer: gives tasks that run in parallel their places in the file, in the plan's order."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Condition

import numpy as np
from numpy.typing import NDArray

from firelane.weights.packing.layout import starts_after
from firelane.weights.packing.plan import PackedWeight


@dataclass(frozen=True)
class PackTask:
    """Panels first .. last - 1 of a weight; `number` counts the tasks of a plan from 0."""

    number: int
    packed: PackedWeight
    first: int
    last: int


@dataclass(frozen=True, kw_only=True)
class Placed:
    """The place of a task's panels. The last task of a matrix in a coded format has its panel table, too."""

    offset: int
    table_offset: int = 0
    table: NDArray[np.uint64] | None = None


@dataclass
class _Weight:
    """The weight whose panels are being placed."""

    offset: int
    table_offset: int | None
    ends: list[NDArray[np.uint64]] = field(default_factory=list[NDArray[np.uint64]])


def tasks(placed: tuple[PackedWeight, ...], task_bytes: int) -> Iterator[PackTask]:
    """About task_bytes of the plain form each, at least a panel."""
    number = 0
    for p in placed:
        step = max(1, task_bytes // (p.plain_bytes // p.panels))
        for first in range(0, p.panels, step):
            yield PackTask(number, p, first, min(first + step, p.panels))
            number += 1


class Placer:
    """Safe from many threads. Tasks have to be begun in order, or waiting would never end. width: how many
    may be inside turn(): more threads than processors are of use to reads alone."""

    def __init__(self, width: int = 1) -> None:
        self._turn = Condition()
        self._width = width
        self._begun = self._ended = 0
        self._next = 0
        self._end = 0
        self._weight = _Weight(0, None)
        self._failure: BaseException | None = None
        self._sizes: list[int] = []

    @contextmanager
    def turn(self, task: PackTask) -> Generator[None]:
        """Waits until all tasks before have had their turns begin, and there is room. Raises what fail() was
        told."""
        with self._turn:
            self._wait_for(lambda: self._begun == task.number and self._begun - self._ended < self._width)
            self._begun += 1
            self._turn.notify_all()
        try:
            yield
        finally:
            with self._turn:
                self._ended += 1
                self._turn.notify_all()

    def place(self, task: PackTask, ends: NDArray[np.uint64]) -> Placed:
        """Waits until all tasks before have their places. `ends`: where each panel of the task ends, counted
        from the first one's beginning. Raises what fail() was told.
        """
        with self._turn:
            self._wait_for(lambda: self._next == task.number)
            placed = self._place(task, ends)
            self._next += 1
            self._turn.notify_all()
        return placed

    def fail(self, error: BaseException) -> None:
        """A task is given up: those that wait for it must not wait longer."""
        with self._turn:
            self._failure = self._failure or error
            self._turn.notify_all()

    def _wait_for(self, is_turn: Callable[[], bool]) -> None:
        self._turn.wait_for(lambda: self._failure is not None or is_turn())
        if self._failure is not None:
            raise self._failure

    @property
    def sizes(self) -> tuple[int, ...]:
        """Sizes of the weights, when all their tasks were placed."""
        return tuple(self._sizes)

    def _place(self, task: PackTask, ends: NDArray[np.uint64]) -> Placed:
        p = task.packed
        if task.first == 0:
            table_offset, self._end = starts_after(p, self._end)
            self._weight = _Weight(self._end, table_offset)
        weight, offset = self._weight, self._end
        weight.ends.append(ends + np.uint64(offset - weight.offset))
        self._end += int(ends[-1])
        if task.last < p.panels:
            return Placed(offset=offset)
        self._sizes.append(self._end - weight.offset)
        if weight.table_offset is None:
            return Placed(offset=offset)
        table = np.concatenate([np.zeros(1, np.uint64), *weight.ends])
        return Placed(offset=offset, table_offset=weight.table_offset, table=table)
