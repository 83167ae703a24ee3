"""Texts a second that become vectors: Firelane's offline API against PyTorch, as sentence-transformers drives
it (texts sorted by length, padded batches of 32), in one process each, in turns, on the same cores.

    python benchmarks/encoders.py MODEL_DIRECTORY [--texts 1024] [--turns 3] [--dtype auto|bf16]

Needs torch and transformers beside Firelane. The vectors are compared, too: the least cosine is told.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import statistics
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Vectors = NDArray[np.float32]
KINDS = {"queries": (3, 12), "passages": (20, 120), "mixed": (3, 180)}
"""Words of a text: at least, and at most."""
BATCH = 32


def texts_of(kind: str, count: int) -> list[str]:
    """Texts of common words, the same in every run."""
    draw = random.Random(kind)
    words = Path(__file__).read_text(encoding="utf-8").lower().replace("_", " ").split()
    words = [word for word in words if word.isalpha()]
    least, most = KINDS[kind]
    return [" ".join(draw.choices(words, k=draw.randint(least, most))) for _ in range(count)]


def firelane(model: Path, dtype: str, threads: int) -> Callable[[list[str]], Vectors]:
    from firelane import LLM

    llm = LLM(str(model), dtype=dtype, threads=threads)
    return lambda texts: np.stack(llm.embed(texts))


def pytorch(model: Path, dtype: str, threads: int) -> Callable[[list[str]], Vectors]:
    """Batches of texts sorted by length, mean over the tokens that are no padding."""
    import torch
    import transformers

    torch.set_num_threads(threads)
    kind = torch.bfloat16 if dtype == "bf16" else torch.float32
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(model)
    network: Any = transformers.AutoModel.from_pretrained(model, dtype=kind).eval()
    longest = json.loads((model / "sentence_bert_config.json").read_text())["max_seq_length"]

    @torch.inference_mode()
    def embed(texts: list[str]) -> Vectors:
        order = sorted(range(len(texts)), key=lambda i: -len(texts[i]))
        found: list[Any] = [None] * len(texts)
        for first in range(0, len(order), BATCH):
            chosen = order[first : first + BATCH]
            batch = tokenizer(
                [texts[i] for i in chosen],
                padding=True,
                truncation=True,
                max_length=longest,
                return_tensors="pt",
            )
            states = network(**batch).last_hidden_state.float()
            mask = batch["attention_mask"].unsqueeze(-1).float()
            means = (states * mask).sum(1) / mask.sum(1)
            means = torch.nn.functional.normalize(means, dim=1)
            for i, vector in zip(chosen, means.numpy(), strict=True):
                found[i] = vector
        return np.stack(found)

    return embed


SIDES = {"firelane": firelane, "pytorch": pytorch}


def work(connection: Connection, side: str, model: Path, dtype: str, threads: int) -> None:
    """The process of one side: answers each list of texts with seconds and vectors."""
    embed = SIDES[side](model, dtype, threads)
    connection.send("ready")
    while texts := connection.recv():
        begun = time.perf_counter()
        vectors = embed(texts)
        connection.send((time.perf_counter() - begun, vectors))


class Side:
    def __init__(self, name: str, model: Path, dtype: str, threads: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, other = context.Pipe()
        self._process = context.Process(target=work, args=(other, name, model, dtype, threads), daemon=True)
        self._process.start()
        other.close()
        self._connection.recv()  # EOFError where it could not start

    def run(self, texts: list[str]) -> tuple[float, Vectors]:
        self._connection.send(texts)
        return self._connection.recv()

    def close(self) -> None:
        self._connection.send([])
        self._process.join()


def compare(one: Side, other: Side, kind: str, count: int, turns: int) -> str:
    """A line of the table."""
    texts = texts_of(kind, count)
    one.run(texts[:64]), other.run(texts[:64])
    times: tuple[list[float], list[float]] = [], []
    worst = 1.0
    for _ in range(turns):
        (one_s, ours), (other_s, theirs) = one.run(texts), other.run(texts)
        times[0].append(one_s)
        times[1].append(other_s)
        worst = min(worst, float((ours * theirs).sum(1).min()))
    rates = [count / statistics.median(side) for side in times]
    return f"| {kind} | {rates[0]:.0f} | {rates[1]:.0f} | {rates[0] / rates[1]:.2f} | {worst:.6f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--texts", type=int, default=1024)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--dtype", choices=("auto", "bf16"), default="auto")
    parser.add_argument("--torch-dtype", choices=("f32", "bf16"), default="f32")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    asked = parser.parse_args()
    ours = Side("firelane", asked.model, asked.dtype, asked.threads)
    theirs = Side("pytorch", asked.model, asked.torch_dtype, asked.threads)
    print("| texts | Firelane, texts/s | PyTorch, texts/s | ratio | least cosine |")
    print("|---|--:|--:|--:|--:|")
    for kind in KINDS:
        print(compare(ours, theirs, kind, asked.texts, asked.turns), flush=True)
    ours.close()
    theirs.close()


if __name__ == "__main__":
    main()
