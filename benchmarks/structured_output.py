"""Measures the cost of structured output: compiling grammars, work for each constrained token, and a step.

    python benchmarks/structured_output.py [MODEL] [--vocab 128256] [--sequences 32] [--steps 20]

The first two tables use a byte-level vocabulary of --vocab tokens, made from the words of Python's own
library. Tokens are those of example documents, fed to the engine by a scripted executor. With a model
directory, steps of --sequences sequences that decode under a schema are held against the same without, in
turns.
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import statistics
import sysconfig
import tempfile
import time
from collections import Counter
from importlib.metadata import version
from pathlib import Path

import numpy as np
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

from firelane import env
from firelane.contract import SAMPLE, Executor, SlotState, StepInputs, StepLimits, StepOutputs
from firelane.engine.core import EngineCore
from firelane.engine.grammar.compiler import GrammarCompiler
from firelane.engine.grammar.limits import GrammarLimits
from firelane.engine.grammar.queue import GrammarQueue, grammar_queue
from firelane.engine.process.load import load_executor
from firelane.engine_config import EngineConfig
from firelane.wire.frames import Grammar, NewRequest, Rejected, Sampling, StepFrame, Submit

WORD = r" ?[A-Za-z]+|\d{1,3}| ?[^\sA-Za-z\d]+|\s+"
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 6},
        "address": {
            "type": "object",
            "properties": {"street": {"type": "string"}, "zip": {"type": "string", "pattern": "^[0-9]{5}$"}},
            "required": ["street", "zip"],
            "additionalProperties": False,
        },
        "kind": {"enum": ["alpha", "beta", "gamma"]},
    },
    "required": ["name", "age", "tags", "address", "kind"],
    "additionalProperties": False,
}
DOCUMENT = {
    "name": "Ada Lovelace, of London",
    "age": 36,
    "tags": ["mathematics", "analytical engines", "poetry"],
    "address": {"street": "12 St James Square", "zip": "10115"},
    "kind": "beta",
}
BOUNDED = {
    "type": "object",
    "properties": {"text": {"type": "string", "maxLength": 200}},
    "required": ["text"],
}
LONG = {"type": "array", "items": PERSON, "minItems": 1000}


def schema(value: object) -> Grammar:
    return Grammar("json_schema", json.dumps(value))


def compact(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


def optional(count: int) -> dict[str, object]:
    """An object's schema as the gateway sends it, which allows no other fields."""
    fields = {f"field_{i}": {"type": "integer"} for i in range(count)}
    return {"type": "object", "properties": fields, "additionalProperties": False}


# name: grammar, a text that matches it
CASES: dict[str, tuple[Grammar, str]] = {
    "object of five fields": (schema(PERSON), compact(DOCUMENT)),
    "any JSON object": (schema({"type": "object"}), compact(DOCUMENT)),
    "50 optional fields": (
        schema(optional(50)),
        compact({"field_3": 7, "field_17": 12, "field_41": 90125}),
    ),
    "300 optional fields": (
        schema(optional(300)),
        compact({"field_3": 7, "field_77": 12, "field_281": 90125}),
    ),
    "enum of 1,000": (schema({"enum": [f"value {i}" for i in range(1000)]}), '"value 345"'),
    "string of 200 at most": (
        schema(BOUNDED),
        compact({"text": "a short text about nothing in particular"}),
    ),
    "regular expression": (
        Grammar("regex", "[A-Z][a-z]+( [A-Z][a-z]+)*, [0-9]{4}"),
        "Ada Lovelace Byron, 1815",
    ),
    "arithmetic in Lark": (
        Grammar("lark", 'start: term (("+" | "-") term)*\nterm: /[0-9]+/ | "(" start ")"'),
        "(12+3)-4+(5+6)-(7-(8+9))",
    ),
}


