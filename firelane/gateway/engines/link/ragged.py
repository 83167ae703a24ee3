"""Frames in which a request has several tokens, or none."""

from __future__ import annotations

from collections import defaultdict
from typing import Protocol

from firelane.wire.frames import Finished, StepFrame, TokenLogprobs


class Teller(Protocol):
    """A link: tells the sink of a request."""

    def wants_logprobs(self, request_id: int) -> bool: ...
    def tell_started(self, frame: StepFrame, now_s: float) -> None: ...
    def tell_logprobs(self, entry: TokenLogprobs) -> None: ...
    def tell_embeddings(self, frame: StepFrame) -> None: ...
    def tell_ending(self, finished: Finished) -> None: ...
    def tell_token(self, request_id: int, token: int, now_s: float) -> None: ...


def deliver_ragged(frame: StepFrame, link: Teller, now_s: float) -> None:
    """All but the ends themselves, as if each token had come in a frame of its own: its log-probability
    before it, `ending` before the last one."""
    link.tell_started(frame, now_s)
    link.tell_embeddings(frame)
    entries: defaultdict[int, list[TokenLogprobs]] = defaultdict(list)
    for entry in frame.logprobs:
        entries[entry.id].append(entry)
    ending = {finished.id: finished for finished in frame.finished}
    at = 0
    for request_id, count in zip(frame.ids, frame.counts, strict=True):
        own = entries.pop(request_id, [])
        drawn = own[len(own) - count :] if link.wants_logprobs(request_id) else []
        for entry in own[: len(own) - len(drawn)]:
            link.tell_logprobs(entry)
        for i, token in enumerate(frame.tokens[at : at + count]):
            if drawn:
                link.tell_logprobs(drawn[i])
            if i == count - 1 and request_id in ending:
                link.tell_ending(ending.pop(request_id))
            link.tell_token(request_id, token, now_s)
        at += count
    for own in entries.values():
        for entry in own:
            link.tell_logprobs(entry)
    for finished in ending.values():
        link.tell_ending(finished)
