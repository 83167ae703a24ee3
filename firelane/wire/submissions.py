"""Requests cut into frames of a bounded size. Of those that differ in id and seed alone, such as the
choices of one, what they share travels once.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

import msgspec

from firelane.errors import FrameError
from firelane.wire.frames import NewRequest, Submit

SUBMIT_BYTES = 4 << 20
"""Bytes of prompts, grammars and predictions in one Submit frame: far below what an engine takes, however
many requests come at once.
"""


def submissions(requests: list[NewRequest]) -> Iterator[Submit]:
    """The requests in order, cut where they would be too much for one frame."""
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
    grammar = 0 if request.grammar is None else 4 * len(request.grammar.text)
    pixels = sum(len(image.pixels) for image in request.images) if request.images else 0
    return len(request.prompt) + len(request.prediction) + grammar + pixels


def repeats(request: NewRequest, before: NewRequest) -> bool:
    """Whether prompt, grammar, prediction and images are the very objects of the request before it."""
    same = request.prompt is before.prompt and request.grammar is before.grammar
    same = same and (request.images is before.images or not (request.images or before.images))
    return same and request.prediction is before.prediction


def shortened(requests: list[NewRequest]) -> list[NewRequest]:
    """The requests of one frame, those that repeat the one before without what they repeat."""
    found = requests[:1]
    for before, request in itertools.pairwise(requests):
        if repeats(request, before):
            request = msgspec.structs.replace(
                request, prompt=b"", grammar=None, prediction=b"", images=[], repeats=True
            )
        found.append(request)
    return found


def restored(requests: Iterable[NewRequest]) -> Iterator[NewRequest]:
    """The requests of a frame as they were. Raises FrameError where the first one repeats."""
    before: NewRequest | None = None
    for request in requests:
        if request.repeats:
            if before is None:
                raise FrameError("the first request of a frame repeats another one: not a Firelane peer?")
            request = msgspec.structs.replace(
                request,
                prompt=before.prompt,
                grammar=before.grammar,
                prediction=before.prediction,
                images=before.images,
                repeats=False,
            )
        before = request
        yield request
