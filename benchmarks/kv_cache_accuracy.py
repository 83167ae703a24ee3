"""Effects of the codes of the KV cache: distributions of the next token beside those with the model's own
cache, over the same text.

    python benchmarks/kv_cache_accuracy.py [MODEL] [--windows 8] [--tokens 2048] [--dtypes int8 fp8]

MODEL is a directory in Hugging Face layout (default: the model that Firelane carries). The text is the
package's own source, in windows of consecutive tokens, which the engine's kernels read in chunks. For each
position: the KL divergence of the distribution from that of the plain cache, in nats; whether both have the
same most probable token; and the log-probability of the token that follows.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import firelane
from firelane import __version__, env
from firelane.backends.cpu import loader
from firelane.backends.cpu.executor import CpuExecutor
from firelane.bench.table import format_table
from firelane.contract import SCORE, StepInputs
from firelane.engine_config import KV_CACHE_CODES, EngineConfig
from firelane.models.config.reader import read_config
from firelane.models.registry import load_program
from firelane.program.cache_rewrite import with_cache_dtype
from firelane.sources.resolve import resolve
from firelane.text.tokens.tokenizer import load_tokenizer

CHUNK = 96
"""Tokens of a step, each with an output row."""
F32 = NDArray[np.float32]


@dataclass
class Reader:
    """A model with a cache of one dtype that reads windows of tokens."""

    model_dir: Path
    dtype: str
    longest: int
    executor: CpuExecutor = field(init=False)
    inputs: StepInputs = field(init=False)

    def __post_init__(self) -> None:
        program = with_cache_dtype(load_program(read_config(self.model_dir)), self.dtype)
        config = EngineConfig(
            model_dir=self.model_dir,
            backend="cpu",
            cache_dir=env.read().cache_dir,
            max_num_seqs=CHUNK,
            max_num_batched_tokens=CHUNK,
            max_model_len=self.longest,
            kv_cache_bytes=2 * (self.longest + CHUNK) * program.kv_bytes_per_token * len(program.spans),
        )
        self.executor = loader.load(program, self.model_dir, config, lambda *_: None)
        self.inputs = StepInputs.allocate(self.executor.limits)
        pages = np.arange(self.executor.limits.blocks_per_seq)
        for group, table in enumerate(self.executor.state.block_tables):
            table[0] = pages + group * len(pages)
        row = self.executor.state.sampling[0]
        row["temperature"], row["top_p"], row["repetition_penalty"], row["logprobs"] = 1.0, 1.0, 1.0, -1

    def read(self, tokens: NDArray[np.int32], start: int) -> F32:
        """Log-probabilities [tokens, vocabulary] after each of the tokens from `start` on, up to CHUNK."""
        count = min(CHUNK, len(tokens) - 1 - start)
        inputs, state = self.inputs, self.executor.state
        state.tokens[0, : len(tokens)] = tokens
        inputs.num_chunks, inputs.num_tokens, inputs.num_rows = 1, count, count
        inputs.chunk_slot[0] = inputs.chunk_from[0] = 0
        inputs.chunk_start[0], inputs.chunk_len[0] = start, count
        inputs.row_token[:count], inputs.row_slot[:count] = np.arange(count), 0
        inputs.row_position[:count], inputs.row_kind[:count] = start + np.arange(count), SCORE
        self.executor.submit(inputs)
        outputs = self.executor.wait()
        found = log_softmax(self.logits(count))
        following = found[np.arange(count), tokens[start + 1 : start + 1 + count]]
        assert np.allclose(following, outputs.logprobs[:count], atol=1e-3), "these are not the logits"
        return found

    def logits(self, count: int) -> F32:
        """Rows, as the last product left them."""
        layout = self.executor.layout
        assert layout.program.head is not None
        out = layout.program.head.out
        start, size = layout.placement.offsets[out], layout.row_bytes(out)
        rows = self.executor.arena[start : start + count * size].view(np.float32).reshape(count, -1)
        return rows[:, : out.width].copy()


@dataclass
class Changes:
    """The change at each position against the plain cache."""

    divergence: list[F32] = field(default_factory=list)
    same_top: list[NDArray[np.bool_]] = field(default_factory=list)
    following: list[F32] = field(default_factory=list)

    def add(self, plain: F32, coded: F32, following: NDArray[np.int32]) -> None:
        self.divergence.append((np.exp(plain) * (plain - coded)).sum(axis=1))
        self.same_top.append(plain.argmax(axis=1) == coded.argmax(axis=1))
        self.following.append(coded[np.arange(len(coded)), following])


def log_softmax(logits: F32) -> F32:
    shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    return (shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))).astype(np.float32)


def windows(model_dir: Path, count: int, length: int) -> list[NDArray[np.int32]]:
    """Cut windows from the package's own source, file after file."""
    files = sorted(Path(firelane.__file__).parent.rglob("*.py"))
    ids = load_tokenizer(model_dir).encode("\n".join(f.read_text() for f in files), add_special_tokens=False)
    step = len(ids) // count
    return [np.array(ids[i * step : i * step + length], np.int32) for i in range(count)]


def measure(options: argparse.Namespace, model_dir: Path) -> dict[str, Changes]:
    """By dtype, the plain cache's first."""
    names = ["auto", *options.dtypes]
    readers = [Reader(model_dir, name, options.tokens + 1) for name in names]
    found = {name: Changes() for name in names}
    for tokens in windows(model_dir, options.windows, options.tokens):
        for start in range(0, len(tokens) - 1, CHUNK):
            read = [reader.read(tokens, start) for reader in readers]
            for changes, coded in zip(found.values(), read, strict=True):
                changes.add(read[0], coded, tokens[start + 1 : start + 1 + len(coded)])
    for reader in readers:
        reader.executor.release()
    return found


def report(found: dict[str, Changes]) -> str:
    header = [
        "cache",
        "KL, mean",
        "KL, 99th percentile",
        "KL, largest",
        "same top token",
        "perplexity",
    ]
    rows = []
    for name, changes in found.items():
        divergence = np.concatenate(changes.divergence)
        figures = (divergence.mean(), np.quantile(divergence, 0.99), divergence.max())
        same = np.concatenate(changes.same_top).mean()
        perplexity = np.exp(-np.concatenate(changes.following).mean())
        rows.append([name, *(f"{max(f, 0):.2e}" for f in figures), f"{same:.2%}", f"{perplexity:.4f}"])
    return format_table(header, rows)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?")
    parser.add_argument("--windows", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=2048, help="of a window")
    parser.add_argument("--dtypes", nargs="+", choices=KV_CACHE_CODES, default=list(KV_CACHE_CODES))
    options = parser.parse_args()
    model_dir = resolve(options.model)
    longest = load_program(read_config(model_dir)).max_model_len
    options.tokens = min(options.tokens, longest - 1)
    found = measure(options, model_dir)
    positions = sum(len(part) for part in found["auto"].following)
    print(f"firelane {__version__}, {sys.platform}: {positions:,} positions, windows of {options.tokens:,}")
    print(report(found))


if __name__ == "__main__":
    main()
