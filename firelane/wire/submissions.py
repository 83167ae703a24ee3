"""Requests cut into frames of a bounded size."""

from __future__ import annotations

from collections.abc import Iterator

from firelane.wire.frames import NewRequest, Submit
from firelane.wire.repeats import repeats, shortened

SUBMIT_BYTES = 4 << 20
"""Bytes of prompts and grammars in one Submit frame: far below what an engine takes, however many requests
come at once.
"""


def submissions(requests: list[NewRequest]) -> Iterator[Submit]:
    """The requests in order, cut where their prompts and grammars would be too much for one frame."""
    begin, size = 0, 0
    for index, request in enumerate(requests):
        own = 0 if index > begin and repeats(request, requests[index - 1]) else _size(request)
        if own and index > begin and size + own > SUBMIT_BYTES:
            yield Submit(shortened(requests[begin:index]))
            begin, size = index, 0
        size += own
    if begin < len(requests):
        yield Submit(shortened(requests[begin:]))


def _size(request: NewRequest) -> int:
    """Bytes of what has no bound of its own. Of one character UTF-8 makes four bytes at most."""
    return len(request.prompt) + (0 if request.grammar is None else 4 * len(request.grammar.text))
