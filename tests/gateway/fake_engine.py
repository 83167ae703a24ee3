"""An engine without a model: speaks the frames over a socket pair, draws the tokens that the test scripts."""

from __future__ import annotations

import array
import asyncio
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from firelane.engine.sequences.sequence import check_generates
from firelane.errors import RequestError
from firelane.link.framing import FrameReader, encode
from firelane.wire.frames import (
    PROTOCOL_VERSION,
    Abort,
    Embedding,
    EngineStats,
    Finished,
    FinishReason,
    ForgetTenant,
    Forgotten,
    NewRequest,
    Ready,
    Rejected,
    Started,
    StepFrame,
    Submit,
    TellPages,
    ToEngine,
    TokenLogprobs,
)
from firelane.wire.submissions import restored


@dataclass
class Running:
    request: NewRequest
    prompt: list[int]
    answer: list[int]
    sent: int = 0
    begun: bool = False


@dataclass(repr=False)
class FakeEngine:
    """`answer(prompt, sampling)` gives a request's tokens, repeated until its limit. One step per loop turn
    unless `held`. label_logprobs: of tokens that a request names, behind a prompt. run_tokens: that one step
    gives a request, as an engine with drafts does; one with its prompt. rejected_drafts: as in Finished.
    """

    answer: Callable[[list[int], Any], list[int]]
    vocab_size: int
    max_model_len: int = 512
    max_num_seqs: int = 8
    cached_tokens: int = 0
    restored_tokens: tuple[int, int, int] = (0, 0, 0)
    age_s: float = 0.0
    held: bool = False
    reject: str = ""
    reject_status: int = 400
    reject_code: str = ""
    can_generate: bool = True
    is_encoder: bool = False
    elsewhere: bool = False
    submitted: list[NewRequest] = field(default_factory=list)
    expected: list[NewRequest] = field(default_factory=list)
    submit_frames: int = 0
    tells_pages: bool = False
    aborted: list[int] = field(default_factory=list)
    tells_aborts: bool = True
    running: dict[int, Running] = field(default_factory=dict)
    steps: int = 0
    sock: socket.socket | None = None
    generated: int = 0
    frame: Callable[[StepFrame], StepFrame] = lambda frame: frame
    embed: Callable[[list[int], str], list[float]] = lambda prompt, pooling: [  # noqa: ARG005
        float(len(prompt)),
        float(prompt[-1]),
        -1.0,
        0.0,
    ]
    embedding_width: int = 4
    label_logprobs: Callable[[list[int], list[int]], list[float]] = lambda prompt, ids: [  # noqa: ARG005
        -1.0 - i for i in range(len(ids))
    ]
    run_tokens: int = 1
    rejected_drafts: int = 0

    def connect(self) -> socket.socket:
        """The gateway's end of a fresh connection."""
        if self.sock is not None:
            self.die()
        mine, theirs = socket.socketpair()
        mine.setblocking(False)
        self.loop = asyncio.get_running_loop()
        self.sock = mine
        self.reader: FrameReader[ToEngine] = FrameReader(ToEngine)
        self.loop.add_reader(mine, self._read)
        return theirs

    def ready(self, **changes: Any) -> Ready:
        values: dict[str, Any] = {
            "protocol": PROTOCOL_VERSION,
            "pid": 1,
            "model": "toy",
            "vocab_size": self.vocab_size,
            "max_model_len": self.max_model_len,
            "max_num_seqs": self.max_num_seqs,
            "block_size": 16,
            "num_blocks": 100,
            "weights_bytes": 1,
            "kv_bytes": 1,
            "load_s": 0.1,
            "embedding_width": self.embedding_width,
            "quantization": "awq",
            "can_generate": self.can_generate,
            "is_encoder": self.is_encoder,
        }
        return Ready(**{**values, **changes})

    def send(self, frame: Any) -> None:
        self.sock.setblocking(True)
        self.sock.sendall(encode(frame))
        self.sock.setblocking(False)

    def die(self) -> None:
        if self.sock.fileno() >= 0:
            self.loop.remove_reader(self.sock)
            self.sock.close()
        self.running.clear()

    def _read(self) -> None:
        data = self.sock.recv(1 << 20)
        if not data:
            self.die()
            return
        for frame in self.reader.feed(data):
            if isinstance(frame, Submit):
                self._submit(frame)
            elif isinstance(frame, Abort):
                self.aborted.extend(frame.ids)
                ends = [Finished(one, "abort") for one in frame.ids if self.running.pop(one, None)]
                if ends and self.tells_aborts:
                    self.send(StepFrame(self.steps, [], [], [], ends, [], EngineStats(), []))
            elif isinstance(frame, TellPages):
                self.tells_pages = True
            elif isinstance(frame, ForgetTenant) and not self.held:
                self.send(Forgotten(frame.tenant, len(frame.tenant), frame.id))

    def _submit(self, frame: Submit) -> None:
        self.submit_frames += 1
        requests = list(restored(frame.requests))
        self.submitted.extend(request for request in requests if not request.prefetch)
        self.expected.extend(request for request in requests if request.prefetch)
        for request in requests:
            if request.prefetch:
                continue
            if self.reject:
                refusal = self.elsewhere, self.reject_status, self.reject_code
                self.send(Rejected(request.id, self.reject, *refusal))
                continue
            try:
                check_generates(request, can_generate=self.can_generate)
            except RequestError as error:
                self.send(Rejected(request.id, str(error), status=error.status))
                continue
            if request.id in self.running:
                self.send(Rejected(request.id, f"request id {request.id} is in use"))
                continue
            prompt = array.array("i", request.prompt).tolist()
            start = len(prompt) if request.output_start < 0 else request.output_start
            prompt, output = prompt[:start], prompt[start:]
            answer = self.answer(prompt, request.sampling)
            assert output == [answer[i % len(answer)] for i in range(len(output))]
            self.running[request.id] = Running(request, prompt, answer, len(output))
        if not self.held:
            self.loop.call_soon(self.step_on)

    def step_on(self) -> None:
        if self.running and not self.held and self.sock.fileno() >= 0:
            self.step()
            self.loop.call_soon(self.step_on)

    def step(self) -> None:
        """One token for each running request, or `run_tokens`."""
        self.steps += 1
        rows = list(self.running.values())[: self.max_num_seqs]
        frame = StepFrame(self.steps, [], [], [], [], [], EngineStats(), [], [])
        for row in rows:
            self._advance(row, frame)
        self.generated += len(frame.tokens)
        stats = EngineStats(
            running=len(self.running),
            kv_used_blocks=5,
            kv_total_blocks=100,
            steps=self.steps,
            generated_tokens=self.generated,
            prefix_queries=10 * self.steps,
            prefix_hits=4 * self.steps,
        )
        self.send(
            self.frame(
                StepFrame(
                    self.steps,
                    frame.ids,
                    frame.tokens,
                    frame.started,
                    frame.finished,
                    frame.logprobs,
                    stats,
                    frame.embeddings,
                    frame.counts if self.run_tokens > 1 else [],
                )
            )
        )

    def _advance(self, row: Running, frame: StepFrame) -> None:
        request, sampling = row.request, row.request.sampling
        most = 1 if not row.begun or request.most_drafted == 0 else self.run_tokens
        if not row.begun:
            row.begun = True
            frame.started.append(Started(request.id, self.cached_tokens, self.age_s, *self.restored_tokens))
            if sampling.prompt_logprobs >= 0 and row.sent == 0:
                for position, token in enumerate(row.prompt[1:], 1):
                    frame.logprobs.append(self._report(request.id, position, token, sampling.prompt_logprobs))
        if request.pooling:
            vector = array.array("f", self.embed(row.prompt, request.pooling))
            frame.embeddings.append(Embedding(request.id, vector.tobytes()))
            frame.finished.append(Finished(request.id, "stop"))
            del self.running[request.id]
            return
        frame.ids.append(request.id)
        frame.counts.append(0)
        while frame.counts[-1] < most and request.id in self.running:
            self._draw(row, frame)

    def _draw(self, row: Running, frame: StepFrame) -> None:
        request, sampling = row.request, row.request.sampling
        token = row.answer[row.sent % len(row.answer)]
        row.sent += 1
        frame.counts[-1] += 1
        frame.tokens.append(token)
        if sampling.logprobs >= 0:
            position = len(row.prompt) + row.sent - 1
            named = sampling.logprob_token_ids
            entry = self._report(request.id, position, token, sampling.logprobs)
            if named:
                found = self.label_logprobs(row.prompt, named)
                entry = msgspec.structs.replace(entry, top_ids=named, top_logprobs=found)
            frame.logprobs.append(entry)
        stop = token in sampling.stop_token_ids and row.sent > sampling.min_tokens
        if stop or row.sent >= sampling.max_tokens:
            frame.finished.append(self._end_of(request, "stop" if stop else "length"))
            del self.running[request.id]

    def _end_of(self, request: NewRequest, reason: FinishReason) -> Finished:
        return Finished(request.id, reason, rejected_drafts=self.rejected_drafts)

    def _report(self, request_id: int, position: int, token: int, top: int) -> TokenLogprobs:
        tops = [(token + i) % self.vocab_size for i in range(top)]
        return TokenLogprobs(request_id, position, token, -0.5, tops, [-0.5 - i for i in range(top)])
