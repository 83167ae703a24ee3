"""Bounds of one case: how long it may take, and what it may be refused with."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from firelane.errors import RequestError, TokenizerError

PATIENCE_S = 120.0
"""On a machine that has other things to do; alone each case takes some seconds at most."""
MAX_LINE = 1000


@contextmanager
def patient(source: str) -> Iterator[None]:
    began_s = time.monotonic()
    try:
        yield
    except (RequestError, TokenizerError) as error:
        text = str(error)
        assert text, source
        assert "\n" not in text, source
        assert len(text) <= MAX_LINE, source
    assert time.monotonic() - began_s < PATIENCE_S, source
