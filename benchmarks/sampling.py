"""Time of the CPU sampling kernel per row, by vocabulary, request and instruction set.

    python benchmarks/sampling.py [--repeats 300] [--isa avx512bf16 ...]

One thread, logits from a normal distribution: deviation 4 where "peaked" (most of the mass is in some hundred
tokens, as with a trained model), 1 where "flat" (in most of the vocabulary, the worst case of a filter).
Printed is the median over `--repeats` rows, each with another seed, and the ratio to one read of the row.
"""

from __future__ import annotations

import argparse
import ctypes as ct
import platform
import tempfile
from pathlib import Path

import numpy as np

from firelane import env
from firelane.backends.cpu.codegen.compile import SOURCES
from firelane.backends.cpu.codegen.contract_source import contract_source
from firelane.contract import SAMPLING_DTYPE
from firelane.native.machine import compile_flags, cpu_identity, supported_isas
from firelane.native.toolchain import Toolchain, find_compiler

VOCABS = (32_000, 128_256)
HISTORY = 2_000
REQUESTS: dict[str, dict[str, float]] = {
    "greedy": {},
    "greedy, 20 logprobs": {"logprobs": 20},
    "greedy, penalties over 2000 tokens": {"repetition_penalty": 1.1, "frequency_penalty": 0.1},
    "temperature": {"temperature": 0.8},
    "top-k 50": {"temperature": 0.8, "top_k": 50},
    "top-k 5000": {"temperature": 0.8, "top_k": 5000},
    "top-p 0.95": {"temperature": 0.8, "top_p": 0.95},
    "min-p 0.05": {"temperature": 0.8, "min_p": 0.05},
    "top-k 50, top-p 0.95": {"temperature": 0.8, "top_k": 50, "top_p": 0.95},
}
SOURCE = """
#include <chrono>
#include "sampling/sample_row.h"
using namespace firelane;
static double now() {
  const auto since = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double, std::micro>(since).count();
}
template <int V> static void time_rows(
    const float* logits, SamplingParams p, const int* tokens, int history, int repeats, double* us) {
  static Sampler<V> sampler;
  int token, ids[kMaxLogprobs];
  float logprob, values[kMaxLogprobs];
  for (int i = 0; i < repeats; ++i) {
    p.seed = i;
    const double start = now();
    const SamplingSlot slot{p, tokens, ids, values, ids, nullptr};
    if (history) sampler.run(logits, slot, history - 1, kSample, {&token, &logprob, ids, values});
    else logprob = largest<V>(logits);
    us[i] = now() - start;
    asm volatile("" : : "g"(&logprob) : "memory");
  }
}
#define TIME(V) \\
  extern "C" __attribute__((visibility("default"))) void time_##V( \\
      const float* logits, const SamplingParams* p, const int* tokens, int history, int repeats, \\
      double* us) { time_rows<V>(logits, *p, tokens, history, repeats, us); }
"""


def compiled(isa: str, toolchain: Toolchain, cache_dir: Path) -> ct.CDLL:
    cpu = cpu_identity()
    path = toolchain.build(
        contract_source() + SOURCE + "\n".join(f"TIME({v})" for v in VOCABS),
        include_dirs=[SOURCES],
        flags=compile_flags(isa, cpu),
        cache_dir=cache_dir,
        cpu_key=cpu.key,
        name="the sampling benchmark",
    )
    return ct.CDLL(str(path))


def median_us(lib: ct.CDLL, logits: np.ndarray, request: dict[str, float] | None, repeats: int) -> float:
    """Median time of one row, in microseconds; of one read of the logits where `request` is None."""
    params = np.zeros(1, SAMPLING_DTYPE)
    settings = {
        "top_p": 1,
        "repetition_penalty": 1,
        "logprobs": -1,
        "prompt_len": HISTORY // 2,
        **(request or {}),
    }
    for name, value in settings.items():
        params[name] = value
    tokens = np.random.default_rng(1).integers(0, len(logits), HISTORY).astype(np.int32)
    times = np.zeros(repeats)
    arrays = [ct.c_void_p(a.ctypes.data) for a in (logits, params, tokens, times)]
    history = 0 if request is None else HISTORY
    getattr(lib, f"time_{len(logits)}")(*arrays[:3], ct.c_int(history), ct.c_int(repeats), arrays[3])
    return float(np.median(times))


def print_table(lib: ct.CDLL, vocab: int, isa: str, repeats: int) -> None:
    normal = np.random.default_rng(0).standard_normal(vocab)
    rows = {"peaked": (normal * 4).astype(np.float32), "flat": normal.astype(np.float32)}
    floor = median_us(lib, rows["flat"], None, repeats)
    print(f"\n{isa}, vocabulary of {vocab}; one read of the row takes {floor:.1f} µs\n")
    print("| request | peaked, µs | ratio | flat, µs | ratio |\n|---|---|---|---|---|")
    for name, request in REQUESTS.items():
        times = [median_us(lib, logits, request, repeats) for logits in rows.values()]
        print(f"| {name} | " + " | ".join(f"{t:.1f} | {t / floor:.1f}" for t in times) + " |")


def main() -> None:
    cpu = cpu_identity()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=300)
    parser.add_argument("--isa", nargs="*", default=supported_isas(cpu))
    options = parser.parse_args()
    toolchain = find_compiler(env.read())
    print(f"{cpu.model}, {cpu.usable_cores} cores, {platform.machine()}; {toolchain.version}")
    with tempfile.TemporaryDirectory() as cache_dir:
        for isa in options.isa:
            lib = compiled(isa, toolchain, Path(cache_dir))
            for vocab in VOCABS:
                print_table(lib, vocab, isa, options.repeats)


if __name__ == "__main__":
    main()
