"""This process's end of the way to an engine: requests go in as objects, frames come out to the choices. An
engine in this process has it for its channel."""

from __future__ import annotations

import time

from firelane.errors import RequestError
from firelane.llm.choice import CompletionBuilder
from firelane.wire.cache_events import PageChanges
from firelane.wire.frames import Abort, Finished, NewRequest, Rejected, StepFrame, Submit


class LocalChannel:
    """Open choices by request id; tells each what became of it. embeddings: by request id, as in
    wire.Embedding; whoever asked for one takes it out."""

    def __init__(self) -> None:
        self.open: dict[int, CompletionBuilder] = {}
        self.embeddings: dict[int, bytes] = {}
        self._rejected: dict[int, str] = {}
        self._new: list[NewRequest] = []
        self._aborts: list[int] = []

    def add(self, choices: list[CompletionBuilder]) -> None:
        self._new += [choice.request for choice in choices]
        self.open.update((choice.request.id, choice) for choice in choices)

    def abort(self, request_ids: list[int]) -> None:
        """Stop those of them that are still open, in the next turn."""
        for request_id in request_ids:
            if self.open.pop(request_id, None) is not None:
                self._aborts.append(request_id)

    def raise_rejected(self, choices: list[CompletionBuilder]) -> None:
        """Raises RequestError if the engine cannot take one of these."""
        if self._rejected:
            rejected, self._rejected = self._rejected, {}
            for choice in choices:
                if choice.request.id in rejected:
                    raise RequestError(rejected[choice.request.id])

    def receive(self, wait_s: float | None) -> list[Submit | Abort]:
        if wait_s and not (self._new or self._aborts):
            time.sleep(wait_s)  # a grammar is being compiled
        new, self._new = self._new, []
        aborts, self._aborts = self._aborts, []
        return [Submit(new), Abort(aborts)] if new or aborts else []

    def send(self, frame: StepFrame | Rejected | PageChanges) -> None:
        assert not isinstance(frame, PageChanges), "nobody has asked for pages"
        if isinstance(frame, Rejected):
            self._rejected[frame.id] = frame.message
            self.open.pop(frame.id, None)
            return
        for started in frame.started:
            if (choice := self.open.get(started.id)) is not None:
                choice.on_started(started.cached_tokens)
        for entry in frame.logprobs:
            if (choice := self.open.get(entry.id)) is not None:
                choice.on_logprobs(entry)
        for embedding in frame.embeddings:
            if embedding.id in self.open:
                self.embeddings[embedding.id] = embedding.values
        stopped = {finished.id for finished in frame.finished if finished.reason == "stop"}
        for request_id, token, is_last in frame.each_token():
            if (choice := self.open.get(request_id)) is not None:
                choice.on_token(token, is_stop=is_last and request_id in stopped)
                if choice.output.finish_reason is not None:
                    del self.open[request_id]
                    self._aborts.append(request_id)
        self._end(frame.finished)

    def _end(self, all_finished: list[Finished]) -> None:
        for finished in all_finished:
            choice = self.open.pop(finished.id, None)
            if choice is not None:
                choice.on_end(finished.reason)
