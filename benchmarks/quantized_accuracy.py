"""Accuracy of each format of `firelane quantize` on one model: errors of weights, and of probabilities.

    python benchmarks/quantized_accuracy.py [MODEL] --text FILE [--tokens 2048] [--formats NAME ...]
        [--activation-dtype int8]

By format: bits of a quantised weight on disk, relative error of all matrices (root of the sum of squared
errors over that of squared weights), KL divergence from bf16 in nats a token, share of places at which the
most likely token is the same, perplexity. MODEL: a directory; without one, the model that Firelane carries.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from firelane import env
from firelane.bench.divergence import divergence
from firelane.bench.table import format_table
from firelane.engine_config import EngineConfig
from firelane.models.config.reader import read_config
from firelane.models.registry import load_program
from firelane.program.values import DType
from firelane.sources.resolve import resolve
from firelane.weights.quantize.report import QuantizeReport
from firelane.weights.quantize.run import quantize
from firelane.weights.quantizing.schemes import SCHEMES


def bits_of(report: QuantizeReport) -> float:
    sizes = [m.shape[0] * m.shape[1] for m in report.matrices]
    return float(np.average([m.bits for m in report.matrices], weights=sizes))


def rows_of(model: Path, name: str, text: str, tokens: int, activations: str) -> list[list[str]]:
    """That of bf16, and that of the format."""
    common: dict[str, Any] = {"max_num_seqs": 1, "kv_cache_bytes": 1 << 30, "backend": "cpu"}
    common |= {"cache_dir": env.read().cache_dir, "prefix_cache": False}
    with tempfile.TemporaryDirectory() as scratch:
        program = load_program(read_config(model), dtype=DType.BF16)
        report = quantize(program, model, Path(scratch, "out"), SCHEMES[name])
        plain = EngineConfig(model_dir=model, dtype="bf16", **common)
        made = Path(scratch, "out")
        coded = EngineConfig(model_dir=made, activation_dtype=activations, **common)
        found = divergence(plain, coded, text, most_tokens=tokens)
    before, after = (f"{perplexity:.3f}" for perplexity in found.perplexities)
    errors = [f"{report.relative_error:.2%}", f"{found.mean_kl:.5f}", f"{found.top1:.1%}", after]
    return [["bf16", "16.00", "0", "0", "100%", before], [name, f"{bits_of(report):.2f}", *errors]]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", metavar="MODEL")
    parser.add_argument("--text", type=Path, required=True, metavar="FILE", nargs="+")
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--formats", nargs="+", default=list(SCHEMES), choices=list(SCHEMES))
    parser.add_argument("--activation-dtype", default="bf16", choices=("bf16", "int8"))
    arguments = parser.parse_args()
    text, model = "\n".join(path.read_text() for path in arguments.text), resolve(arguments.model)
    pairs = [
        rows_of(model, name, text, arguments.tokens, arguments.activation_dtype) for name in arguments.formats
    ]
    rows = [pairs[0][0], *(pair[1] for pair in pairs)]
    header = ["format", "bits", "relative error", "KL divergence", "most likely the same", "perplexity"]
    print(format_table(header, rows))


if __name__ == "__main__":
    main()
