"""Pages that a long sequence of a sliding-window model holds, through the real engine on the CPU.

    python benchmarks/window_memory.py [--prompt 32000] [--output 200] [--window 4096]

A small model of Mistral's shape with random weights reads a prompt and writes an answer, greedy, twice: once
as it is, and once in an engine that takes its layers for causal ones and so keeps every page, while the
kernels mask by the window as before. Both must draw the same tokens with the same log-probabilities, bit for
bit.
"""

from __future__ import annotations

import argparse
import platform
import sys
import tempfile
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from random_model import mistral_config, write_checkpoint

from firelane import __version__
from firelane.bench.table import format_table
from firelane.contract import CAUSAL, Executor
from firelane.engine.core import EngineCore
from firelane.engine.process.load import load_executor
from firelane.engine_config import EngineConfig
from firelane.wire.frames import NewRequest, Rejected, Sampling, StepFrame, Submit

MOST_WINDOWS = 1.1
"""The most pages that a decoding sequence may hold, in windows."""
BLOCK_SIZE = 16


class Keeping:
    """An executor whose limits say that all layers are causal: its engine keeps every page."""

    def __init__(self, executor: Executor) -> None:
        limits = executor.limits
        self.limits = replace(limits, spans=(CAUSAL,) * len(limits.spans))
        self._executor = executor

    def __getattr__(self, name: str) -> Any:
        return getattr(self._executor, name)


@dataclass
class Run:
    """A channel that submits one request; the most pages held in each phase, and all that was drawn."""

    request: NewRequest | None
    prefill_pages: int = 0
    decode_pages: int = 0
    drawn: list[tuple[int, int, bytes]] = field(default_factory=list)
    is_finished: bool = False
    prefill_s: float = 0.0
    seconds: float = 0.0

    def receive(self, wait_s: float | None) -> list[Submit]:
        del wait_s
        request, self.request = self.request, None
        return [Submit([request])] if request is not None else []

    def send(self, frame: StepFrame | Rejected) -> None:
        assert isinstance(frame, StepFrame), frame
        for entry in frame.logprobs:
            self.drawn.append((entry.position, entry.token, np.float32(entry.logprob).tobytes()))
        self.is_finished = self.is_finished or bool(frame.finished)


def run(executor: Any, request: NewRequest) -> Run:
    channel = Run(request)
    core = EngineCore(executor, channel, prefix_cache=False)
    began_s = time.perf_counter()
    while not (channel.is_finished and core.is_idle):
        core.step()
        if len(channel.drawn) > 1:
            channel.decode_pages = max(channel.decode_pages, core.kv.num_used_pages)
        else:
            channel.prefill_pages = max(channel.prefill_pages, core.kv.num_used_pages)
            channel.prefill_s = time.perf_counter() - began_s
    channel.seconds = time.perf_counter() - began_s
    return channel


def make_request(prompt_tokens: int, output_tokens: int) -> NewRequest:
    prompt = np.random.default_rng(0).integers(0, 512, prompt_tokens, np.int32)
    sampling = Sampling(temperature=0.0, max_tokens=output_tokens, logprobs=0)
    return NewRequest(id=1, prompt=prompt.tobytes(), sampling=sampling)


def load(directory: Path, options: argparse.Namespace) -> Executor:
    longest = options.prompt + options.output
    config = mistral_config(layers=options.layers, kv_heads=2, window=options.window, max_len=longest)
    write_checkpoint(directory / "model", config)
    token_bytes = options.layers * 2 * 2 * 64 * 2
    return load_executor(
        EngineConfig(
            model_dir=directory / "model",
            cache_dir=directory / "cache",
            backend="cpu",
            weights="bf16",
            max_num_seqs=1,
            max_model_len=longest,
            block_size=BLOCK_SIZE,
            kv_cache_bytes=(longest + BLOCK_SIZE) * token_bytes,
        ),
        lambda *_: None,
    )


def report(runs: dict[str, Run], options: argparse.Namespace) -> str:
    window_pages = options.window / BLOCK_SIZE
    header = ("pages", "prefill", "windows", "decode", "windows", "prefill s", "decode s")
    rows = [
        [
            name,
            str(r.prefill_pages),
            f"{r.prefill_pages / window_pages:.2f}",
            str(r.decode_pages),
            f"{r.decode_pages / window_pages:.2f}",
            f"{r.prefill_s:.1f}",
            f"{r.seconds - r.prefill_s:.2f}",
        ]
        for name, r in runs.items()
    ]
    return format_table(header, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--prompt", type=int, default=32_000)
    parser.add_argument("--output", type=int, default=200)
    parser.add_argument("--window", type=int, default=4096)
    parser.add_argument("--layers", type=int, default=2)
    options = parser.parse_args()
    request = make_request(options.prompt, options.output)
    with tempfile.TemporaryDirectory() as scratch:
        executor = load(Path(scratch), options)
        runs = {"released": run(executor, request), "all kept": run(Keeping(executor), request)}
        executor.release()
    released, kept = runs.values()
    same = released.drawn == kept.drawn and len(kept.drawn) == options.output
    windows = released.decode_pages * BLOCK_SIZE / options.window
    print(f"firelane {__version__}, {platform.processor() or platform.machine()}, {platform.platform()}")
    print(f"prompt {options.prompt}, output {options.output}, window {options.window} tokens\n")
    print(report(runs, options))
    print(f"\ntokens and log-probabilities {'are the same bytes' if same else 'DIFFER'}")
    print(f"decode holds {windows:.3f} windows of pages (at most {MOST_WINDOWS})")
    sys.exit(0 if same and windows <= MOST_WINDOWS else 1)


if __name__ == "__main__":
    main()
