"""Ollama's durations: JSON values and texts, read as seconds or refused."""

from __future__ import annotations

import math

import msgspec

from firelane.api.node import keep_seconds
from firelane.errors import RequestError
from fuzz.target import Target


def run(data: bytes) -> None:
    try:
        value = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        value = data.decode(errors="replace")
    seconds = keep_seconds(value)
    assert seconds is None or not math.isnan(seconds)


TARGET = Target(
    run=run,
    refusals=(RequestError,),
    most_bytes=1 << 12,
    words=(b"1h", b"30m", b"5s", b"10ms", b"7us", b"9ns", b"-", b".5", b'"', b"1e400", b"NaN", b"9" * 32),
)
