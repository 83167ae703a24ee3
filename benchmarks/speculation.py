"""Drafts against plain decoding: the same engine, the same requests, the same tokens, in turns.

    python benchmarks/speculation.py MODEL [--repeats 7] [--only edit|scripted|failing|schema]
    python benchmarks/speculation.py MODEL --speculative draft=SMALL|eagle3=HEAD|mtp

edit: a file is in the prompt, and is asked for again with one name changed; drafts by prompt lookup.
scripted: each drafted token is right with a chance of 0.8, four a step; theory is the mean number of tokens
that such a step wins over the time of a step of five rows, both measured in the same run. failing: a proposer
that is sure of itself and always wrong, at 1, 8 and 32 sequences. schema: an answer by a JSON schema, whose
forced text is drafted. With --speculative: new text, greedy and drawn, for 1 and 4 sequences, drafted by a
second model alone; with --regardless whatever it costs, which tells how many tokens are right.

Each round runs both ways, in turns; printed are medians of the rounds' ratios, the least and the largest. The
tokens of both ways are compared. MODEL: a directory or a GGUF file.
--option NAME=VALUE: of the engine.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from firelane.bench.table import format_table
from firelane.engine.core import EngineCore
from firelane.engine.grammar.queue import grammar_queue
from firelane.engine.process.draft_load import load_second
from firelane.engine.process.load import load_executor, read_program
from firelane.engine.speculation.ngram import NgramProposer
from firelane.engine.speculation.proposer import Asked, Proposal, Proposer
from firelane.engine_config import EngineConfig
from firelane.native.machine import cpu_identity
from firelane.sources.draft import draft_directory
from firelane.sources.resolve import resolve
from firelane.text.tokens.tokenizer import load_tokenizer
from firelane.text.tokens.tokenizer_source import tokenizer_directory
from firelane.wire.frames import Grammar, NewRequest, Rejected, Sampling

FILE = Path(__file__).parents[1] / "firelane" / "engine" / "policies" / "fcfs.py"
BEGINS = (
    "def read_lines(path):\n",
    "class Queue:\n    def __init__(self, size):\n",
    "import json\nimport os\n\n\ndef main(arguments):\n",
    "The history of the town begins in the year",
)
SCHEMA = {
    "type": "object",
    "properties": {
        "first_name": {"type": "string", "maxLength": 12},
        "family_name": {"type": "string", "maxLength": 12},
        "address": {
            "type": "object",
            "properties": {
                "street_name": {"type": "string", "maxLength": 16},
                "house_number": {"type": "integer", "minimum": 1, "maximum": 999},
                "postal_code": {"type": "string", "pattern": "[0-9]{5}"},
            },
            "required": ["street_name", "house_number", "postal_code"],
            "additionalProperties": False,
        },
        "is_customer": {"type": "boolean"},
        "favourite_colours": {
            "type": "array",
            "items": {"enum": ["red", "green", "blue", "yellow"]},
            "minItems": 2,
            "maxItems": 3,
        },
    },
    "required": ["first_name", "family_name", "address", "is_customer", "favourite_colours"],
    "additionalProperties": False,
}


class Scripted:
    """Drafts from answers that are known, where each token is right with a chance of `accepted`."""

    def __init__(self, answers: dict[int, list[int]], accepted: float, length: int) -> None:
        """answers: by seed of the request."""
        self._answers, self._accepted, self._length = answers, accepted, length
        self._random = random.Random(1)

    def propose(self, asked: Sequence[Asked]) -> list[Proposal]:
        return [Proposal(self._run(one), 1.0) for one in asked]

    def _run(self, asked: Asked) -> list[int]:
        at = len(asked.tokens) - asked.sequence.prompt_len
        run = self._answers[asked.sequence.sampling.seed][at : at + min(self._length, asked.most)]
        return [token if self._random.random() < self._accepted else token ^ 1 for token in run]


@dataclass
class Switch:
    """A proposer that is another one in each part."""

    proposer: Proposer = field(default_factory=NgramProposer)

    def propose(self, asked: Sequence[Asked]) -> list[Proposal]:
        return self.proposer.propose(asked)


@dataclass
class Channel:
    """Collects tokens by request, and when the first one and the last one came."""

    tokens: dict[int, list[int]] = field(default_factory=dict)
    left: int = 0
    first_s: float = 0.0

    def receive(self, wait_s: float | None) -> tuple[()]:
        if wait_s:
            time.sleep(wait_s)  # a grammar is compiled
        return ()

    def send(self, frame: Any) -> None:
        assert not isinstance(frame, Rejected), frame
        for request_id, token, _ in frame.each_token():
            self.tokens.setdefault(request_id, []).append(token)
        self.left -= len(frame.finished)
        if not self.first_s and len(self.tokens) >= self.left:
            self.first_s = time.perf_counter()


class Engine:
    """The engine of one model, whose requests have drafts or not."""

    def __init__(self, model: str, options: dict[str, Any], speculative: str = "ngram") -> None:
        cache_dir = Path.home() / ".cache" / "firelane"
        model_dir = resolve(model, cache_dir=cache_dir)
        tokenizer_dir = tokenizer_directory(model_dir, cache_dir)
        config = EngineConfig(
            model_dir=model_dir,
            tokenizer_dir=tokenizer_dir,
            cache_dir=cache_dir,
            max_num_seqs=32,
            speculative=speculative,
            draft_dir=draft_directory(speculative, tokenizer_dir, cache_dir),
            **options,
        )
        program = read_program(config)
        self.executor = load_executor(config, lambda *_: None, program=program)
        self.second = load_second(config, program, self.executor, lambda *_: None)
        self.tokenizer = load_tokenizer(config.tokenizer_dir or config.model_dir)
        self.channel, self.switch, self._next_id = Channel(), Switch(), 1
        grammars = grammar_queue(config.tokenizer_dir or config.model_dir, self.executor.vocab_size)
        drafts = self.switch if self.second is None else self.second.proposer(self.executor)
        self.core = EngineCore(self.executor, self.channel, prerequisites=grammars, proposer=drafts)

    def run(
        self,
        prompts: list[list[int]],
        tokens: int,
        *,
        most: int,
        grammar: Grammar | None = None,
        temperature: float = 0.0,
    ) -> tuple[float, list[list[int]]]:
        """Seconds from the first token of all to the last one, and the tokens of each."""
        channel, first = self.channel, self._next_id
        channel.tokens, channel.left, channel.first_s = {}, len(prompts), 0.0
        for seed, prompt in enumerate(prompts):
            sampling = Sampling(temperature=temperature, max_tokens=tokens, seed=seed)
            packed = np.asarray(prompt, "<i4").tobytes()
            self.core.submit(
                NewRequest(
                    id=self._next_id, prompt=packed, sampling=sampling, most_drafted=most, grammar=grammar
                )
            )
            self._next_id += 1
        while channel.left or not self.core.is_idle:
            self.core.step()
        return time.perf_counter() - channel.first_s, [channel.tokens[first + i] for i in range(len(prompts))]


@dataclass
class Part:
    """One line of the table: ratios of plain over drafted time, and tokens that a verifying step won."""

    name: str
    ratios: list[float] = field(default_factory=list)
    drafted: int = 0
    accepted: int = 0
    drafts: int = 0
    theory: list[float] = field(default_factory=list)

    def row(self) -> list[str]:
        ratio, won = median(self.ratios), self.accepted / max(1, self.drafts) + 1
        theory = f"{ratio / median(self.theory):.2f}" if self.theory else ""
        spread = f"{min(self.ratios):.2f} to {max(self.ratios):.2f}"
        share = f"{self.accepted / max(1, self.drafted):.2f}"
        return [self.name, f"{ratio:.3f}", spread, f"{won:.2f}", share, theory]


def measured(
    engine: Engine,
    name: str,
    prompts: list[list[int]],
    tokens: int,
    repeats: int,
    *,
    most: int = -1,
    grammar: Grammar | None = None,
    temperature: float = 0.0,
    prepare: Callable[[list[list[int]]], Proposer] | None = None,
) -> Part:
    """prepare: makes the proposer, from the tokens of plain decoding."""
    part, drafter = Part(name), engine.core.drafter
    same = {"grammar": grammar, "temperature": temperature}
    _, plain = engine.run(prompts, tokens, most=0, **same)

    def anew() -> Proposer:
        """Knows none of the answers before, which the same request would get again."""
        return prepare(plain) if prepare else NgramProposer()

    engine.switch.proposer = anew()
    engine.run(prompts, tokens, most=most, **same)
    before = drafter.drafts, drafter.drafted_tokens, drafter.accepted_tokens
    for turn in range(repeats):
        seconds: dict[int, float] = {}
        for kind in (0, most) if turn % 2 else (most, 0):
            engine.switch.proposer = anew()
            seconds[kind], got = engine.run(prompts, tokens, most=kind, **same)
            assert got == plain, "drafts have changed an answer"
        part.ratios.append(seconds[0] / seconds[most])
    part.drafts = drafter.drafts - before[0]
    part.drafted = drafter.drafted_tokens - before[1]
    part.accepted = drafter.accepted_tokens - before[2]
    return part


def edit(engine: Engine, repeats: int) -> list[Part]:
    source = FILE.read_text(encoding="utf-8")
    begin = f"The file a.py:\n```python\n{source}```\n\n"
    asked = f"{begin}The file a.py again, with FcfsQueue renamed to Line:\n```python\n"
    ids = engine.tokenizer.encode(asked)[-engine.executor.limits.max_model_len // 2 :]
    return [measured(engine, f"edit of a file, {len(ids)} tokens in the prompt", [ids], 384, repeats)]


def scripted(engine: Engine, repeats: int) -> list[Part]:
    prompts = _prompts(engine, 1)

    def script(answers: list[list[int]]) -> Proposer:
        return Scripted(dict(enumerate(answers)), 0.8, 4)

    part = measured(engine, "scripted, 0.8 accepted, 4 a step", prompts, 192, repeats, most=4, prepare=script)
    part.theory = [(part.accepted / part.drafts + 1.0) / _five_rows(engine, prompts, repeats)]
    return [part]


def _five_rows(engine: Engine, prompts: list[list[int]], repeats: int) -> float:
    """The time of a step of five rows over that of one row, by drafts of four tokens that are all right."""

    def script(answers: list[list[int]]) -> Proposer:
        return Scripted(dict(enumerate(answers)), 1.0, 4)

    right = measured(engine, "", prompts, 192, repeats, most=4, prepare=script)
    return (right.accepted / right.drafts + 1.0) / median(right.ratios)


def failing(engine: Engine, repeats: int) -> list[Part]:
    def script(answers: list[list[int]]) -> Proposer:
        return Scripted(dict(enumerate(answers)), 0.0, 31)

    return [
        measured(engine, f"drafts that always fail, {n}", _prompts(engine, n), 128, repeats, prepare=script)
        for n in (1, 8, 32)
    ]


def schema(engine: Engine, repeats: int) -> list[Part]:
    ids = engine.tokenizer.encode("A customer of the shop, as JSON:\n")
    grammar = Grammar("json_schema", json.dumps(SCHEMA))
    return [measured(engine, "answer by a JSON schema", [ids], 160, repeats, grammar=grammar)]


def new_text(engine: Engine, repeats: int) -> list[Part]:
    prompts = [engine.tokenizer.encode(begin) for begin in BEGINS]
    return [
        measured(engine, f"new text, {name}, {n}", prompts[:n], 192, repeats, temperature=temperature)
        for name, temperature in (("greedy", 0.0), ("drawn", 0.8))
        for n in (1, len(prompts))
    ]


def _prompts(engine: Engine, count: int) -> list[list[int]]:
    draws = np.random.default_rng(1)
    return [draws.integers(16, engine.executor.vocab_size - 16, 16).tolist() for _ in range(count)]


PARTS = {"edit": edit, "scripted": scripted, "failing": failing, "schema": schema}
COLUMNS = ["part", "plain / drafted", "rounds", "tokens a drafted step", "accepted", "of theory"]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Drafts against plain decoding.")
    parser.add_argument("model")
    parser.add_argument("--option", action="append", default=[], help="of the engine, as NAME=VALUE")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--only", choices=PARTS, action="append")
    parser.add_argument("--speculative", default="ngram", help="draft=MODEL, eagle3=HEAD or mtp")
    parser.add_argument("--regardless", action="store_true", help="draft whatever it costs")
    asked = parser.parse_args(arguments)
    options = {name: _value(text) for name, _, text in (one.partition("=") for one in asked.option)}
    engine = Engine(asked.model, options, asked.speculative)
    if asked.regardless:
        times = engine.core.drafter.times
        times.share_of_one_more = times.seconds = lambda _: 0.0
    if engine.second is not None:
        parts = new_text(engine, asked.repeats)
    else:
        parts = [part for name in asked.only or PARTS for part in PARTS[name](engine, asked.repeats)]
    print(f"{Path(asked.model).name}, {cpu_identity().model}, {asked.repeats} rounds in turns")
    print(format_table(COLUMNS, [part.row() for part in parts]))
    engine.executor.release()
    if engine.second is not None:
        engine.second.release()
    return 0


def _value(text: str) -> int | str:
    return int(text) if text.isdecimal() else text


if __name__ == "__main__":
    sys.exit(main())
