"""Turns of clients at what is done for one at a time."""

from __future__ import annotations

import random

import pytest

from firelane.engine.grammar.turns import Turns


def filled(*items: str) -> Turns[str]:
    """Each item is its path, and a number behind it."""
    turns: Turns[str] = Turns(2)
    for item in items:
        turns.put(tuple(item[:2]), item)
    return turns


def all_of(turns: Turns[str]) -> list[str | None]:
    return [turns.take() for _ in range(len(turns))]


def test_one_client_is_served_in_order() -> None:
    assert all_of(filled("ax1", "ax2", "ax3")) == ["ax1", "ax2", "ax3"]


def test_turns_are_taken_at_each_level() -> None:
    turns = filled("ax1", "ax2", "ax3", "ay1", "ay2", "bz1", "bz2")
    assert all_of(turns) == ["ax1", "bz1", "ay1", "bz2", "ax2", "ay2", "ax3"]


def test_who_comes_back_waits_behind_the_others() -> None:
    turns = filled("ax1", "bx1")
    assert turns.take() == "ax1"
    turns.put(("a", "x"), "ax2")
    assert all_of(turns) == ["bx1", "ax2"]


def test_the_last_of_who_has_most_is_dropped() -> None:
    turns = filled("ax1", "ax2", "ay1", "bz1", "bz2")
    assert [turns.drop() for _ in range(5)] == ["ax2", "bz2", "ay1", "bz1", "ax1"]


def test_who_is_busy_is_passed_over() -> None:
    turns = filled("ax1", "ay1", "bz1", "cx1")
    assert turns.take({("a",)}) == "bz1"
    assert turns.take({("a", "x"), ("b",)}) == "ay1"
    assert turns.take({("a", "x")}) == "cx1"
    assert turns.take({("a", "x")}) is None
    assert len(turns) == 1
    assert turns.take({("a", "y")}) == "ax1"


def test_nothing_waits() -> None:
    turns = filled()
    assert not turns
    assert turns.take() is None
    with pytest.raises(IndexError, match="nothing waits"):
        turns.drop()


@pytest.mark.parametrize("seed", range(20))
def test_all_that_was_put_comes_out_once(seed: int) -> None:
    draw, turns = random.Random(seed), Turns[str](2)
    put, seen = list[str](), list[str | None]()
    for i in range(300):
        if draw.random() < 0.6 or not turns:
            put.append(draw.choice("abc") + draw.choice("xyz") + str(i))
            turns.put(tuple(put[-1][:2]), put[-1])
        else:
            seen.append(turns.take() if draw.random() < 0.7 else turns.drop())
        assert len(turns) == len(put) - len(seen)
    assert sorted(seen + all_of(turns)) == sorted(put)
