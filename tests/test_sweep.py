"""The short run and the rest of the suite: together they are all tests, and none is in both."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests import sweep

NAMES = [
    ("e2e/page/test_page.py", "test_a"),
    ("gateway/test_chat.py", "test_b[one]"),
    ("gateway/test_chat.py", "test_b[two]"),
    ("gateway/test_chat.py", "TestB::test_b[one]"),
    ("test_docs.py", "test_c[one]"),
    ("test_docs.py", "test_c[two]"),
]
SHORT = [1, 3, 4, 5]


@dataclass(eq=False)
class Item:
    """A test as pytest has collected it."""

    path: Path
    nodeid: str


def items() -> list[Any]:
    return [Item(sweep.ROOT / file, f"tests/{file}::{name}") for file, name in NAMES]


def config(**options: Any) -> Any:
    chosen = {"sweep": None, "keyword": "", "markexpr": ""} | options
    return SimpleNamespace(args=[str(sweep.ROOT)], option=SimpleNamespace(**chosen))


def taken(asked: Any) -> list[int]:
    given = items()
    left_out = sweep.left_out_of(asked, given)
    return [number for number, item in enumerate(given) if item not in left_out]


def test_the_short_run_has_first_cases_and_the_rest_has_all_others() -> None:
    assert taken(config()) == SHORT
    assert taken(config(sweep="rest")) == [0, 2]
    assert taken(config(sweep="all")) == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("options", [{"keyword": "chat"}, {"markexpr": "arm"}])
def test_a_run_that_says_which_takes_all_of_them(options: dict[str, str]) -> None:
    assert taken(config(**options)) == [0, 1, 2, 3, 4, 5]


def test_a_run_of_a_file_takes_all_of_it() -> None:
    asked = config()
    asked.args = [str(sweep.ROOT / "gateway")]
    assert taken(asked) == [0, 1, 2, 3, 4, 5]


def test_all_names_are_there() -> None:
    for name in (*sweep.WHOLE, *sweep.FIRST_CASES):
        assert (sweep.ROOT / name).exists(), name
