"""Priority and deadline of a request, as fields and as a header."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from firelane.errors import RequestError

Priority = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
"""Lower is served sooner, as in vLLM."""
MOST_MS = 24 * 3600 * 1000
_BOUNDS = {"minimum": 1, "maximum": MOST_MS}
DeadlineMs = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1, extra_json_schema=_BOUNDS)]
"""Milliseconds from a request's arrival until its answer has to be complete. The schema alone has the bounds,
so that the refusal can say what to do."""


def checked_deadline(milliseconds: int, name: str) -> int:
    """Raises RequestError on a deadline that is over, or too far away. name: of field or header."""
    if 1 <= milliseconds <= MOST_MS:
        return milliseconds
    raise RequestError(
        f"`{name}` is {milliseconds}: give the milliseconds from now until the answer has to be complete, 1 "
        f"to {MOST_MS}, or leave it out",
        param=name,
    )


def header_deadline(value: bytes, name: str) -> int:
    """The deadline in a header. Raises RequestError."""
    text = value.decode("latin-1").strip()
    if not text.removeprefix("-").isdecimal() or not text.isascii() or len(text) > 18:
        raise RequestError(
            f"the header `{name}` is '{text[:40]}': give a whole number of milliseconds, 1 to {MOST_MS}",
            param=name,
        )
    return checked_deadline(int(text), name)