def synthetic_tokenizer(size: int, path: Path) -> Tokenizer:
    """A byte-level BPE vocabulary of the beginnings of the most frequent words."""
    words: Counter[str] = Counter()
    for file in sorted(Path(sysconfig.get_paths()["stdlib"]).rglob("*.py"))[:2500]:
        words.update(re.findall(WORD, file.read_text(encoding="utf-8", errors="ignore")))
    splitter = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORD), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    vocab = {letter: i for i, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    merges: list[tuple[str, str]] = []
    for word, _ in words.most_common():
        letters = byte_level.pre_tokenize_str(word)[0][0]
        for end in range(2, min(len(letters), 24) + 1):
            if letters[:end] not in vocab and len(vocab) < size - 16:
                vocab[letters[:end]] = len(vocab)
                merges.append((letters[: end - 1], letters[end - 1]))
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = splitter
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([f"<|special {i}|>" for i in range(size - len(vocab))])
    tokenizer.save(str(path / "tokenizer.json"))
    return tokenizer


class Scripted:
    """An executor that draws the tokens of a given text, over and over."""

    weights_bytes = kv_bytes = hidden_width = 0
    max_in_flight = 1
    is_pipelined = False

    def __init__(self, limits: StepLimits, vocab_size: int) -> None:
        self.limits = limits
        self.vocab_size = vocab_size
        self.state = SlotState.allocate(limits, vocab_size)
        self.script: list[int] = []
        self._outputs = [StepOutputs.allocate(limits, 1) for _ in range(2)]

    def submit(self, inputs: StepInputs) -> None:
        self._outputs.reverse()
        rows = np.flatnonzero(inputs.row_kind[: inputs.num_rows] == SAMPLE)
        slots, positions = inputs.row_slot[rows], inputs.row_position[rows]
        drawn = positions + 1 - self.state.sampling["prompt_len"][slots]
        tokens = np.array(self.script, np.int32)[np.minimum(drawn, len(self.script) - 1)]
        self._outputs[0].tokens[rows] = self.state.tokens[slots, positions + 1] = tokens

    def wait(self) -> StepOutputs:
        return self._outputs[0]

    def release(self) -> None:
        pass


class ClosedLoop:
    """Keeps `running` requests of one kind in flight, with prompts of four tokens."""

    def __init__(self, running: int, grammar: Grammar | None, max_tokens: int) -> None:
        self.missing = running
        self.closed = False
        self._grammar = grammar
        self._sampling = Sampling(max_tokens=max_tokens)
        self._next_id = 0
        self.tokens = 0
        self.reasons: Counter[str] = Counter()

    def receive(self, wait_s: float | None) -> list[Submit]:
        if wait_s:
            time.sleep(wait_s)
        missing, self.missing = 0 if self.closed else self.missing, 0
        return [Submit([self._request() for _ in range(missing)])] if missing else []

    def send(self, frame: StepFrame | Rejected) -> None:
        assert isinstance(frame, StepFrame), frame
        self.tokens += len(frame.tokens)
        self.missing += len(frame.finished)
        self.reasons.update(finished.reason for finished in frame.finished)

    def _request(self) -> NewRequest:
        self._next_id += 1
        prompt = np.full(4, self._next_id % 1000, np.int32).tobytes()
        return NewRequest(id=self._next_id, prompt=prompt, sampling=self._sampling, grammar=self._grammar)


class Meter:
    """Processor time of this thread inside the methods that it wraps."""

    def __init__(self) -> None:
        self.spent_s = 0.0

    def wrap(self, owner: object, name: str) -> None:
        method = getattr(owner, name)

        def measured(*arguments: object) -> object:
            began_s = time.thread_time()
            try:
                return method(*arguments)
            finally:
                self.spent_s += time.thread_time() - began_s

        setattr(owner, name, measured)


def compile_times(model_dir: Path, vocab: int) -> list[str]:
    """Time each case twice: compiled for the first time, and found again (copied, for one more sequence)."""
    compiler = GrammarCompiler(model_dir, vocab, GrammarLimits())
    began_s = time.perf_counter()
    compiler.compile(Grammar("regex", "first"))
    first_ms = (time.perf_counter() - began_s) * 1e3
    lines = ["| grammar | bytes | compiled, ms | found again, µs |", "|---|---|---|---|"]
    for name, (grammar, _) in CASES.items():
        began_s = time.perf_counter()
        compiled = compiler.compile(grammar)
        compiled_s = time.perf_counter()
        for _ in range(20):
            compiled.matcher.deep_copy()
        found_s = (time.perf_counter() - compiled_s) / 20
        lines.append(
            f"| {name} | {len(grammar.text)} | {(compiled_s - began_s) * 1e3:.1f} | {found_s * 1e6:.0f} |"
        )
    compiler.close()
    once = (
        f"The first grammar of an engine takes {first_ms:.0f} ms more: the trial process and the tokenizer."
    )
    return [*lines, "", once]


def token_costs(model_dir: Path, tokenizer: Tokenizer, vocab: int, sequences: int, steps: int) -> list[str]:
    limits = StepLimits(
        max_num_seqs=sequences,
        max_num_batched_tokens=1024,
        max_output_rows=sequences,
        max_model_len=1024,
        block_size=16,
        num_blocks=64 * sequences,
    )
    queue = grammar_queue(model_dir, vocab)
    lines = ["| grammar | tokens of a text | µs a token |", "|---|---|---|"]
    for name, (grammar, text) in CASES.items():
        executor = Scripted(limits, vocab)
        executor.script = tokenizer.encode(text, add_special_tokens=False).ids
        spent_us = token_cost(executor, queue, grammar, sequences, steps)
        lines.append(f"| {name} | {len(executor.script)} | {spent_us:.1f} |")
    queue.close()
    return lines


def token_cost(
    executor: Scripted, queue: GrammarQueue, grammar: Grammar, sequences: int, steps: int
) -> float:
    """Microseconds of the engine's thread, matchers of new sequences included."""
    port = ClosedLoop(sequences, grammar, max_tokens=len(executor.script))
    core = EngineCore(executor, port, prerequisites=queue)
    while not port.tokens:
        core.step()
    meter = Meter()
    meter.wrap(core._masks, "advance")
    meter.wrap(core._masks, "write_row")
    port.tokens = 0
    for _ in range(max(steps, 2 * len(executor.script))):
        core.step()
    assert "error" not in port.reasons, "the text does not match"
    return meter.spent_s / port.tokens * 1e6


def step_times(model_dir: Path, sequences: int, steps: int, rounds: int) -> list[str]:
    """Medians of steps in which all sequences decode, with a schema and without."""
    config = EngineConfig(
        model_dir=model_dir, cache_dir=env.read().cache_dir, max_num_seqs=sequences, max_model_len=1024
    )
    executor = load_executor(config, lambda *_: None)
    queue = grammar_queue(model_dir, executor.vocab_size)
    times: dict[bool, list[float]] = {False: [], True: []}
    masks: list[float] = []
    for _ in range(rounds):
        for constrained in (False, True):
            found, spent_s = run_steps(executor, queue, constrained, sequences, steps)
            times[constrained] += found
            masks += [spent_s / steps] if constrained else []
    queue.close()
    executor.release()
    plain, bound = (statistics.median(times[constrained]) * 1e3 for constrained in (False, True))
    added, masks_ms = bound - plain, statistics.median(masks) * 1e3
    return [
        f"Steps of {sequences} sequences, vocabulary of {executor.vocab_size}; {rounds} rounds of {steps}:",
        "",
        "| step without, ms | with a schema, ms | added, ms | added | of it masks, ms |",
        "|---|---|---|---|---|",
        f"| {plain:.2f} | {bound:.2f} | {added:.2f} | {added / plain:.1%} | {masks_ms:.2f} |",
    ]


def run_steps(
    executor: Executor, queue: GrammarQueue, constrained: bool, sequences: int, steps: int
) -> tuple[list[float], float]:
    """Seconds of each step, and of the constraints' work in all."""
    port = ClosedLoop(sequences, schema(LONG) if constrained else None, max_tokens=900)
    core = EngineCore(executor, port, prefix_cache=False, prerequisites=queue)
    while len(core.table.running) < sequences or core.table.prefilling:
        core.step()
    meter = Meter()
    meter.wrap(core._masks, "advance")
    found = []
    for _ in range(steps):
        began_s = time.perf_counter()
        core.step()
        found.append(time.perf_counter() - began_s)
    core.abort_all()
    port.closed = True
    while not core.is_idle:
        core.step()
    return found, meter.spent_s


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", type=Path)
    parser.add_argument("--vocab", type=int, default=128_256)
    parser.add_argument("--sequences", type=int, default=32)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    packages = ", ".join(f"{name} {version(name)}" for name in ("llguidance", "numpy", "tokenizers"))
    print(f"{platform.machine()}, Python {platform.python_version()}, {packages}\n")
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory)
        tokenizer = synthetic_tokenizer(options.vocab, path)
        print(f"Vocabulary of {options.vocab}:\n")
        print("\n".join(compile_times(path, options.vocab)), "\n", sep="")
        print(
            "\n".join(token_costs(path, tokenizer, options.vocab, options.sequences, options.steps)),
            "\n",
            sep="",
        )
    if options.model is not None:
        print("\n".join(step_times(options.model, options.sequences, options.steps, options.rounds)))


if __name__ == "__main__":
    main()
