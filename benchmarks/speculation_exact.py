"""Tokens of a drafting engine against those of plain decoding, over random schedules.

    python benchmarks/speculation_exact.py [MODEL] [--tokens 1000000] [--seed 1] [--minutes 60]

Requests are greedy and sampled, with penalties, stop tokens, log-probabilities, JSON schemas and regular
expressions; prompts repeat themselves and each other. The drafting engine has few pages, so that sequences
are preempted in the middle of drafts; requests arrive while others run; and now and then it loses everything:
what runs is aborted, and goes on as a request that another engine began, as after the end of a process. The
plain engine gets the same requests one batch at a time. Prints what was compared, and ends with 1 where a
token or a log-probability differs.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from speculation import SCHEMA, Engine

from firelane.native.machine import cpu_identity
from firelane.wire.frames import Grammar, NewRequest, Sampling, TokenLogprobs

EMBEDDED = str(Path(__file__).parents[1] / "firelane" / "models" / "embedded")
SOURCES = sorted((Path(__file__).parents[1] / "firelane" / "engine").rglob("*.py"))
GRAMMARS = (
    Grammar("json_schema", json.dumps(SCHEMA)),
    Grammar("regex", "(def|class) [a-z_]{3,12}: (one|two|three) hundred and (four|five)"),
)
BATCH = 24
PAGES = 64
"""Pages of the drafting engine, fewer than its sequences would like."""


@dataclass
class Answers:
    """A channel's view: tokens and log-probabilities by request, and which have ended."""

    tokens: dict[int, list[int]] = field(default_factory=dict)
    logprobs: dict[int, dict[int, TokenLogprobs]] = field(default_factory=dict)
    ended: dict[int, str] = field(default_factory=dict)

    def receive(self, wait_s: float | None) -> tuple[()]:
        del wait_s
        return ()

    def send(self, frame: Any) -> None:
        for request_id, token, _ in frame.each_token():
            self.tokens.setdefault(request_id, []).append(token)
        for entry in frame.logprobs:
            self.logprobs.setdefault(entry.id, {})[entry.position] = entry
        for finished in frame.finished:
            self.ended[finished.id] = finished.reason


class Requests:
    """Random requests."""

    def __init__(self, engine: Engine, seed: int) -> None:
        self._random, self._vocab_size = random.Random(seed), engine.executor.vocab_size
        texts = [path.read_text(encoding="utf-8")[:3000] for path in SOURCES]
        self._texts = [ids for text in texts if len(ids := engine.tokenizer.encode(text)) > 200]
        self._next_id = 1

    def batch(self) -> list[NewRequest]:
        return [self._request() for _ in range(BATCH)]

    def _request(self) -> NewRequest:
        draw = self._random
        text = draw.choice(self._texts)
        start = draw.randrange(len(text) - 100)
        prompt = text[start : start + draw.randrange(8, 100)] * draw.choice((1, 1, 2, 3))
        sampling = Sampling(
            temperature=draw.choice((0.0, 0.0, 0.4, 1.0)),
            top_p=draw.choice((1.0, 0.9)),
            repetition_penalty=draw.choice((1.0, 1.0, 1.0, 1.1)),
            frequency_penalty=draw.choice((0.0, 0.0, 0.0, 0.2)),
            seed=draw.randrange(1 << 40),
            max_tokens=draw.randrange(1, 160),
            min_tokens=draw.choice((0, 0, 5)),
            stop_token_ids=sorted(draw.sample(range(min(4096, self._vocab_size)), draw.choice((0, 0, 3)))),
            logprobs=draw.choice((-1, -1, -1, 2)),
        )
        sampling = msgspec.structs.replace(sampling, min_tokens=min(sampling.min_tokens, sampling.max_tokens))
        grammar = draw.choice(GRAMMARS) if draw.random() < 0.2 else None
        packed = np.array(prompt, "<i4").tobytes()
        self._next_id += 1
        return NewRequest(id=self._next_id, prompt=packed, sampling=sampling, grammar=grammar)


