"""Places of adapters that come and go while sequences run."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from firelane.backends.null.executor import NullAdapters
from firelane.contract import AdapterLimits, LowRank
from firelane.engine.adapters.peft import Adapter
from firelane.engine.adapters.places import AdapterPlaces, change_adapters
from firelane.errors import ModelNotServedError, UsageError
from firelane.wire.adapters import LoadAdapter, UnloadAdapter

MODULE = "model.layers.0.mlp.down_proj"


def adapter(number: int, rank: int = 2, module: str = MODULE) -> Adapter:
    bits = np.full((rank, 6), number, np.uint16)
    return Adapter(
        {module: LowRank(a=bits, b=np.full((4, rank), number, np.uint16), scale=1.0)}, f"d{number}"
    )


def made(places: int) -> tuple[NullAdapters, AdapterPlaces]:
    memory = NullAdapters(AdapterLimits(places, 4), {MODULE: (4, 6)})
    return memory, AdapterPlaces(memory)


def number_in(memory: NullAdapters, place: int) -> int:
    return int(memory.tensors[place][MODULE].a[0, 0])


def test_names_digests_and_none() -> None:
    memory, places = made(2)
    places.put("x", adapter(7), set)
    assert places.of("") == 0
    assert places.of("x") == places.of("d7") == 1
    assert number_in(memory, 1) == 7
    with pytest.raises(ModelNotServedError, match="not served"):
        places.of("y")


def test_equal_content_shares_a_place() -> None:
    memory, places = made(1)
    places.put("x", adapter(7), set)
    places.put("y", adapter(7), set)
    places.remove("x")
    places.sweep(set)
    assert places.of("y") == 1
    assert number_in(memory, 1) == 7
    assert places.digests == {"y": "d7"}


def test_a_place_in_use_is_kept() -> None:
    memory, places = made(2)
    places.put("x", adapter(7), set)
    places.remove("x")
    places.sweep(lambda: {1})
    assert places.has_leaving
    places.put("y", adapter(8), lambda: {1})
    assert places.of("y") == 2
    assert number_in(memory, 1) == 7
    with pytest.raises(UsageError, match="all 2 places"):
        places.put("z", adapter(9), lambda: {1})
    places.sweep(set)
    assert not places.has_leaving
    assert list(memory.tensors) == [2]
    places.put("z", adapter(9), set)
    assert places.of("z") == 1


def test_another_content_in_place() -> None:
    memory, places = made(1)
    places.put("x", adapter(7), set)
    with pytest.raises(UsageError, match="all 1 places"):
        places.put("x", adapter(8), lambda: {1})
    assert places.of("x") == 1
    places.put("x", adapter(8), set)
    assert number_in(memory, places.of("x")) == 8
    with pytest.raises(ModelNotServedError):
        places.of("d7")


@pytest.mark.parametrize("wrong", [adapter(8, rank=5), adapter(8, module="model.layers.9.mlp.down_proj")])
def test_what_does_not_fit_changes_nothing(wrong: Adapter) -> None:
    memory, places = made(1)
    places.put("x", adapter(7), set)
    with pytest.raises(UsageError):
        places.put("x", wrong, set)
    assert places.digests == {"x": "d7"}
    assert number_in(memory, 1) == 7


def test_without_memory() -> None:
    with pytest.raises(UsageError, match="--max-loras"):
        AdapterPlaces().put("x", adapter(7), set)


def test_errors_name_no_place_of_the_cache(tmp_path: Path) -> None:
    _, places = made(1)
    answer = change_adapters(places, LoadAdapter(3, "x", str(tmp_path)), set)
    assert (answer.id, answer.adapters) == (3, {})
    assert answer.error
    assert str(tmp_path) not in answer.error
    assert change_adapters(places, UnloadAdapter(4, "x"), set).error == ""


@pytest.mark.parametrize("seed", range(20))
def test_random_changes(seed: int) -> None:
    """An adapter that a sequence began with stays in its place until it ends."""
    rng, (memory, places) = random.Random(seed), made(3)
    running: list[tuple[int, int]] = []
    for _ in range(200):
        name, number = rng.choice("abcd"), rng.randrange(1, 6)
        in_use = {place for place, _ in running}
        kind = rng.choice(("put", "remove", "begin", "end", "sweep"))
        if kind == "put":
            try:
                places.put(name, adapter(number), lambda used=in_use: used)
            except UsageError:
                continue
            assert number_in(memory, places.of(name)) == number
        elif kind == "remove":
            places.remove(name)
        elif kind == "begin" and name in places.digests:
            running.append((places.of(name), int(places.digests[name][1:])))
        elif kind == "end" and running:
            running.pop(rng.randrange(len(running)))
        elif kind == "sweep":
            places.sweep(lambda used=in_use: used)
        for place, began_with in running:
            assert number_in(memory, place) == began_with
        for named, digest in places.digests.items():
            assert f"d{number_in(memory, places.of(named))}" == digest
