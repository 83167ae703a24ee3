"""Numbers of gateways: ids of requests begin with that of the gateway whose they are, so that an engine that
serves several knows whose a token is.
"""

from __future__ import annotations

SHIFT = 40
"""Bits of an id below the number: enough for a million requests a second over twelve days."""
NUMBER_BYTES = 4


def first_id(number: int) -> int:
    """The first request id of a gateway. number: 0 for the one that owns the engine."""
    return (number << SHIFT) + 1


def number_of(request_id: int) -> int:
    """The number of the gateway that a request is of."""
    return request_id >> SHIFT
