"""Requests that differ in id and seed alone, such as the choices of one: prompt and grammar travel once."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

import msgspec

from firelane.errors import FrameError
from firelane.wire.frames import NewRequest


def repeats(request: NewRequest, before: NewRequest) -> bool:
    """Whether prompt and grammar are the very objects of the request before it."""
    return request.prompt is before.prompt and request.grammar is before.grammar


def shortened(requests: list[NewRequest]) -> list[NewRequest]:
    """The requests of one frame, those that repeat the one before without what they repeat."""
    found = requests[:1]
    for before, request in itertools.pairwise(requests):
        if repeats(request, before):
            request = msgspec.structs.replace(request, prompt=b"", grammar=None, repeats=True)
        found.append(request)
    return found


def restored(requests: Iterable[NewRequest]) -> Iterator[NewRequest]:
    """The requests of a frame as they were. Raises FrameError where the first one repeats."""
    before: NewRequest | None = None
    for request in requests:
        if request.repeats:
            if before is None:
                raise FrameError("the first request of a frame repeats another one: not a Firelane peer?")
            prompt, grammar = before.prompt, before.grammar
            request = msgspec.structs.replace(request, prompt=prompt, grammar=grammar, repeats=False)
        before = request
        yield request
