"""The share of the machine's bf16 dot rate that the prefill of one prompt reaches.

    prefill_peak.py MODEL [--tokens 512] [--rounds 7]

`firelane doctor` measures the rate right after each prefill, on as many threads: a shared machine drifts.
Counted are the matrix products and attention, of the positions that each token sees.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from pathlib import Path

from firelane import LLM, SamplingParams, env
from firelane.bench.table import format_table
from firelane.doctor.limits import build_probe
from firelane.models.registry import load_program
from firelane.program.values import StepShape


def flops(model: Path, tokens: int) -> float:
    program = load_program(json.loads((model / "config.json").read_text()))
    attended = tokens * (tokens + 1) // 2
    shape = StepShape(tokens=tokens, outputs=1, attended=attended, context=tokens, sequences=1)
    return program.cost(shape).flops


def prefill_s(llm: LLM, tokens: int) -> float:
    prompt = [random.randrange(10, 30000) for _ in range(tokens)]  # new: no cached prefix
    start_s = time.perf_counter()
    llm.generate([prompt], SamplingParams(max_tokens=1, temperature=0))
    return time.perf_counter() - start_s


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    work, probe, rows = flops(arguments.model, arguments.tokens), build_probe(env.read()), []
    with LLM(str(arguments.model)) as llm:
        for _ in range(arguments.rounds + 1):
            rate = work / prefill_s(llm, arguments.tokens) / 1e9
            peak = probe.dot_gflops(arguments.threads)
            rows.append((rate, peak, rate / peak))
    shown = [[f"{rate:.0f}", f"{peak:.0f}", f"{share:.3f}"] for rate, peak, share in rows[1:]]
    print(format_table(["prefill GFLOP/s", "bf16 dot GFLOP/s", "share"], shown))
    print(f"median share {statistics.median(share for _, _, share in rows[1:]):.3f}")


if __name__ == "__main__":
    main()
