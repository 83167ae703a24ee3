"""The same work on the same GPU: Firelane's engine beside transformers' own continuous batching.

cuda_transformers.py [--prompts N] [--output-tokens N] [--layers N] [--weights auto] [--out DIR]

Prompts of ShareGPT-like lengths, all given at once, each continued greedily by the same number of tokens;
random weights of Llama-8B's shape. Both run in this process, one after the other: Firelane's engine without a
gateway, then `model.generate_batch` with a ContinuousBatchingConfig. Neither shares prefixes. Each first runs
a few prompts that are not counted. What transformers chose (attention, graphs) stands below the table.
"""

from __future__ import annotations

import argparse
import gc
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import transformers
from cuda_clock import open_device
from cuda_engine import random_executor
from cuda_llama import LLAMA_8B, program_of
from cuda_report import Table, parser, publish, run_main

from firelane.bench.engine import EngineGenerator
from firelane.bench.workload import sharegpt_like
from firelane.contract import StepLimits
from firelane.errors import MachineError

PROMPTS = 400
OUTPUT_TOKENS = 128
WARM_UP = 16
SEQUENCES = 256
STEP_TOKENS = 2048
BLOCK = 64
LONGEST = 1024
Generate = Callable[[Sequence[list[int]], int], None]
"""Continue each prompt by so many tokens."""


@dataclass(frozen=True, kw_only=True)
class Run:
    name: str
    seconds: float
    output_tokens: int
    details: str

    @property
    def tokens_per_s(self) -> float:
        return self.output_tokens / self.seconds


@dataclass(frozen=True, kw_only=True)
class Figures:
    prompts: int
    prompt_tokens: int
    runs: list[Run]


def prompts_of(count: int, *, vocab_size: int, seed: int = 0) -> list[list[int]]:
    """Random ids, none of them special."""
    rng = random.Random(seed)
    lengths = sharegpt_like(count, seed=seed, longest=LONGEST)
    return [[rng.randrange(10, vocab_size - 300) for _ in range(n.prompt_tokens)] for n in lengths]


def timed(
    name: str, generate: Generate, prompts: Sequence[list[int]], output_tokens: int, details: str
) -> Run:
    generate(prompts[:WARM_UP], min(8, output_tokens))
    torch.cuda.synchronize()
    began_s = time.perf_counter()
    generate(prompts, output_tokens)
    seconds = time.perf_counter() - began_s
    return Run(name=name, seconds=seconds, output_tokens=len(prompts) * output_tokens, details=details)


def run_firelane(
    config: dict[str, Any], prompts: Sequence[list[int]], output_tokens: int, *, mode: str
) -> Run:
    device, program = open_device(), program_of(config)
    longest = LONGEST + output_tokens
    limits = StepLimits(
        max_num_seqs=SEQUENCES,
        max_num_batched_tokens=STEP_TOKENS,
        max_output_rows=SEQUENCES,
        max_model_len=longest,
        block_size=BLOCK,
        num_blocks=SEQUENCES * -(-longest // BLOCK),
    )
    generator = EngineGenerator(program, random_executor(program, limits, device, mode=mode).executor)
    try:
        details = f"weights {mode}, at most {SEQUENCES} sequences and {STEP_TOKENS} tokens a step"
        return timed("firelane", generator.generate, prompts, output_tokens, details)
    finally:
        generator.close()


def run_transformers(
    config: dict[str, Any], prompts: Sequence[list[int]], output_tokens: int, *, device: str = "cuda"
) -> Run:
    fields = {k: v for k, v in config.items() if k not in ("architectures", "model_type", "torch_dtype")}
    with torch.device(device):
        model: Any = transformers.AutoModelForCausalLM.from_config(
            transformers.LlamaConfig(**fields), dtype=torch.bfloat16
        )
    model.eval()
    batching: Any = None

    def generate(some: Sequence[list[int]], tokens: int) -> None:
        nonlocal batching
        batching = transformers.ContinuousBatchingConfig(allow_block_sharing=False)
        settings = transformers.GenerationConfig(max_new_tokens=tokens, do_sample=False, eos_token_id=-1)
        answers = model.generate_batch(
            inputs=list(some), generation_config=settings, continuous_batching_config=batching
        )
        check(answers, len(some), tokens)

    run = timed("transformers", generate, prompts, output_tokens, "")
    graphs = getattr(batching, "use_cuda_graph", None)
    attention = getattr(model.config, "_attn_implementation", None)
    details = f"version {transformers.__version__}, attention {attention}, use_cuda_graph {graphs}"
    return replace(run, details=details)


def check(answers: dict[str, Any], count: int, tokens: int) -> None:
    """Raises MachineError where it did less than the same work."""
    short = [a for a in answers.values() if len(a.generated_tokens) != tokens]
    if len(answers) != count or short:
        raise MachineError(
            f"transformers answered {len(answers)} of {count} prompts, {len(short)} of them too short"
        )


def table(figures: Figures) -> Table:
    peer = figures.runs[-1]
    rows = [
        [
            run.name,
            f"{run.seconds:.2f}",
            f"{run.tokens_per_s:.0f}",
            f"{run.tokens_per_s / peer.tokens_per_s:.2f}x",
        ]
        for run in figures.runs
    ]
    return Table(
        title=f"{figures.prompts} prompts of {figures.prompt_tokens} tokens together, "
        f"{peer.output_tokens // figures.prompts} out of each",
        header=["engine", "s", "output tok/s", "to transformers"],
        rows=rows,
        notes=[f"- {run.name}: {run.details}" for run in figures.runs],
    )


def arguments_of(given: Sequence[str] | None = None) -> argparse.Namespace:
    made = parser(__doc__)
    made.add_argument("--prompts", type=int, default=PROMPTS, help="default: %(default)s")
    made.add_argument("--output-tokens", type=int, default=OUTPUT_TOKENS, help="default: %(default)s")
    made.add_argument("--layers", type=int, default=LLAMA_8B["num_hidden_layers"])
    made.add_argument("--weights", choices=("bf16", "lossless"), default="bf16")
    return made.parse_args(given)


def main() -> None:
    arguments = arguments_of()
    config = LLAMA_8B | {"num_hidden_layers": arguments.layers}
    prompts = prompts_of(arguments.prompts, vocab_size=config["vocab_size"])
    runs = [run_firelane(config, prompts, arguments.output_tokens, mode=arguments.weights)]
    gc.collect()
    torch.cuda.empty_cache()
    runs.append(run_transformers(config, prompts, arguments.output_tokens))
    figures = Figures(prompts=len(prompts), prompt_tokens=sum(map(len, prompts)), runs=runs)
    publish("cuda_transformers", [table(figures)], figures, arguments)


if __name__ == "__main__":
    run_main(main)
