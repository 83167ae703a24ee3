"""Whose memory is taken."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firelane.node.memory import Holder, eviction, is_free, yielder


def holder(name: str, gives: int = 10, **fields) -> Holder:
    return Holder(
        **{"name": name, "gives_bytes": gives, "ends_bytes": gives + 1, "resident_s": 100.0} | fields
    )


def names(*holders: Holder, need: int = 10, residence_s: float = 5.0) -> tuple[str, ...] | None:
    found = eviction(holders, need, residence_s)
    return None if found is None else found.names


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"idle_s": 9.0}, {"idle_s": 3.0}),
        ({"priority": -1}, {"priority": 0, "idle_s": 99.0}),
        ({"idle_s": 3.0, "cost_s": 0.1}, {"idle_s": 9.0, "cost_s": 10.0}),
        ({"idle_s": 1.0}, {"idle_s": 9.0, "is_busy": True}),
        ({"idle_s": 1.0}, {"idle_s": 9.0, "is_pinned": True}),
        ({"idle_s": 1.0}, {"idle_s": 9.0, "resident_s": 4.0, "cost_s": 0.5}),
        ({"idle_s": 9.0, "resident_s": 4.0, "cost_s": 0.4}, {"idle_s": 8.0, "cost_s": 0.4}),
        ({"idle_s": 1.0}, {"idle_s": 9.0, "is_ready": False}),
    ],
)
def test_who_goes_first(first, second) -> None:
    a, b = holder("a", **first), holder("b", **second)
    assert names(a, b) == names(b, a) == ("a",)


def test_as_many_go_as_are_needed_and_no_more() -> None:
    small, large = holder("s", 4, idle_s=9.0), holder("l", 10, idle_s=1.0)
    assert names(small, need=4) == ("s",)
    assert names(small, large, need=12) == ("s", "l")
    assert names(small, large, need=9) == ("l",)


@pytest.mark.parametrize(("spare", "who"), [(4, ("l",)), (3, ("s", "l"))])
def test_one_that_gives_just_the_surplus_stays(spare: int, who: tuple[str, ...]) -> None:
    small, large = holder("s", 4, idle_s=9.0), holder("l", 10, idle_s=1.0)
    assert names(small, large, need=14 - spare) == who


def test_where_standby_is_not_enough_they_end() -> None:
    found = eviction([holder("a", 10)], 11, 0.0)
    assert found is not None
    assert (found.names, found.ends) == (("a",), True)
    assert eviction([holder("a", 10)], 12, 0.0) is None


def test_who_yields() -> None:
    busy = {"is_busy": True}
    low, high = holder("low", priority=0, **busy), holder("high", priority=2, **busy)
    assert yielder([high, low], 1, 5.0) is low
    assert yielder([high], 1, 5.0) is None
    assert yielder([holder("new", resident_s=1.0, cost_s=0.2, **busy)], 1, 5.0) is None
    cheap = holder("new", resident_s=1.0, cost_s=0.01, **busy)
    assert yielder([cheap], 1, 5.0) is cheap
    old, young = holder("old", resident_s=200.0, **busy), holder("young", resident_s=100.0, **busy)
    assert yielder([young, old], 1, 5.0) is yielder([old, young], 1, 5.0) is old
    assert yielder([holder("p", is_pinned=True, **busy), holder("idle")], 1, 5.0) is None


HOLDERS = st.builds(
    Holder,
    name=st.sampled_from("abcdef"),
    gives_bytes=st.integers(0, 20),
    ends_bytes=st.integers(20, 30),
    priority=st.integers(-1, 1),
    idle_s=st.floats(0, 100),
    resident_s=st.floats(0, 10),
    is_busy=st.booleans(),
    is_pinned=st.booleans(),
    is_ready=st.booleans(),
)


@given(st.lists(HOLDERS, unique_by=lambda one: one.name), st.integers(1, 60))
def test_enough_is_given_by_those_that_may_and_each_is_needed(holders: list[Holder], need: int) -> None:
    found, by_name = eviction(holders, need, 5.0), {one.name: one for one in holders}
    free = [one for one in holders if is_free(one, 5.0)]
    if found is None:
        assert sum(one.ends_bytes for one in free) < need
        return
    chosen = [by_name[name] for name in found.names]
    given = [one.ends_bytes if found.ends else one.gives_bytes for one in chosen]
    assert all(one in free for one in chosen)
    assert need <= sum(given) < need + min(given)