def plain(engine: Engine, requests: Sequence[NewRequest]) -> Answers:
    answers = Answers()
    engine.core._channel = answers
    for request in requests:
        engine.core.submit(msgspec.structs.replace(request, most_drafted=0))
    while len(answers.ended) < len(requests) or not engine.core.is_idle:
        engine.core.step()
    return answers


def drafted(engine: Engine, requests: Sequence[NewRequest], draw: random.Random) -> tuple[Answers, int]:
    """The answers, and how often the engine has lost everything."""
    answers, waiting, losses = Answers(), list(requests), 0
    engine.core._channel = answers
    while waiting or len(answers.ended) < len(requests) or not engine.core.is_idle:
        for _ in range(draw.choice((0, 0, 1, 3))):
            if waiting:
                engine.core.submit(waiting.pop())
        engine.core.step()
        if draw.random() < 0.002:
            losses += 1
            _lose(engine, answers, [one for one in requests if one not in waiting])
    return answers, losses


def _lose(engine: Engine, answers: Answers, running: Sequence[NewRequest]) -> None:
    """Abort all that runs; it goes on with the tokens that were told."""
    running = [request for request in running if request.id not in answers.ended]
    engine.core.abort_all()
    while not engine.core.is_idle:
        engine.core.step()
    for request in running:
        told = answers.tokens.get(request.id, [])
        if answers.ended.pop(request.id) != "abort":
            answers.ended[request.id] = "stop"
            continue
        output = np.array(told, "<i4").tobytes()
        begun = {"prompt": request.prompt + output, "output_start": len(request.prompt) // 4} if told else {}
        engine.core.submit(msgspec.structs.replace(request, **begun))


def differs(one: Answers, other: Answers, request: NewRequest) -> bool:
    if one.tokens.get(request.id, []) != other.tokens.get(request.id, []):
        return True
    return request.sampling.logprobs >= 0 and one.logprobs.get(request.id) != other.logprobs.get(request.id)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Tokens of a drafting engine against plain decoding.")
    parser.add_argument("model", nargs="?", default=EMBEDDED)
    parser.add_argument("--tokens", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--speculative", default="ngram", help="draft=SMALL, eagle3=HEAD, mtp")
    parser.add_argument(
        "--threads", type=int, default=0, help="of each engine; 0: as many as there are cores"
    )
    parser.add_argument("--minutes", type=float, default=math.inf, help="ends with fewer tokens after these")
    asked = parser.parse_args(arguments)
    ends_s = time.monotonic() + 60 * asked.minutes
    sizes = {"max_model_len": 1024, "kv_cache_bytes": 1 << 28} | (
        {"threads": asked.threads} if asked.threads else {}
    )
    reference = Engine(asked.model, sizes)
    pages = len(reference.executor.limits.spans) * PAGES
    engine = Engine(asked.model, sizes | {"num_blocks": pages}, asked.speculative)
    # The times of steps on a busy machine must not decide how much is drafted.
    times = engine.core.drafter.times
    times.share_of_one_more = times.seconds = lambda _: 0.0
    times.has_seen = lambda _: True
    requests, draw = Requests(engine, asked.seed), random.Random(asked.seed)
    tokens = wrong = losses = 0
    while tokens < asked.tokens and time.monotonic() < ends_s:
        batch = requests.batch()
        expected = plain(reference, batch)
        got, lost = drafted(engine, batch, draw)
        bad = [request for request in batch if differs(expected, got, request)]
        wrong, losses = wrong + len(bad), losses + lost
        tokens += sum(map(len, expected.tokens.values()))
        for request in bad:
            print(f"request {request.id} differs: {request}", file=sys.stderr)
    drafter, preemptions = engine.core.drafter, engine.core._applier.preemptions
    print(
        f"{Path(asked.model).name}, {cpu_identity().model}: {tokens} tokens compared, {wrong} requests "
        f"differ; {drafter.drafted_tokens} drafted, {drafter.accepted_tokens} accepted, "
        f"{preemptions} preemptions, {losses} losses of everything"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
