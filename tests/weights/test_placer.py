"""Places of weights: by the layout from sizes, and by the placer as tasks come, the same."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from firelane.models.registry import load_program
from firelane.weights.formats.formats import Format
from firelane.weights.packing.layout import lay_out
from firelane.weights.packing.placer import PackTask, Placed, Placer, tasks
from firelane.weights.packing.plan import PackedWeight, plan
from tests.models.families import FAMILIES


def placed(form: Format | None) -> tuple[PackedWeight, ...]:
    program = load_program(FAMILIES["llama2"]() | {"torch_dtype": "bfloat16"})
    return plan(program, {} if form is None else {w.name: form for w in program.weights})


def ends_of(task: PackTask) -> np.ndarray:
    """Panels of sizes that differ, where they may."""
    least, most = task.packed.panel_bounds
    sizes = [least + (64 * (i % 5) if most > least else 0) for i in range(task.first, task.last)]
    return np.cumsum(sizes, dtype=np.uint64)


FORMS = pytest.mark.parametrize("form", [None, Format.PANEL_CODED4, Format.PANEL_CODED3])


@FORMS
@pytest.mark.parametrize("task_bytes", [1, 20_000, 1 << 30])
def test_tasks_cover_every_panel_once(form: Format | None, task_bytes: int) -> None:
    found = list(tasks(placed(form), task_bytes))
    assert [task.number for task in found] == list(range(len(found)))
    panels = [(t.packed.weight.name, i) for t in found for i in range(t.first, t.last)]
    assert panels == [(p.weight.name, i) for p in placed(form) for i in range(p.panels)]


@FORMS
@pytest.mark.parametrize("task_bytes", [1, 20_000])
def test_places_are_those_of_the_layout(form: Format | None, task_bytes: int) -> None:
    """Threads that come in any order get the places that the sizes tell."""
    placer, found = Placer(), {}
    todo = list(tasks(placed(form), task_bytes))

    def work(task: PackTask) -> None:
        found[task.number] = placer.place(task, ends_of(task))

    threads = [threading.Thread(target=work, args=(task,)) for task in reversed(todo)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    layout = lay_out(placed(form), placer.sizes)
    for p, place in zip(placed(form), layout.places, strict=True):
        mine = [task for task in todo if task.packed == p]
        offsets = np.cumsum([0, *np.concatenate([np.diff(ends_of(t), prepend=0) for t in mine])])
        for task in mine:
            assert found[task.number].offset == place.offset + offsets[task.first]
        last = found[mine[-1].number]
        assert place.nbytes == offsets[-1]
        assert (last.table is None) == (place.table is None)
        if last.table is not None:
            assert last.table_offset == place.table
            np.testing.assert_array_equal(last.table, offsets)


def test_failure_wakes_those_that_wait() -> None:
    placer = Placer()
    second = list(tasks(placed(None), 1))[1]
    caught: list[BaseException] = []

    def wait() -> None:
        try:
            placer.place(second, ends_of(second))
        except ValueError as error:
            caught.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    placer.fail(ValueError("first"))
    placer.fail(ValueError("second"))
    thread.join()
    assert [str(error) for error in caught] == ["first"]


def test_sizes_that_cannot_be() -> None:
    weights = placed(Format.PANEL_CODED4)
    good = [p.panels * p.panel_bounds[0] for p in weights]
    assert lay_out(weights, good).payload_bytes > sum(good)
    with pytest.raises(ValueError, match="sizes for"):
        lay_out(weights, good[1:])
    for i, p in enumerate(weights):
        for size in (good[i] - 1, p.panels * p.panel_bounds[1] + 1):
            with pytest.raises(ValueError, match="cannot have"):
                lay_out(weights, [*good[:i], size, *good[i + 1 :]])


def test_a_vector_is_one_task() -> None:
    vector = next(p for p in placed(None) if not p.is_matrix)
    (task,) = tasks((vector,), 1)
    size = np.array([vector.plain_bytes], np.uint64)
    assert Placer().place(task, size) == Placed(offset=0)
