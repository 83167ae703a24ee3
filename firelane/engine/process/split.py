"""A step's frame in parts, one for each gateway that has sequences in it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from firelane.wire.frames import Embedding, EngineStats, Finished, Started, StepFrame, TokenLogprobs
from firelane.wire.numbers import SHIFT, number_of

EntryT = TypeVar("EntryT", Started, Finished, TokenLogprobs, Embedding)


def split_step(frame: StepFrame) -> dict[int, StepFrame]:
    """Parts by the gateway's number. All of them carry the whole engine's figures."""
    numbers = {one >> SHIFT for one in frame.ids}
    for entries in (frame.started, frame.finished, frame.logprobs, frame.embeddings):
        numbers.update(number_of(entry.id) for entry in entries)
    if len(numbers) < 2:
        return dict.fromkeys(numbers, frame)
    parts = {number: _empty(frame.step, frame.stats) for number in numbers}
    _share_tokens(frame, parts)
    for number, part in parts.items():
        part.started.extend(_of(number, frame.started))
        part.finished.extend(_of(number, frame.finished))
        part.logprobs.extend(_of(number, frame.logprobs))
        part.embeddings.extend(_of(number, frame.embeddings))
    return parts


def _share_tokens(frame: StepFrame, parts: dict[int, StepFrame]) -> None:
    if not frame.counts:
        for request_id, token in zip(frame.ids, frame.tokens, strict=True):
            part = parts[request_id >> SHIFT]
            part.ids.append(request_id)
            part.tokens.append(token)
        return
    begin = 0
    for request_id, count in zip(frame.ids, frame.counts, strict=True):
        part = parts[request_id >> SHIFT]
        part.ids.append(request_id)
        part.counts.append(count)
        part.tokens.extend(frame.tokens[begin : begin + count])
        begin += count


def _of(number: int, entries: Iterable[EntryT]) -> list[EntryT]:
    return [entry for entry in entries if number_of(entry.id) == number]


def _empty(step: int, stats: EngineStats) -> StepFrame:
    return StepFrame(step, [], [], [], [], [], stats, [], [])
