"""Ollama's keep_alive, as clients write it and as attackers do."""

from __future__ import annotations

import time

import pytest

from firelane.api.node import keep_seconds
from firelane.errors import RequestError


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (None, None),
        (0, 0.0),
        (2.5, 2.5),
        ("0", 0.0),
        ("300", 300.0),
        ("-1", -1.0),
        ("-1m", -60.0),
        ("1.5h", 5400.0),
        ("1h30m", 5400.0),
        ("1500ms", 1.5),
        ("9" * 400 + "h", float("inf")),
    ],
)
def test_seconds_and_durations(value, seconds) -> None:
    assert keep_seconds(value) == seconds


@pytest.mark.parametrize(
    "value", ["", "-", "soon", "5 m", "5m30", "5m-3s", "h", "1..5s", "\u0663s", True, [], {}]
)
def test_what_is_no_duration_is_refused(value) -> None:
    with pytest.raises(RequestError, match="keep_alive"):
        keep_seconds(value)


@pytest.mark.parametrize("value", ["1" * 100_000 + "x", "1m" * 50_000 + "x", "1.1" * 30_000])
def test_a_long_one_takes_no_longer_than_its_length(value) -> None:
    began_s = time.process_time()
    with pytest.raises(RequestError):
        keep_seconds(value)
    assert time.process_time() - began_s < 5
