"""64 decisions over one state, beside one prompt of as many tokens and beside a call for each question.

    python benchmarks/decisions.py [--model DIR] [--tokens 800] [--questions 64] [--rounds 5]

Without --model it makes a Llama of 1.1 B random weights in a temporary directory. A server of it gets, in
turns, each time with a state that it has not seen: the questions in one call of /v1/systemone, and one
completion of one token over a prompt of as many tokens as that call has counted. The table has the medians,
the ratio of both by round, and the tokens that the engine has computed, which it tells at /metrics; those of
64 calls without a shared prefix are the state and one question, 64 times.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import httpx
import node_traffic_models
from random_model import write_checkpoint, write_tokenizer

from firelane.bench.server import ServerProcess
from firelane.bench.table import format_table

CRITERIA = {"a": None, "b": None}
TIMEOUT_S = 600.0


@dataclass(frozen=True)
class Round:
    decisions_s: float
    prompt_s: float
    computed: int
    asked: int
    """Tokens of the call, the state once."""
    question_tokens: int
    """Tokens of one question behind the state."""


def write_model(directory: Path) -> None:
    """The largest Llama of node_traffic_models, with the embedded model's tokenizer and chat template."""
    write_checkpoint(directory, node_traffic_models.SHAPES[-1].config)
    write_tokenizer(directory, node_traffic_models.VOCAB)


class Bench:
    def __init__(self, url: str, tokens: int, questions: int) -> None:
        self._http = httpx.Client(base_url=url, timeout=TIMEOUT_S, trust_env=False)
        self._tokens = tokens
        self._questions = {
            f"q{i}": {"type": "choice", "instructions": f"Is it {i:02}?", "criteria": CRITERIA}
            for i in range(questions)
        }

    def round(self, seed: int) -> Round:
        state = self._state(seed)
        one = self._ask(self._state(seed + 1), dict(list(self._questions.items())[:1]))[1]
        before = self._computed()
        took_s, asked = self._ask(state, self._questions)
        computed = self._computed() - before
        question = (asked - one) // max(1, len(self._questions) - 1)
        return Round(took_s, self._prompt(asked, seed), computed, asked, question)

    def _state(self, seed: int) -> str:
        """A text of as many tokens as wanted, or the least more, of lines that no other state has."""
        draw, text = random.Random(seed), ""
        while self._count(text) < self._tokens:
            number = draw.randrange(1000)
            text += f"def value_{number}(path):\n    return read({number}, path)\n"
        return text

    def _count(self, text: str) -> int:
        return self._http.post("/tokenize", json={"prompt": text or " "}).json()["count"]

    def _ask(self, state: str, questions: dict[str, object]) -> tuple[float, int]:
        start = time.perf_counter()
        answer = self._http.post("/v1/systemone", json={"state": state, "questions": questions})
        answer.raise_for_status()
        return time.perf_counter() - start, answer.json()["usage"]["input_tokens"]

    def _prompt(self, tokens: int, seed: int) -> float:
        draw = random.Random(-seed - 1)
        prompt = [draw.randrange(20_000, 30_000) for _ in range(tokens)]
        start = time.perf_counter()
        self._http.post("/v1/completions", json={"prompt": prompt, "max_tokens": 1}).raise_for_status()
        return time.perf_counter() - start

    def _computed(self) -> int:
        found = dict(
            line.rsplit(" ", 1) for line in self._http.get("/metrics").text.splitlines() if line[:1] != "#"
        )
        totals = {name.split("{")[0]: float(value) for name, value in found.items()}
        return int(
            totals["vllm:prefix_cache_queries_total"] - totals["vllm:prefix_cache_hits_total"],
        )


def report(rounds: list[Round], questions: int) -> str:
    last = rounds[-1]
    state = last.asked - questions * last.question_tokens
    apart = questions * (state + last.question_tokens)
    ratios = sorted(one.decisions_s / one.prompt_s for one in rounds)
    rows = [
        ["state, tokens", f"{state}"],
        ["a question, tokens", f"{last.question_tokens}"],
        [f"{questions} decisions, s", f"{median(one.decisions_s for one in rounds):.2f}"],
        [f"one prompt of {last.asked} tokens, s", f"{median(one.prompt_s for one in rounds):.2f}"],
        ["ratio: median (least, most)", f"{median(ratios):.3f} ({ratios[0]:.3f}, {ratios[-1]:.3f})"],
        ["computed tokens", f"{last.computed}"],
        [f"{questions} calls without a shared prefix, tokens", f"{apart}"],
        ["fewer by", f"{apart / last.computed:.1f}x"],
    ]
    return format_table(["what", "figure"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--tokens", type=int, default=800)
    parser.add_argument("--questions", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        model = args.model or Path(directory) / "llama"
        if args.model is None:
            write_model(model)
        with ServerProcess([str(model), "--max-num-seqs", "64"]) as server:
            bench = Bench(server.url, args.tokens, args.questions)
            rounds = [bench.round(seed) for seed in range(0, 2 * args.rounds + 2, 2)][1:]
    print(report(rounds, args.questions))


if __name__ == "__main__":
    main()
